"""No request waits any more: RETRY is read last, and a pass over retries in between invalidates the check."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.deletion.supervision.idle import is_idle, only_retries_wait, stuck
from streaming.queries.names import queries_of

MATCHED = "persistent://acme/reaper/d1"


class PaperAdmin:
    """Topics with one partition each. newest: topic -> position of its last message."""

    def __init__(self, newest: dict[str, tuple[int, int]], on_ask: Callable[[], None]) -> None:
        self.asked: list[str] = []
        self._newest = newest
        self._on_ask = on_ask

    def partitions(self, topic: str) -> int:
        self.asked.append(topic)
        self._on_ask()
        return 1

    def last_positions(self, topic: str) -> dict[str, tuple[int, int]]:
        return {f"{topic}-partition-0": self._newest.get(topic, (-1, -1))}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "config.toml"
    file.write_text(f'[checkpoints]\ndir = "{tmp_path}/checkpoints"\n')
    return load(file)


def _look(
    settings: Settings,
    *,
    newest: dict[str, tuple[int, int]] | None = None,
    is_active: bool = False,
    is_empty: bool = True,
    is_asleep: bool = True,
    passes: int = 0,
    asked: Callable[..., bool] = is_idle,
    given_up: tuple[str, ...] = (),
    reached: dict[str, tuple[int, int]] | None = None,
) -> tuple[bool, list[str]]:
    """Check while this number of passes over the retries takes place."""
    due = SimpleNamespace(passes=0, is_empty=lambda: is_empty, is_asleep=lambda: is_asleep)

    def make_passes() -> None:
        due.passes = passes

    admin = PaperAdmin(newest or {}, make_passes)
    listed, matched = queries_of(settings), queries_of(settings, (MATCHED,))[1]
    stream = SimpleNamespace(status={"isTriggerActive": is_active})
    running = dict.fromkeys((*listed, matched), stream)  # one that matches comes after RETRY, when it is taken up
    queries: Any = SimpleNamespace(
        running=running,
        given_up=dict.fromkeys((each for each in running if each.topics[0] in given_up), Exception("a bug")),
        reached=reached or {},
        rests=lambda query: query.topics[0] in given_up,
    )
    assert list(stuck(settings, cast("Any", admin), queries)) == [
        query for query in queries.given_up if newest is not None and query.topics[0] in newest
    ]
    admin.asked.clear()
    return asked(settings, cast("Any", admin), queries, cast("Any", due)), admin.asked


def test_retry_is_read_after_all_topics_that_send_to_it(settings: Settings) -> None:
    idle, asked = _look(settings)
    assert idle
    assert asked == [settings.topics.requests[0], MATCHED, settings.topics.retry]


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param({"newest": {MATCHED: (5, 0)}}, id="a message that no committed batch holds"),
        pytest.param({"is_active": True}, id="a query that works"),
        pytest.param({"is_empty": False}, id="a retry that waits"),
        pytest.param({"passes": 1}, id="a pass in between, which may have sent to RETRY again"),
    ],
)
def test_it_is_not_idle_while_something_waits(settings: Settings, waits: dict[str, Any]) -> None:
    idle, _asked = _look(settings, **waits)
    assert not idle


def test_a_retry_that_is_not_due_is_all_that_may_be_left(settings: Settings) -> None:
    assert _look(settings, is_empty=False, asked=only_retries_wait)[0]
    others: list[dict[str, Any]] = [
        {"newest": {MATCHED: (5, 0)}},
        {"is_active": True},
        {"is_asleep": False},
        {"passes": 1},
    ]
    assert not any(_look(settings, **other, asked=only_retries_wait)[0] for other in others)


def test_requests_that_were_processed_without_a_batch_no_longer_wait(settings: Settings) -> None:
    newest = {MATCHED: (5, 3)}
    assert not _look(settings, newest=newest, reached={f"{MATCHED}-partition-0": (5, 2)})[0]
    assert _look(settings, newest=newest, reached={f"{MATCHED}-partition-0": (5, 3)})[0]


def test_a_query_that_was_given_up_delays_nothing_and_is_not_forgotten(settings: Settings) -> None:
    assert _look(settings, newest={MATCHED: (5, 3)}, given_up=(MATCHED,))[0]


@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_request_in_a_lane_waits_too(settings: Settings, *, is_quiet: bool) -> None:
    due = SimpleNamespace(passes=0, is_empty=lambda: True, is_asleep=lambda: True)
    queries = SimpleNamespace(running={}, given_up={}, reached={})
    lanes = cast("Any", SimpleNamespace(is_quiet=is_quiet))
    for asked in (is_idle, only_retries_wait):
        assert asked(settings, cast("Any", None), cast("Any", queries), cast("Any", due), lanes) is is_quiet


def test_a_lane_that_could_not_be_watched_is_stuck(settings: Settings) -> None:
    queries = SimpleNamespace(given_up={}, reached={})
    lane = "persistent://acme/ledger-deletion/__ledger_deletion"
    lanes = cast("Any", SimpleNamespace(given_up={f"{lane}-partition-0": "busy"}))
    failed = stuck(settings, cast("Any", None), cast("Any", queries), lanes)
    assert [(query.topics, str(why)) for query, why in failed.items()] == [((lane,), "busy")]
