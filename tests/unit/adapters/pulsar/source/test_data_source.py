"""How PySpark 4's calls reach the source; tests/integration/test_spark4_source.py runs it in a real PySpark 4."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
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

    def latest_offset(self, start: dict[str, Any], limits: Limits) -> dict[str, Any]:
        self.limits.append(limits)
        return start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[PartitionBatch]:
        return [PartitionBatch("persistent://t/ns/a", (EntrySpan(7, 0, 2),), None)]


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


def test_options_that_can_not_work_are_refused_before_a_query_starts(data_source: Any) -> None:
    with pytest.raises(ConfigError, match="topics"):
        data_source.PulsarDataSource({}).streamReader(None)
    assert data_source.PulsarDataSource.name() == "pulsar-frames"
