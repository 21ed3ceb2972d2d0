"""Entries that are requested from the admin API: returned, given up, or an outage."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Event, Lock
from types import SimpleNamespace

import pytest

from streaming.adapters.pulsar.http import Body
from streaming.adapters.pulsar.readers import admin_entries, span_reader
from streaming.adapters.pulsar.readers.control_entries import ControlEntries
from streaming.adapters.pulsar.readers.entries import fallback_entries
from streaming.errors import RefusedError, UnavailableError
from tests.unit.adapters.pulsar.frame_broker import Partition, serving, settings_for
from tests.unit.adapters.pulsar.stored_entries import LAST, ORDINARY, STORED, TOPIC, Admin, body, read_all
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import Ensembles, InternalStats, Position
from udfs.undelivered import Undeliverable

FAILS = Body(500, {}, b"", True)
FAILS_FOR_NOW = Body(503, {}, b"", True)


def test_an_entry_that_is_not_returned_is_given_up_only_if_the_broker_answers() -> None:
    with serving(Partition(STORED, LAST)) as partition:
        admin = Admin({(8, 0): Body(500, {}, b"", True)})
        assert read_all(partition, admin, [EntrySpan(7, 1, 1), EntrySpan(8, 0, 0)]) == [
            ((7, 1), b"", Undeliverable.NOT_SHOWN),
            ((8, 0), b"", Undeliverable.NOT_SHOWN),
        ]
        with pytest.raises(UnavailableError, match="no broker answers"):
            read_all(partition, Admin(is_up=False), [EntrySpan(7, 1, 1)])


def test_a_passed_over_entry_is_requested_once_and_an_entry_that_may_come_twice() -> None:
    with serving(Partition({**STORED, LAST: None}, (8, 1))) as partition:
        admin = Admin({(8, 0): FAILS, (8, 1): body(b"request"), LAST: FAILS})
        read_all(partition, admin, [EntrySpan(8, 0, 0)])
        assert admin.requested == [(8, 0)]
        read_all(partition, admin, [EntrySpan(8, 2, 2)])
        assert admin.requested == [(8, 0), LAST, LAST]
        read_all(partition, admin, [EntrySpan(8, 0, 2)])
        assert admin.requested[3:] == [(8, 0), LAST, LAST], "independent of earlier entries"


def test_a_request_after_an_open_transaction_survives_one_slow_answer() -> None:
    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(12)), None)

    @dataclass
    class SlowAtFirst(Admin):
        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            is_first = position not in self.requested
            answer = super().entry(partition, position, most_bytes, patience_seconds)
            return None if is_first and position == (8, 11) else answer

    with serving(Partition({**STORED, **stored}, (7, 2))) as partition:
        admin = SlowAtFirst({(8, 11): body(b"request", txn_uncommitted="true")})
        assert read_all(partition, admin, [EntrySpan(8, 0, 11)])[-1] == ((8, 11), b"request", None)


def test_second_requests_for_many_withheld_entries_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_entries, "_RETRIES_SECONDS", 0.05)
    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(40)), None)

    @dataclass
    class Slow(Admin):
        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            Event().wait(0.02)
            return super().entry(partition, position, most_bytes, patience_seconds)

    with serving(Partition({**STORED, **stored}, (7, 2))) as partition:
        admin = Slow()
        assert len(read_all(partition, admin, [EntrySpan(8, 0, 39)])) == 40
    assert 40 < len(admin.requested) <= 49


def test_many_unreadable_entries_do_not_delay_later_entries() -> None:
    stored: dict[Position, bytes | None] = dict.fromkeys(((7, number) for number in range(50)), None)
    with serving(Partition({**stored, (7, 50): ORDINARY}, (7, 50))) as partition:
        admin = Admin(dict.fromkeys(stored, FAILS))
        read = read_all(partition, admin, [EntrySpan(7, 0, 50)])
        assert len(read) == 51
        assert read[-1] == ((7, 50), b"request", None)
        assert len(admin.requested) == 5


def test_entries_that_may_come_are_requested_regardless_of_earlier_failures() -> None:
    stored: dict[Position, bytes | None] = dict.fromkeys(((7, number) for number in range(8)), None)
    with serving(Partition({**stored, (7, 8): ORDINARY, (7, 9): None}, (7, 8))) as partition:
        admin = Admin({(7, 9): body(b"request", txn_uncommitted="true")})
        assert read_all(partition, admin, [EntrySpan(7, 0, 9)])[-1] == ((7, 9), b"request", None)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (429, UnavailableError),
        (502, UnavailableError),
        (503, UnavailableError),
        (504, UnavailableError),
        (401, RefusedError),
        (403, RefusedError),
    ],
)
@pytest.mark.parametrize("withheld", [(7, 1), (8, 5)], ids=["passed over", "may come"])
def test_an_answer_that_does_not_concern_the_entry_gives_no_entry_up(
    withheld: Position, status: int, error: type[Exception]
) -> None:
    admin = Admin({withheld: Body(status, {}, b"", True)})
    stored: dict[Position, bytes | None] = {**STORED, (8, 5): None}
    with serving(Partition(stored, LAST)) as partition, pytest.raises(error, match=str(status)):
        read_all(partition, admin, [EntrySpan(withheld[0], withheld[1], withheld[1])])


BEHIND_A_PROXY = InternalStats(ledgers=((7, 1), (8, 6)), cursors={}, pending_adds=0)


@dataclass
class Proxied(Admin):
    """An admin API whose proxy answers the first requests for one entry with an error."""

    withheld: Position = (7, 1)
    status: int = 502
    times: int = 1 << 30

    def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
        answer = super().entry(partition, position, most_bytes, patience_seconds)
        return Body(self.status, {}, b"", True) if position == self.withheld and self._is_left() else answer

    def _is_left(self) -> bool:
        self.times -= 1
        return self.times >= 0


@pytest.mark.parametrize("status", [502, 504])
@pytest.mark.parametrize("withheld", [(7, 1), (8, 5)], ids=["passed over", "may come"])
def test_an_entry_that_a_proxy_can_not_forward_is_given_up_if_it_forwards_others(
    withheld: Position, status: int
) -> None:
    admin = Proxied({(7, 0): body(b"other")}, stats=BEHIND_A_PROXY, withheld=withheld, status=status)
    with serving(Partition({**STORED, (8, 5): None}, LAST)) as partition:
        assert read_all(partition, admin, [EntrySpan(*withheld, withheld[1])]) == [
            (withheld, b"", Undeliverable.NOT_SHOWN)
        ]


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_request_survives_a_move_of_its_topic(status: int) -> None:
    answers = {(7, 0): body(b"other"), (8, 5): body(b"request", txn_uncommitted="true")}
    for times in (1, 2):
        admin = Proxied(answers, stats=BEHIND_A_PROXY, withheld=(8, 5), status=status, times=times)
        with serving(Partition({**STORED, (8, 5): None}, LAST)) as partition:
            assert read_all(partition, admin, [EntrySpan(8, 5, 5)]) == [((8, 5), b"request", None)]


@pytest.mark.parametrize("withheld", [(7, 1), (8, 5)], ids=["passed over", "may come"])
def test_after_a_503_only_the_caller_gives_an_entry_up(withheld: Position) -> None:
    admin = Proxied({(7, 0): body(b"other")}, stats=BEHIND_A_PROXY, withheld=withheld, status=503)
    with serving(Partition({**STORED, (8, 5): None}, LAST)) as partition:
        with pytest.raises(UnavailableError, match=f"{admin_entries.WITHHELD} 503"):
            read_all(partition, admin, [EntrySpan(*withheld, withheld[1])])
        controls = ControlEntries(admin, TOPIC, gives_up=True)
        read = fallback_entries(settings_for(partition), admin, TOPIC, [EntrySpan(*withheld, withheld[1])], controls)
        assert [message.why for _position, message in read] == [Undeliverable.NOT_SHOWN]


def test_after_too_many_requests_no_entry_is_given_up() -> None:
    admin = Proxied({(7, 0): body(b"other")}, stats=BEHIND_A_PROXY, status=429)
    with serving(Partition(STORED, LAST)) as partition:
        read = fallback_entries(
            settings_for(partition), admin, TOPIC, [EntrySpan(7, 1, 1)], ControlEntries(admin, TOPIC, gives_up=True)
        )
        with pytest.raises(UnavailableError, match="429"):
            list(read)


def test_silent_control_entries_are_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_entries, "_RETRIES_SECONDS", 0.0)
    monkeypatch.setattr(span_reader, "_READER_TIMEOUT_SECONDS", 0.2)
    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(400)), None)
    ours = "persistent://t/ns/ours-partition-0"
    waited: list[float] = []

    @dataclass
    class Silent(Admin):
        """Returns an entry of our own topic at once, and no other entry before the timeout."""

        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            if partition == ours:
                return body(b"")
            waited.append(patience_seconds)
            return None

    with serving(Partition({**STORED, **stored}, (7, 2))) as partition:
        admin = Silent(stats=InternalStats(ledgers=((5, 9), (6, 9), (7, 3), (8, 400)), cursors={}, pending_adds=0))
        controls = ControlEntries(admin, TOPIC, [ours])
        read = [*fallback_entries(settings_for(partition), admin, TOPIC, [EntrySpan(8, 0, 399)], controls)]
    assert len(read) == 400
    own = 5 * 3.0 + 45 * 1.0 + 350 * 0.25
    assert sum(waited) < own + 4 * 16 * (0.25 + 1.0 + 3.0), "control entries are requested once"


def test_the_timeouts_become_shorter_with_each_failure() -> None:
    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(80)), None)
    patience: list[float] = []

    @dataclass
    class Silent(Admin):
        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            patience.append(patience_seconds)
            return super().entry(partition, position, most_bytes, patience_seconds)

    with serving(Partition({**STORED, **stored}, (7, 2))) as partition:
        read_all(partition, Silent(), [EntrySpan(8, 0, 79)])
    assert sorted(set(patience)) == [0.25, 30 / 80, 1, 3, 100], "30 / 80 and 100 for the check at the end of the read"


TWO_LEDGERS = InternalStats(ledgers=((7, 3), (8, 3)), cursors={}, pending_adds=0)


def test_without_control_entries_only_the_caller_gives_entries_up() -> None:
    stored: dict[Position, bytes | None] = {**STORED, (8, 1): None, LAST: None}
    with serving(Partition(stored, (8, 0))) as partition:
        admin = Admin(stats=TWO_LEDGERS)
        with pytest.raises(UnavailableError, match=admin_entries.NOTHING_SHOWN):
            read_all(partition, admin, [EntrySpan(8, 1, 2)])
        read = fallback_entries(
            settings_for(partition), admin, TOPIC, [EntrySpan(8, 1, 2)], ControlEntries(admin, TOPIC, gives_up=True)
        )
        assert [message.why for _position, message in read] == [Undeliverable.NOT_SHOWN] * 2


@pytest.mark.parametrize("other", [(8, 0), (7, 2)], ids=["of its ledger", "of another ledger"])
def test_an_entry_is_given_up_if_the_broker_returns_a_control_entry(other: Position) -> None:
    stored: dict[Position, bytes | None] = {**STORED, LAST: None}
    with serving(Partition(stored, (8, 1))) as partition:
        admin = Admin({other: body(b"request")}, stats=TWO_LEDGERS)
        assert read_all(partition, admin, [EntrySpan(8, 2, 2)]) == [(LAST, b"", Undeliverable.NOT_SHOWN)]


@pytest.mark.parametrize("status", [404, 409, 412, 500])
def test_a_status_of_every_entry_gives_no_entry_up(status: int) -> None:
    fails = Body(status, {}, b"", True)
    with serving(Partition({**STORED, LAST: None}, (8, 1))) as partition:
        admin = Admin({(8, 1): fails, LAST: fails, (8, 0): fails, (7, 2): fails, (7, 0): fails}, stats=TWO_LEDGERS)
        with pytest.raises(UnavailableError, match=admin_entries.NOTHING_SHOWN):
            read_all(partition, admin, [EntrySpan(8, 2, 2)])


def test_a_request_after_many_unreadable_entries_gets_the_full_timeout_from_a_slow_broker() -> None:
    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(61)), None)

    @dataclass
    class Slow(Admin):
        """Answers only requests with a timeout of more than a second."""

        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            answer = super().entry(partition, position, most_bytes, patience_seconds)
            return answer if patience_seconds > 1 else None

    with serving(Partition({**STORED, **stored}, (7, 2))) as partition:
        answers = {(8, 60): body(b"request", txn_uncommitted="true"), (7, 0): body(b"other")}
        admin = Slow(answers, stats=InternalStats(ledgers=((7, 1), (8, 61)), cursors={}, pending_adds=0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(admin_entries, "_RETRIES_SECONDS", 0.0)
            assert read_all(partition, admin, [EntrySpan(8, 0, 60)])[-1] == ((8, 60), b"request", None)


def _storage_error(message: str) -> Body:
    """Return what Pulsar 4.0.8 answers if no bookie returns an entry."""
    reason = (
        f"\n --- An unexpected error occurred in the server ---\n\nMessage: {message}\n\nStacktrace:\n\n"
        f"org.apache.bookkeeper.mledger.ManagedLedgerException: {message}\n"
    )
    return Body(500, {}, json.dumps({"reason": reason}, separators=(",", ":")).encode(), True)


def _stats(*ledgers: Position) -> InternalStats:
    return InternalStats(ledgers=ledgers, cursors={}, pending_adds=0)


AWAY = _storage_error("Bookie handle is not available error code: -8")
OUTAGES = [
    pytest.param(AWAY, id="bookie killed"),
    pytest.param(_storage_error("Bookie entry is damaged error code: -5"), id="one damaged, another may be killed"),
    pytest.param(_storage_error("Bookie operation timeout error code: -23"), id="bookie hangs"),
    pytest.param(Body(500, {}, b'{"reason":"Bookie operation timeout error code: -23"}', True), id="message alone"),
]
LOST = _storage_error("No such entry error code: -13")


@pytest.mark.parametrize("gives_up", [False, True])
@pytest.mark.parametrize("stats", [_stats((8, 3)), _stats((8, 3), (9, 1))])
@pytest.mark.parametrize("answer", OUTAGES)
def test_no_entry_is_given_up_while_its_bookies_do_not_answer(
    answer: Body, stats: InternalStats, gives_up: bool
) -> None:
    stored: dict[Position, bytes | None] = {**STORED, LAST: None}
    admin = Admin({(8, 1): body(b"from the cache"), (9, 0): body(b"of another bookie"), LAST: answer}, stats=stats)
    with serving(Partition(stored, (8, 1))) as partition:
        controls = ControlEntries(admin, TOPIC, gives_up=gives_up)
        read = fallback_entries(settings_for(partition), admin, TOPIC, [EntrySpan(8, 2, 2)], controls)
        with pytest.raises(
            UnavailableError, match=r"can't read an entry from storage: Bookie .* error code: -\d+$"
        ) as no:
            list(read)
    assert admin_entries.NOTHING_SHOWN not in str(no.value)
    assert admin_entries.WITHHELD not in str(no.value), "no caller gives the entry up, however long the outage lasts"


def test_the_only_entry_of_a_topic_is_not_given_up_while_the_bookie_is_away() -> None:
    admin = Admin({(8, 0): AWAY}, stats=_stats((8, 1)))
    with (
        serving(Partition({(8, 0): None, (8, 1): ORDINARY}, (8, 1))) as partition,
        pytest.raises(UnavailableError, match="code: -8"),
    ):
        read_all(partition, admin, [EntrySpan(8, 0, 0)])


def test_an_entry_that_bookies_have_lost_is_given_up_by_the_caller() -> None:
    admin = Admin({LAST: LOST, (8, 1): body(b"other")}, stats=TWO_LEDGERS)
    with serving(Partition({**STORED, LAST: None}, (8, 1))) as partition:
        with pytest.raises(UnavailableError, match=f"{admin_entries.WITHHELD} 500: No such entry"):
            read_all(partition, admin, [EntrySpan(8, 2, 2)])
        controls = ControlEntries(admin, TOPIC, gives_up=True)
        read = fallback_entries(settings_for(partition), admin, TOPIC, [EntrySpan(8, 2, 2)], controls)
        assert [message.why for _position, message in read] == [Undeliverable.NOT_SHOWN]


def test_a_senders_text_is_no_storage_error() -> None:
    text = r'{"reason":"\n --- Message: \"bookie error code: -8\n\nStacktrace:\n\njava.io.IOException: error code: -8"}'
    admin = Admin({LAST: Body(500, {}, text.encode(), True), (8, 1): body(b"other")}, stats=TWO_LEDGERS)
    with serving(Partition({**STORED, LAST: None}, (8, 1))) as partition:
        assert read_all(partition, admin, [EntrySpan(8, 2, 2)]) == [(LAST, b"", Undeliverable.NOT_SHOWN)]


@dataclass
class Hanging(Admin):
    """A broker whose bookie hangs: no answer before its own timeout, and a control entry from the cache at first."""

    cached: set[Position] = field(default_factory=set)
    at_last: Body | None = None  # the answer to a patient request

    def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
        if position in self.cached:
            self.cached.discard(position)
            return body(b"from the cache")
        super().entry(partition, position, most_bytes, patience_seconds)
        return self.at_last if patience_seconds > 30 else None

    def internal_stats(self, partition: str) -> InternalStats:
        if partition != TOPIC:
            raise UnavailableError(f"{partition} does not exist")
        return self.stats


@pytest.mark.parametrize(
    ("withheld", "stats"),
    [
        pytest.param((8, 0), TWO_LEDGERS, id="passed over, and a control in the cache"),
        pytest.param(LAST, TWO_LEDGERS, id="may come, and a control in the cache"),
        pytest.param((8, 0), _stats((8, 1)), id="no control"),
    ],
)
def test_an_entry_without_an_answer_is_given_up_only_if_its_bookies_answer(
    withheld: Position, stats: InternalStats
) -> None:
    stored: dict[Position, bytes | None] = {**STORED, LAST: None}
    timeout = _storage_error("Bookie operation timeout error code: -23")
    for at_last, error in ((timeout, "code: -23"), (body(b"late"), "no answer before")):
        admin = Hanging(stats=stats, cached={(8, 1), (7, 2)}, at_last=at_last)
        with serving(Partition(stored, (8, 1))) as partition, pytest.raises(UnavailableError, match=error):
            read_all(partition, admin, [EntrySpan(8, withheld[1], withheld[1])])
    admin = Hanging(stats=stats, cached={(8, 1), (7, 2)})
    with serving(Partition(stored, (8, 1))) as partition:
        read = read_all(partition, admin, [EntrySpan(8, withheld[1], withheld[1])])
    assert read == [(withheld, b"", Undeliverable.NOT_SHOWN)], "no bookie makes a broker silent for so long"


def test_an_entry_that_a_broker_returns_late_is_not_given_up() -> None:
    @dataclass
    class Late(Admin):
        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            is_first = most_bytes > 1 and position not in self.requested
            answer = super().entry(partition, position, most_bytes, patience_seconds)
            return None if is_first else answer

    admin = Late({(8, 0): body(b"aborted"), (8, 1): body(b"other")}, stats=TWO_LEDGERS)
    with serving(Partition(STORED, LAST)) as partition:
        with pytest.raises(UnavailableError, match="no answer before"):
            read_all(partition, admin, [EntrySpan(8, 0, 0)])
        assert [payload for _position, payload, _why in read_all(partition, admin, [EntrySpan(8, 0, 0)])] == [
            b"aborted"
        ]


def test_an_entry_is_requested_again_once_the_broker_has_turned_to_another_bookie() -> None:
    @dataclass
    class Turns(Admin):
        """A bookie hangs until the check at the end gets a control entry, as after a broker's timeout."""

        controls: int = 0

        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            answer = super().entry(partition, position, most_bytes, patience_seconds)
            self.controls += most_bytes == 1 and answer is not None
            return answer if most_bytes == 1 or self.controls > 2 else None

    stored: dict[Position, bytes | None] = {**STORED, LAST: None, (8, 3): None}  # the last is never returned
    admin = Turns({LAST: body(b"request"), (8, 1): body(b"other")}, stats=TWO_LEDGERS)
    with (
        serving(Partition(stored, (8, 1))) as partition,
        pytest.raises(UnavailableError, match="no answer before"),
    ):
        read_all(partition, admin, [EntrySpan(8, 2, 3)])


@dataclass
class Striped(Admin):
    """A broker that returns some entries at once, and others after it waited for bookies that hang."""

    after_s: float = 90.0
    longest_s: float = 0.0  # the longest patience of a request

    def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
        self.longest_s = max(self.longest_s, patience_seconds)
        at_once = super().entry(partition, position, most_bytes, patience_seconds)
        return at_once or (body(b"late") if patience_seconds > self.after_s else None)


@pytest.mark.parametrize(
    ("ensembles", "other"),
    [
        (Ensembles(2, (0,)), 4),
        (Ensembles(3, (0,)), 4),
        (Ensembles(5, (0,)), 1),
        (Ensembles(2, (0, 5)), 3),
        (Ensembles(2, (0, 2, 4)), 3),
        (Ensembles(1, (0, 5)), 4),
        (None, 4),
    ],
)
def test_an_entry_of_other_bookies_does_not_show_that_those_of_this_entry_answer(
    ensembles: Ensembles | None, other: int
) -> None:
    answers = {(7, 0): body(b"other ledger"), (8, other): body(b"other")}
    admin = Striped(answers, stats=_stats((7, 1), (8, 6)), of_each=ensembles)
    stored: dict[Position, bytes | None] = {(8, number): ORDINARY for number in range(5)} | {(8, 5): None}
    with (
        serving(Partition({**STORED, **stored}, (8, 4))) as partition,
        pytest.raises(UnavailableError, match="no answer before"),
    ):
        read_all(partition, admin, [EntrySpan(8, 5, 5)])


@pytest.mark.parametrize(
    ("ensembles", "sibling"),
    [
        (Ensembles(1, (0,)), 0),
        (Ensembles(2, (0,)), 1),
        (Ensembles(2, (0,)), 3),
        (Ensembles(3, (0,)), 2),
        (Ensembles(5, (0,)), 0),
        (Ensembles(2, (0, 1)), 1),
        (Ensembles(2, (0, 2, 6)), 3),
    ],
)
def test_an_entry_of_the_same_bookies_shows_that_those_answer(ensembles: Ensembles, sibling: int) -> None:
    answers = {(7, 0): body(b"other ledger"), (8, sibling): body(b"sibling")}
    admin = Striped(answers, stats=_stats((7, 1), (8, 6)), of_each=ensembles)
    stored: dict[Position, bytes | None] = {(8, number): ORDINARY for number in range(5)} | {(8, 5): None}
    with serving(Partition({**STORED, **stored}, (8, 4))) as partition:
        assert read_all(partition, admin, [EntrySpan(8, 5, 5)]) == [((8, 5), b"", Undeliverable.NOT_SHOWN)]
        # an earlier request for this entry may still be waiting for the bookie that hung
        admin.after_s = 30.0
        with pytest.raises(UnavailableError, match="no answer before"):
            read_all(partition, admin, [EntrySpan(8, 5, 5)])


def test_a_broker_does_not_wait_for_a_bookie_with_an_entry_that_it_has_passed_over() -> None:
    admin = Striped({(8, 1): body(b"other")}, stats=TWO_LEDGERS)
    with serving(Partition(STORED, LAST)) as partition:
        assert read_all(partition, admin, [EntrySpan(8, 0, 0)]) == [((8, 0), b"", Undeliverable.NOT_SHOWN)]
    assert admin.longest_s <= admin_entries.FULL_TIMEOUT_SECONDS


@dataclass
class Clock(Admin):
    """A broker whose requests take time of its own clock, which the module under test uses."""

    now_s: float = 0.0
    guard: Lock = field(default_factory=Lock)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        with self.guard:
            self.now_s += seconds


@pytest.mark.parametrize("cut_off", [None, Body(504, {}, b"", True)])
def test_a_proxy_that_ends_a_request_sooner_than_the_broker_does_not_make_an_entry_lost(
    monkeypatch: pytest.MonkeyPatch, cut_off: Body | None
) -> None:
    @dataclass
    class Proxy(Clock):
        """The broker waits 90 s for its bookies, and the proxy 60 s for the broker; other ledgers are healthy."""

        first_s: float | None = None

        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            if position[0] != LAST[0]:
                return body(b"other ledger")
            if most_bytes == 1:
                return None
            self.first_s = self.now_s if self.first_s is None else self.first_s
            self.sleep(min(patience_seconds, 60.0))
            if self.now_s - self.first_s > 90.0:
                return body(b"request")
            return cut_off if patience_seconds > 60.0 else None

    admin = Proxy(stats=TWO_LEDGERS)
    monkeypatch.setattr(admin_entries, "time", admin)
    stored: dict[Position, bytes | None] = {**STORED, LAST: None}
    with serving(Partition(stored, (8, 1))) as partition, pytest.raises(UnavailableError, match="no answer before"):
        read_all(partition, admin, [EntrySpan(8, 2, 2)])


def test_no_entry_is_given_up_while_its_topic_is_moved_during_the_check_at_the_end() -> None:
    @dataclass
    class Moved(Admin):
        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            return super().entry(partition, position, most_bytes, patience_seconds) if self.is_up else FAILS_FOR_NOW

        def ensembles(self, partition: str) -> Mapping[int, Ensembles]:
            self.is_up = False
            raise UnavailableError("no broker serves the topic")

    admin = Moved({(8, 1): body(b"other")}, stats=TWO_LEDGERS)
    with serving(Partition(STORED, LAST)) as partition, pytest.raises(UnavailableError, match="no broker answers"):
        read_all(partition, admin, [EntrySpan(8, 0, 0)])


def test_many_entries_without_an_answer_do_not_prevent_the_last_check_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclass
    class Turns(Clock):
        """No entry but a control is returned, and one more once the control was requested at the end."""

        is_end: bool = False

        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            if position[0] != LAST[0]:
                return body(b"other ledger")
            if self.is_end and position == (8, 60):
                return body(b"request")
            self.sleep(patience_seconds)
            self.is_end |= patience_seconds > 30
            return None

    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(62)), None)
    admin = Turns(stats=_stats((7, 3), (8, 62)))
    monkeypatch.setattr(admin_entries, "time", admin)
    with (
        serving(Partition({**STORED, **stored}, (7, 2))) as partition,
        pytest.raises(UnavailableError, match="no answer before"),
    ):
        read_all(partition, admin, [EntrySpan(8, 0, 61)])


def test_the_check_at_the_end_waits_until_no_cache_has_the_control_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(admin_entries, "_CACHE_SECONDS", 8.0)
    # not time.sleep itself, which other tests' threads still call
    monkeypatch.setattr(admin_entries, "time", SimpleNamespace(sleep=waited.append, monotonic=time.monotonic))
    admin = Admin({(8, 1): body(b"other")}, stats=TWO_LEDGERS)
    with serving(Partition(STORED, LAST)) as partition:
        assert read_all(partition, admin, [EntrySpan(8, 0, 0)]) == [((8, 0), b"", Undeliverable.NOT_SHOWN)]
    assert len(waited) == 1
    assert 0 < waited[0] <= 8.0


def test_an_entry_above_the_size_limit_is_given_up() -> None:
    admin = Admin({(7, 1): Body(200, {}, b"the beginning", False)})
    with serving(Partition(STORED, LAST)) as partition:
        assert read_all(partition, admin, [EntrySpan(7, 1, 1)]) == [((7, 1), b"", Undeliverable.NOT_SHOWN)]
