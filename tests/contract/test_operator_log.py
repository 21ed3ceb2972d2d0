"""The operator log on the fake store and on ZooKeeper."""

from uuid import uuid4

import pytest

from streaming.coordination import operator_log
from streaming.coordination.identity import operator_name
from streaming.coordination.operator_log import OperatorLog
from streaming.ports import MetadataStore
from tests.contract.conftest import Stores


@pytest.fixture
def root() -> str:
    return f"/reaper-{uuid4().hex}"


def test_entries_of_all_instances_are_returned_in_the_order_of_time(
    store: MetadataStore, new_store: Stores, root: str
) -> None:
    assert OperatorLog(store, root).entries() == []
    OperatorLog(store, root).add(service="main", command="pause", what="paused: upgrade", why="upgrade")
    OperatorLog(new_store(), root).add(service="other", command="undo", what="1 PUT_BACK\n\x1b[2J")
    first, second = OperatorLog(store, root).entries()
    assert (first.service, first.command, first.what, first.why) == ("main", "pause", "paused: upgrade", "upgrade")
    assert (second.service, second.command, second.what, second.why) == ("other", "undo", "1 PUT_BACK\n\x1b[2J", "")
    assert first.who == second.who == operator_name()
    assert 0 < first.at_ms <= second.at_ms


def test_only_the_newest_entries_stay_and_long_texts_are_cut(
    store: MetadataStore, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_log, "KEPT", 3)
    monkeypatch.setattr(operator_log, "_SLACK", 2)
    log = OperatorLog(store, root)
    for number in range(6):
        log.add(service="main", command="pause", what=f"{number}" * 100_000)
    assert [entry.what[0] for entry in log.entries()] == ["3", "4", "5"]
    assert max(len(entry.what) for entry in log.entries()) < 10_000


def test_what_something_else_wrote_is_shown_as_it_is(store: MetadataStore, root: str) -> None:
    store.create(f"{root}/history/x", b"\xff[]", parents=True)
    [entry] = OperatorLog(store, root).entries()
    assert (entry.who, entry.what) == ("", repr(b"\xff[]"))
