"""Dead letters: what is read off one, which are meant, how they are added up, and what is kept about them on disk."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streaming.adapters.pulsar.read import StoredMessage
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.dlq import replay as work
from streaming.dlq.letters import AGES, NO_OWNER, OTHER_OWNERS, DeadLetter, DeadLetterFilters, Groups, age_of, filters
from streaming.dlq.replay import REPLAY_ID, ReplayReport
from streaming.errors import ConfigError
from streaming.state.settlements import (
    REPLAYED,
    REPLAYING,
    WAITING,
    WRITTEN_OFF,
    PlanWriter,
    ReplayPlan,
    SettlementFolder,
)
from tests.builders import DAY_MS, HOUR_MS, NOW_MS, data_request
from udfs import columns as c
from udfs.records import Reason
from udfs.wire import decode, encode

DLQ = "persistent://pulsar/system/__ledger_deletion-DLQ-partition-2"
REQUESTS = "persistent://pulsar/system/__ledger_deletion"


def _letter(
    entry: int = 0, *, payload: bytes | None = None, properties: dict[str, str] | None = None, age_ms: int = 0
) -> DeadLetter:
    body = encode(data_request()) if payload is None else payload
    about = {"REASON": "IN_USE: listed"} if properties is None else properties
    message = StoredMessage(DLQ, 7, entry, -1, NOW_MS - age_ms, "key", body, about)
    return DeadLetter(message, decode(body))


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        pytest.param({"REASON": "IN_USE: listed"}, "IN_USE", id="with a detail"),
        pytest.param({"REASON": "IN_USE"}, "IN_USE", id="without a detail"),
        pytest.param({}, "(none)", id="another client's dead letter"),
        pytest.param({"REASON": "PWNED: x"}, "(other)", id="no reason of ours"),
    ],
)
def test_a_reason_is_one_of_ours_or_says_that_it_is_not(properties: dict[str, str], expected: str) -> None:
    assert _letter(properties=properties).reason == expected


@pytest.mark.parametrize(
    ("chosen", "is_meant"),
    [
        pytest.param(DeadLetterFilters(), True, id="nothing chosen"),
        pytest.param(DeadLetterFilters(ids=frozenset({"7:0:2"})), True, id="own id"),
        pytest.param(DeadLetterFilters(ids=frozenset({"1:1:1"})), True, id="the original's id"),
        pytest.param(DeadLetterFilters(ids=frozenset({"7:0:1"})), False, id="another partition's id"),
        pytest.param(DeadLetterFilters(reason="IN_USE"), True, id="reason"),
        pytest.param(DeadLetterFilters(reason="NOT_JSON"), False, id="another reason"),
        pytest.param(DeadLetterFilters(owner="persistent://public/default/orders"), True, id="topic"),
        pytest.param(DeadLetterFilters(owner="public/default"), True, id="namespace"),
        pytest.param(DeadLetterFilters(owner="public"), True, id="tenant"),
        pytest.param(DeadLetterFilters(owner="pub"), False, id="beginning of a tenant"),
        pytest.param(DeadLetterFilters(owner="public/default/orders"), False, id="neither topic nor namespace"),
        pytest.param(DeadLetterFilters(older_than_ms=HOUR_MS), True, id="just old enough"),
        pytest.param(DeadLetterFilters(older_than_ms=HOUR_MS + 1), False, id="a millisecond too young"),
        pytest.param(DeadLetterFilters(reason="IN_USE", owner="other"), False, id="one of two"),
    ],
)
def test_filters_mean_a_letter_when_all_of_them_do(chosen: DeadLetterFilters, is_meant: bool) -> None:
    letter = _letter(properties={"REASON": "IN_USE", "ORIGIN_MESSAGE_ID": "1:1:1"}, age_ms=HOUR_MS)
    assert chosen.mean(letter, NOW_MS) is is_meant


def test_an_owner_never_means_what_is_no_request() -> None:
    letter = _letter(payload=b"\xff")
    assert letter.owner == NO_OWNER
    assert not DeadLetterFilters(owner="public").mean(letter, NOW_MS)


def test_filters_take_a_topic_in_any_form_and_refuse_what_is_no_reason() -> None:
    assert filters((), "", "public/default/persistent/a", 0).owner == "persistent://public/default/a"
    with pytest.raises(ConfigError, match="no such reason"):
        filters((), "in use", "", 0)
    with pytest.raises(ConfigError, match="--owner"):
        filters((), "", "persistent://", 0)


@pytest.mark.parametrize(
    ("age_ms", "name"), [(0, "< 1 h"), (HOUR_MS - 1, "< 1 h"), (HOUR_MS, "1-24 h"), (8 * DAY_MS, "> 7 d")]
)
def test_ages_have_classes(age_ms: int, name: str) -> None:
    assert age_of(age_ms) == name
    assert name in dict(AGES)


def test_groups_add_up_what_is_alike() -> None:
    groups = Groups(NOW_MS)
    for entry, age_ms in enumerate((5, 9, 2)):
        groups.add(_letter(entry, age_ms=age_ms), WAITING)
    groups.add(_letter(4), REPLAYED)
    replayed, waiting = groups.sorted()
    assert (waiting.messages, NOW_MS - waiting.oldest_ms, NOW_MS - waiting.newest_ms) == (3, 9, 2)
    assert (replayed.state, replayed.messages) == (REPLAYED, 1)


def test_groups_do_not_grow_with_invented_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.dlq.letters._GROUPS", 2)
    groups = Groups(NOW_MS)
    for number in range(5):
        groups.add(_letter(payload=encode(data_request(topic=f"t/ns/persistent/x{number}"))), WAITING)
    most = groups.sorted()[0]
    assert (most.owner, most.messages) == (OTHER_OWNERS, 3)
    assert len(groups.known) == 3


def _row(entry: int) -> dict[str, Any]:
    place = dict(zip(c.POSITION, (DLQ, 7, entry, -1), strict=True))
    return {**place, c.MESSAGE_KEY: "k", c.PAYLOAD: b"\x00\xff", c.MESSAGE_PROPERTIES: [("a", "b")]}


def _plan(folder: SettlementFolder, *entries: int) -> ReplayPlan:
    with folder.plan(NOW_MS, REQUESTS, {f"{REQUESTS}-partition-0": (5, -1)}) as writer:
        writer.add([_row(entry) for entry in entries])
    return writer.plan


def _add_and_fail(writer: PlanWriter) -> None:
    writer.add([_row(0)])
    raise KeyError


def test_a_plan_counts_from_the_moment_it_is_whole(tmp_path: Path) -> None:
    folder = SettlementFolder(str(tmp_path))
    with pytest.raises(KeyError), folder.plan(NOW_MS, REQUESTS, {}) as writer:
        _add_and_fail(writer)
    assert folder.unfinished() == []
    assert folder.settled().of((DLQ, 7, 0, -1)) == WAITING
    assert list((tmp_path / "dead-letters").iterdir()) == []


def test_a_plan_is_read_back_as_written_until_it_is_finished(tmp_path: Path) -> None:
    folder = SettlementFolder(str(tmp_path))
    plan = _plan(folder, 0, 1)
    assert folder.unfinished() == [plan]
    assert list(folder.rows(plan)) == [_row(0), _row(1)]
    assert folder.settled().of((DLQ, 7, 1, -1)) == REPLAYING

    folder.finish(plan, {0: "9:0:0", 1: "9:1:0"})

    assert folder.unfinished() == []
    assert folder.settled().of((DLQ, 7, 1, -1)) == REPLAYED
    assert folder.settled().of((DLQ, 7, 2, -1)) == WAITING
    assert folder.published_as((DLQ, 7, 1, -1)) == [(plan.run, "9:1:0")]


def test_write_offs_are_all_or_none(tmp_path: Path) -> None:
    folder = SettlementFolder(str(tmp_path))
    receipt = {**dict(zip(c.POSITION, (DLQ, 7, 3, -1), strict=True)), c.REASON: str(Reason.WRITTEN_OFF)}

    def cut_short() -> Any:
        yield [receipt]
        raise ConfigError("no such id")

    with pytest.raises(ConfigError):
        folder.write_off(NOW_MS, cut_short())
    assert list(folder.written_off()) == []

    assert folder.write_off(NOW_MS, [[receipt], [receipt]]) == 2
    assert [row[c.REASON] for row in folder.written_off()] == [Reason.WRITTEN_OFF] * 2
    assert folder.settled().of((DLQ, 7, 3, -1)) == WRITTEN_OFF


def test_what_was_done_is_forgotten_with_age_but_never_a_replay_that_is_not_finished(tmp_path: Path) -> None:
    folder = SettlementFolder(str(tmp_path))
    rows = [{c.SOURCE: DLQ, c.POSITION_LEDGER: 7, c.POSITION_ENTRY: 0, c.POSITION_BATCH: -1}]
    for at_ms in (1_000, 2_000, 3_000):
        folder.write_off(at_ms, [rows])
        with folder.plan(at_ms, REQUESTS, {}) as writer:
            pass
        if at_ms != 1_000:
            folder.finish(writer.plan, {})
    assert folder.expire(1_000) == 0
    assert folder.expire(2_000) == 1
    assert folder.expire(3_000) == 2
    assert len(folder.unfinished()) == 1
    assert folder.expire(3_000) == 0
    assert folder.expire(3_001) == 2
    assert len(list((tmp_path / "dead-letters").iterdir())) == 1


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Two request topics, three dead letters without receipts; the newest is being replayed."""
    file = tmp_path / "config.toml"
    file.write_text(
        f'[topics]\nrequests = ["{REQUESTS}", "{REQUESTS}-too"]\ntrusted_tenants = ["pulsar"]\n'
        f'[state]\ndir = "{tmp_path}"\n'
    )
    letters = [_letter(entry) for entry in range(3)]
    _plan(SettlementFolder(str(tmp_path)), 2, 7, 8)
    monkeypatch.setattr(
        work, "selected", lambda _s, _c, _now, known: ((each, known.of(each.place)) for each in letters)
    )
    return load(file)


def test_a_dry_write_off_counts_what_would_be_written_off_and_publishes_nothing(settings: Settings) -> None:
    report = work.write_off(settings, DeadLetterFilters(), "junk", dry_run=True)
    assert report == ReplayReport(settled=2, skipped={REPLAYING: 1})
    assert work.is_interrupted(settings)


def test_a_dry_replay_counts_what_its_topic_does_not_hold_yet(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plan,) = SettlementFolder(settings.state.dir).unfinished()
    ids = (f"{plan.run}/0", f"{plan.run}/2", f"{plan.run}/99", "replay-1-another/1")
    stored = [
        StoredMessage(REQUESTS, 5, entry, -1, NOW_MS, "", b"", {REPLAY_ID: each}) for entry, each in enumerate(ids)
    ]
    monkeypatch.setattr(work, "read", lambda *_args, **_named: iter(stored))
    admin = SimpleNamespace(last_positions=lambda _topic: {}, internal_stats=lambda _topic: {"ledgers": []})
    monkeypatch.setattr(work, "admin_for", lambda _settings: contextlib.nullcontext(admin))

    report = work.replay(settings, DeadLetterFilters(), to=f"{REQUESTS}-too", dry_run=True)
    assert report == ReplayReport(settled=2, resumed=1, to={REQUESTS: 1, f"{REQUESTS}-too": 2}, skipped={REPLAYING: 1})
