"""How PySpark 4's calls reach the source; tests/integration/test_spark4_source.py runs it in a real PySpark 4."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.adapters.pulsar.source.stream import PartitionBatch
from streaming.errors import ConfigError
from tests.spark4_classes import ReadAllAvailable, ReadMaxRows, spark4_classes
from udfs.entry_ranges import EntrySpan
from udfs.pulsar_source.admission import Limits

OPTIONS = {"serviceUrl": "pulsar://127.0.0.1:1", "adminUrl": "http://127.0.0.1:1", "topics": "t/ns/a"}


@pytest.fixture
def data_source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with spark4_classes(monkeypatch, "streaming.adapters.pulsar.source.data_source"):
        from streaming.adapters.pulsar.source import data_source

        yield data_source


@dataclass
class Stream:
    limits: list[Limits]
    is_closed: bool = False

    def latest_offset(self, start: dict[str, Any], limits: Limits) -> dict[str, Any]:
        self.limits.append(limits)
        return start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[PartitionBatch]:
        return [PartitionBatch("persistent://t/ns/a", (EntrySpan(7, 0, 2),), None)]

    def commit(self, end: dict[str, Any]) -> None:
        raise EOFError

    def close(self) -> None:
        self.is_closed = True


def test_the_limits_of_the_options_hold_unless_spark_wants_everything(data_source: Any) -> None:
    options = OPTIONS | {"maxMessagesPerTrigger": "10", "maxBytesPerTrigger": "20"}
    reader = data_source.PulsarDataSource(options).streamReader(None)
    stream = Stream([])
    vars(reader)["_stream"] = stream
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(10)
    reader.latestOffset({}, limit)
    reader.latestOffset({}, ReadAllAvailable())
    assert stream.limits == [Limits(10, 20), Limits()]


def test_a_task_gets_the_options_and_its_batch_but_no_connection(data_source: Any) -> None:
    reader = data_source.PulsarDataSource(OPTIONS).streamReader(None)
    vars(reader)["_stream"] = Stream([])
    batches = [each.value for each in reader.partitions({}, {})]
    assert pickle.loads(pickle.dumps(batches)) == batches
    assert [*reader.__getstate__()] == ["_options"]


def _raises(error: Exception) -> Callable[[Any], None]:
    def fail(_reader: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("fails", "is_quiet"),
    [
        pytest.param(_raises(EOFError()), True, id="no further call"),
        pytest.param(_raises(BrokenPipeError()), True, id="nothing reads an answer"),
        pytest.param(_raises(ConnectionResetError()), True, id="nothing reads an answer, but had to"),
        pytest.param(_raises(ValueError()), False, id="a fault of PySpark"),
        pytest.param(lambda reader: reader.commit({}), False, id="the same error, of the source"),
        pytest.param(lambda _reader: None, False, id="no error"),
    ],
)
def test_the_process_of_a_query_ends_without_a_traceback_only_if_spark_has_closed_the_connection(
    data_source: Any, monkeypatch: pytest.MonkeyPatch, fails: Callable[[Any], None], is_quiet: bool
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(data_source, "os", SimpleNamespace(_exit=ended.append))
    reader = data_source.PulsarDataSource(OPTIONS).streamReader(None)
    vars(reader)["_stream"] = stream = Stream([])
    with suppress(EOFError, OSError, ValueError):
        try:  # as python_streaming_source_runner.main
            fails(reader)
        finally:
            reader.stop()
    assert ended == ([0] if is_quiet else [])
    assert stream.is_closed


def test_options_that_can_not_work_are_refused_by_load(data_source: Any) -> None:
    with pytest.raises(ConfigError, match="topics"):
        data_source.PulsarDataSource({})
    assert data_source.PulsarDataSource.name() == "pulsar-frames"
