"""How PySpark 4's calls reach the service's source."""

import pickle
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from streaming import schemas
from streaming.adapters.pulsar.source.stream import PartitionBatch
from streaming.config.load import load
from streaming.queries.delivery.request_reads import options_for
from tests.spark4_classes import spark4_classes
from udfs.entry_ranges import EntrySpan

BATCH = PartitionBatch("persistent://t/ns/a-partition-0", (EntrySpan(7, 0, 2),), None)


class Stream:
    def partitions(self, _start: dict[str, Any], _end: dict[str, Any]) -> list[PartitionBatch]:
        return [BATCH]


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    names = ("streaming.adapters.pulsar.source.data_source", "streaming.queries.delivery.request_source")
    with spark4_classes(monkeypatch, *names):
        from streaming.queries.delivery import request_source

        yield request_source


def _reader(source: Any, *, gives_up: bool) -> Any:
    options = options_for(load(None), ["persistent://t/ns/a"], gives_up=gives_up)
    reader = source.RequestSource(options).streamReader(None)
    vars(reader)["_stream"] = Stream()
    return reader


def test_the_rows_are_those_of_the_service(source: Any) -> None:
    options = options_for(load(None), ["persistent://t/ns/a"], gives_up=False)
    assert source.RequestSource(options).schema().names == schemas.MESSAGE.names


def test_a_partition_that_a_tenant_names_like_a_topic_ends_no_query_of_the_service(source: Any) -> None:
    topics = ["persistent://t/ns/a", "persistent://t/ns/a-partition-0"]
    options = options_for(load(None), topics, gives_up=False)
    assert source.RequestSource(options).streamReader(None)._options.topics == tuple(topics)


def test_a_topic_that_was_deleted_does_not_end_a_query_of_the_service(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "continue_log", lambda: None)
    options = options_for(load(None), ["persistent://t/ns/a"], gives_up=False)
    with closing(source.RequestSource(options).streamReader(None)._stream) as stream:
        assert not stream.requires_topics


@pytest.mark.parametrize("gives_up", [True, False])
def test_only_the_first_batch_gives_entries_up_also_when_it_is_planned_again(source: Any, gives_up: bool) -> None:
    reader = _reader(source, gives_up=gives_up)
    one, two, three = {"n": 1}, {"n": 2}, {"n": 3}
    planned = [reader.partitions(*batch)[0].value for batch in ((one, two), (one, two), (two, three))]
    assert planned == [(BATCH, gives_up), (BATCH, gives_up), (BATCH, False)]


def test_a_task_reads_with_what_was_planned_and_without_connections(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = _reader(source, gives_up=True)
    assert sorted(reader.__getstate__()) == ["_options", "_requests"]
    assert pickle.loads(pickle.dumps(reader.__getstate__()))["_requests"].gives_up
    read: list[Any] = []
    monkeypatch.setattr(source, "read_requests", lambda *batch, gives_up: read.append((*batch, gives_up)))
    reader.read(reader.partitions({}, {"n": 1})[0])
    assert read == [(reader._requests, BATCH, True)]
