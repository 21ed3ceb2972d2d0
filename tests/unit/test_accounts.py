"""Accounts by position: what was read has a receipt or waits, to the entry, and a gap is found wherever it is."""

import json
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from streaming import columns as c
from streaming.accounted import Accounted
from streaming.accounts import Account, Accounts, Look, accounts_of, look, missing_of, vanished
from streaming.adapters.pulsar_admin import PulsarAdmin
from streaming.care import Care
from streaming.config import load
from streaming.errors import UnavailableError
from streaming.metrics import Metrics
from streaming.tables import table_path

SOURCE = "persistent://pulsar/system/d-partition-0"


@pytest.mark.parametrize(
    ("committed", "read", "unread"),
    [
        pytest.param((-1, -1), {5: 0, 6: 0}, {5: 3, 6: 2}, id="nothing read yet"),
        pytest.param((5, 1), {5: 2, 6: 0}, {5: 3, 6: 2}, id="within the first ledger"),
        pytest.param((5, 2), {5: 3, 6: 0}, {6: 2}, id="at its end"),
        pytest.param((6, -1), {5: 3, 6: 0}, {6: 2}, id="before the second"),
        pytest.param((6, 1), {5: 3, 6: 2}, {}, id="everything"),
        pytest.param((7, 0), {5: 3, 6: 2}, {}, id="behind everything"),
    ],
)
def test_read_is_what_lies_up_to_the_committed_position(
    committed: tuple[int, int], read: dict[int, int], unread: dict[int, int]
) -> None:
    seen = look([(5, 3), (6, 2)], committed)
    assert (seen.read, seen.unread) == (read, unread)


def test_an_entry_without_receipt_is_missing_wherever_it_stands() -> None:
    seen = look([(5, 3), (6, 2)], (6, 0))
    assert missing_of(seen, {5: {0, 1, 2}, 6: {0}}) == []
    assert missing_of(seen, {5: {0, 2}, 6: {0}}) == [(5, 1)]
    assert missing_of(seen, {5: {0, 1, 2}, 6: {1}}) == [(6, 0)]
    assert missing_of(seen, {}) == [(5, 0), (5, 1), (5, 2), (6, 0)]


@pytest.mark.parametrize(
    ("seen", "known", "expected"),
    [
        pytest.param(Look(stored={5: 3}), {}, [], id="still stored"),
        pytest.param(Look(stored={6: 1}), {5: {0, 1, 2}}, [], id="read before it was trimmed"),
        pytest.param(Look(stored={6: 1}), {5: {0, 1}}, [5], id="trimmed with one message unread"),
        pytest.param(Look(), {}, [5], id="the topic is empty"),
    ],
)
def test_a_ledger_that_went_with_unread_messages_is_noticed(
    seen: Look, known: dict[int, set[int]], expected: list[int]
) -> None:
    assert vanished({5: 3}, seen, known) == expected


def _write(state: Path, table: str, positions: list[tuple[int, int, int]], source: str = SOURCE) -> None:
    schema = c.WAITING if table == "waiting" else c.RECEIPT
    rows = [
        dict.fromkeys(schema.names)
        | {c.SOURCE: source, c.POSITION_LEDGER: ledger, c.POSITION_ENTRY: entry, c.POSITION_BATCH: index}
        for ledger, entry, index in positions
    ]
    write_deltalake(table_path(str(state), table), pa.Table.from_pylist(rows, schema=schema), mode="append")


def test_receipts_and_waiting_retries_account_for_a_message_and_holes_in_a_batch_do_not(tmp_path: Path) -> None:
    _write(tmp_path, "receipts", [(5, 0, -1), (5, 0, -1), (5, 1, 0), (5, 1, 1), (5, 2, 1), (6, 3, -1)])
    _write(tmp_path, "receipts", [(5, 4, -1)], source="another")
    _write(tmp_path, "waiting", [(5, 3, -1), (6, 3, -1)])

    accounted = Accounted(str(tmp_path), SOURCE)

    assert accounted.entries() == {5: {0, 1, 3}, 6: {3}}
    assert (5, 2, 1) in accounted.messages()
    assert (5, 2, 0) not in accounted.messages()


def test_nothing_is_accounted_for_where_nothing_was_done(tmp_path: Path) -> None:
    assert Accounted(str(tmp_path), SOURCE).entries() == {}


def test_every_kind_of_gap_is_said_and_shown() -> None:
    whole = Account(SOURCE, 10, 2)
    accounts = Accounts((whole, Account("other", 3, 0, missing=((5, 1),), trimmed=(4,))), 7, ("1:2:3",))
    assert len(accounts.gaps) == 3
    assert "5:1" in accounts.gaps[0]
    assert Accounts((whole,), 7).gaps == []
    assert "10 entries read" in Accounts((whole,), 7).text


class _Topics:
    def __init__(self, *existing: str) -> None:
        self.existing = existing

    def partitions(self, topic: str) -> int | None:
        return 4 if topic in self.existing else None


@pytest.mark.parametrize(
    ("existing", "trimmed", "remembered"),
    [
        pytest.param((), (5,), {}, id="gone, with what was unread"),
        pytest.param(("persistent://acme/reaper/d",), (), {5: 3}, id="there, and nobody reads it now"),
    ],
)
def test_what_was_unread_in_a_topic_that_is_read_no_more_is_not_forgotten(
    tmp_path: Path, existing: tuple[str, ...], trimmed: tuple[int, ...], remembered: dict[int, int]
) -> None:
    settings = load(None).model_copy(
        update={
            "state": load(None).state.model_copy(update={"dir": str(tmp_path)}),
            "checkpoints": load(None).checkpoints.model_copy(update={"dir": str(tmp_path / "checkpoints")}),
        }
    )
    partition = "persistent://acme/reaper/d-partition-2"
    (tmp_path / "accounts.json").write_text(json.dumps({partition: {"5": 3}}))
    accounts = accounts_of(settings, cast("PulsarAdmin", _Topics(*existing)), 0, remembers=True)
    assert [(one.partition, one.trimmed) for one in accounts.partitions] == ([(partition, trimmed)] if trimmed else [])
    known = json.loads((tmp_path / "accounts.json").read_text())
    assert known == ({partition: {"5": 3}} if remembered else {})


class _Look:
    def __init__(self) -> None:
        self.looks = 0
        self.tidied = 0
        self.now_s = 0.0
        self.answer: Accounts | Exception = Accounts((), 0)

    def accounts(self) -> Accounts:
        self.looks += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def tidy(self) -> None:
        self.tidied += 1


def test_accounts_are_looked_at_at_the_start_and_every_five_minutes() -> None:
    seen, metrics = _Look(), Metrics()
    care = Care(seen.tidy, seen.accounts, metrics, monotonic=lambda: seen.now_s)
    looks = []
    for now_s in (0, 1, 299, 300, 599, 600):
        seen.now_s = now_s
        care.turn()
        looks.append(seen.looks)
    assert looks == [1, 1, 1, 2, 2, 3]
    assert seen.tidied == 0


def test_a_gap_is_an_alarm_and_a_look_that_fails_is_none(caplog: pytest.LogCaptureFixture) -> None:
    seen, metrics = _Look(), Metrics()
    care = Care(seen.tidy, seen.accounts, metrics, monotonic=lambda: seen.now_s)
    seen.answer = UnavailableError("the broker is away")
    assert care.account() == []
    assert "ALARM" not in caplog.text
    seen.answer = Accounts((Account(SOURCE, 3, 0, missing=((5, 1),)),), 0)
    assert len(care.account()) == 1
    assert "ALARM" in caplog.text
    assert metrics.registry.get_sample_value("ledger_deletion_unaccounted", {"what": "messages"}) == 1
    seen.answer = Accounts((), 0)
    care.account()
    assert metrics.registry.get_sample_value("ledger_deletion_unaccounted", {"what": "messages"}) == 0
