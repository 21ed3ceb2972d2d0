"""Every entry of a range by another way than the connector: sent, passed over, shown, or given up with a reason."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from streaming.adapters.pulsar import entries, frames
from streaming.adapters.pulsar.controls import Controls
from streaming.adapters.pulsar.entries import Sent, fallback_entries, read_spans, tells_last
from streaming.adapters.pulsar.http import Body
from streaming.config.sections import PulsarSettings
from streaming.errors import RefusedError, UnavailableError
from tests.pulsar_fields import entry
from tests.unit.adapters.pulsar.frame_broker import Partition, serving, settings_for
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import InternalStats, Position
from udfs.undelivered import Undeliverable

TOPIC = "persistent://t/ns/topic-partition-0"
ORDINARY = entry(b"request")
LAST = (8, 2)
STORED: Mapping[Position, bytes | None] = {
    (7, 0): ORDINARY,
    (7, 1): None,
    (7, 2): ORDINARY,
    (8, 0): None,
    (8, 1): ORDINARY,
    LAST: ORDINARY,
}
ALL = [EntrySpan(7, 0, 2), EntrySpan(8, 0, 2)]


@dataclass
class Shown:
    """The admin API: what it answers for a position; None, no answer. is_up: whether the partition's broker answers."""

    answers: Mapping[Position, Body | None] = field(default_factory=dict)
    is_up: bool = True
    stats: InternalStats = field(default_factory=lambda: InternalStats(ledgers=(), cursors={}, pending_adds=0))
    asked: list[Position] = field(default_factory=list)

    def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
        if most_bytes == 1:  # whether it shows anything
            return self.answers.get(position)
        self.asked.append(position)
        return self.answers.get(position)

    def tells_last(self, partition: str, patience_seconds: float) -> bool:
        return True

    def internal_stats(self, partition: str) -> InternalStats:
        if not self.is_up:
            raise UnavailableError("no broker answers")
        return self.stats


def _body(payload: bytes, **said: str) -> Body:
    return Body(200, {f"x-pulsar-{name.replace('_', '-')}": text for name, text in said.items()}, payload, True)


def _read(partition: Partition, spans: list[EntrySpan]) -> list[Sent]:
    return list(read_spans(settings_for(partition), TOPIC, spans))


def test_entries_come_in_order_and_what_the_broker_passes_over_is_named() -> None:
    with serving(Partition(STORED, LAST)) as partition:
        assert _read(partition, ALL) == [
            Sent((7, 0), ORDINARY),
            Sent((7, 1), None, is_passed_over=True),
            Sent((7, 2), ORDINARY),
            Sent((8, 0), None, is_passed_over=True),
            Sent((8, 1), ORDINARY),
            Sent(LAST, ORDINARY),
        ]


def test_a_broker_that_is_silent_or_not_there_does_not_keep_us_from_the_other() -> None:
    with serving(Partition(STORED, LAST)) as partition, socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for others in (f"127.0.0.1:{port}", "127.0.0.1:1"):
            url = partition.url.replace("pulsar://", f"pulsar://{others},")
            settings = PulsarSettings(
                **{**settings_for(partition).model_dump(), "service_url": url, "timeout_seconds": 1}
            )
            assert [sent.data for sent in read_spans(settings, TOPIC, [EntrySpan(7, 0, 0)])] == [ORDINARY]


def test_only_the_wanted_entries_are_told_and_a_reader_begins_just_before_them() -> None:
    with serving(Partition(STORED, LAST)) as partition:
        assert _read(partition, [EntrySpan(7, 1, 1), EntrySpan(8, 2, 2)]) == [
            Sent((7, 1), None, is_passed_over=True),
            Sent(LAST, ORDINARY),
        ]
        assert partition.readers == [(7, 0)]


def test_a_few_entries_in_between_are_read_along_and_many_are_not() -> None:
    stored = {(7, number): ORDINARY for number in range(3000)}
    with serving(Partition(stored, (7, 2999))) as partition:
        wanted = [EntrySpan(7, 0, 0), EntrySpan(7, 900, 900), EntrySpan(7, 2500, 2501)]
        assert [sent.position for sent in _read(partition, wanted)] == [(7, 0), (7, 900), (7, 2500), (7, 2501)]
        assert partition.readers == [(7, -1), (7, 2499)]


def test_behind_the_last_that_the_broker_would_send_nothing_is_waited_for() -> None:
    with serving(Partition({**STORED, LAST: None, (8, 3): None}, (8, 1))) as partition:
        assert _read(partition, [EntrySpan(8, 1, 3)]) == [Sent((8, 1), ORDINARY), Sent(LAST, None), Sent((8, 3), None)]


@pytest.mark.parametrize("last", [LAST, None], ids=["it names one that never comes", "it can't tell the last"])
def test_what_does_not_come_is_given_up_after_a_while(last: Position | None) -> None:
    with serving(Partition({**STORED, LAST: None}, last)) as partition:
        assert _read(partition, [EntrySpan(8, 1, 2)]) == [Sent((8, 1), ORDINARY), Sent(LAST, None)]


def test_a_broker_that_gives_no_answer_to_what_is_the_last_is_read_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "_LAST_SECONDS", 0.2)
    with serving(Partition({**STORED, LAST: None}, None, is_silent_on_last=True)) as partition:
        settings = settings_for(partition, timeout_seconds=60)
        read = list(read_spans(settings, TOPIC, [EntrySpan(8, 1, 2)]))
        assert read == [Sent((8, 1), ORDINARY), Sent(LAST, None)]
        assert not tells_last(settings, Shown(), TOPIC)


def test_a_reader_that_is_sent_nothing_more_is_begun_anew_behind_what_it_got() -> None:
    with serving(Partition(STORED, LAST, stalls_behind=(8, 1))) as partition:
        assert _read(partition, [EntrySpan(8, 0, 2)])[-1] == Sent(LAST, ORDINARY)
        assert partition.readers == [(8, -1), (8, 1)]


def test_a_topic_that_is_moved_meanwhile_is_an_outage() -> None:
    with serving(Partition(STORED, LAST, closes_behind=(7, 0))) as partition, pytest.raises(UnavailableError):
        _read(partition, ALL)


def test_a_broker_that_is_not_there_is_an_outage() -> None:
    with serving(Partition(STORED, LAST)) as partition:
        pass
    with pytest.raises(UnavailableError, match="does not answer"):
        _read(partition, ALL)


def test_look_ups_are_followed_from_broker_to_broker_and_not_for_ever() -> None:
    with serving(Partition(STORED, LAST, redirects=2)) as partition:
        assert len(_read(partition, [EntrySpan(7, 0, 2)])) == 3
        partition.redirects = 99
        with pytest.raises(UnavailableError, match="again and again"):
            _read(partition, ALL)


def test_the_token_is_read_anew_for_each_connection(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("right\n")
    with serving(Partition(STORED, LAST, token=b"right")) as partition:
        settings = settings_for(partition, token_file=str(token))
        assert len(list(read_spans(settings, TOPIC, [EntrySpan(7, 0, 2)]))) == 3
        token.write_text("wrong")
        with pytest.raises(RefusedError, match="wrong token"):
            list(read_spans(settings, TOPIC, ALL))


def _fallback_entries(partition: Partition, shown: Shown, spans: list[EntrySpan]) -> list[tuple[Position, bytes, Any]]:
    read = fallback_entries(settings_for(partition), shown, TOPIC, spans)
    return [(position, found.content.payload, found.why) for position, found in read]


def test_what_is_passed_over_is_asked_for_by_its_position_and_a_marker_is_nothing() -> None:
    aborted = {"txnid_most_bits": "1", "txnid_least_bits": "2", "txn_aborted": "true"}
    shown = Shown({(7, 1): _body(b"taken back", **aborted), (8, 0): _body(b"", marker_type="22")})
    with serving(Partition(STORED, LAST)) as partition:
        assert _fallback_entries(partition, shown, ALL) == [
            ((7, 0), b"request", None),
            ((7, 1), b"taken back", Undeliverable.ABORTED_TRANSACTION),
            ((7, 2), b"request", None),
            ((8, 1), b"request", None),
            (LAST, b"request", None),
        ]
    assert shown.asked == [(7, 1), (8, 0)]


def test_an_ordinary_message_behind_an_open_transaction_goes_the_way_of_any_other() -> None:
    still_open = {"txnid_most_bits": "1", "txnid_least_bits": "2", "txn_uncommitted": "true"}
    shown = Shown({(8, 1): _body(b"open", **still_open), LAST: _body(b"request", txn_uncommitted="true")})
    with serving(Partition({**STORED, (8, 1): None, LAST: None}, (7, 2))) as partition:
        assert _fallback_entries(partition, shown, [EntrySpan(8, 1, 2)]) == [
            ((8, 1), b"open", Undeliverable.OPEN_TRANSACTION),
            (LAST, b"request", None),
        ]


def test_an_entry_that_is_not_shown_is_a_dead_letter_without_bytes_while_the_broker_answers_others() -> None:
    with serving(Partition(STORED, LAST)) as partition:
        shown = Shown({(8, 0): Body(500, {}, b"", True)})
        assert _fallback_entries(partition, shown, [EntrySpan(7, 1, 1), EntrySpan(8, 0, 0)]) == [
            ((7, 1), b"", Undeliverable.NOT_SHOWN),
            ((8, 0), b"", Undeliverable.NOT_SHOWN),
        ]
        with pytest.raises(UnavailableError, match="no broker answers"):
            _fallback_entries(partition, Shown(is_up=False), [EntrySpan(7, 1, 1)])


def test_an_entry_that_nobody_was_meant_to_get_is_asked_for_once_and_one_that_may_come_twice() -> None:
    with serving(Partition({**STORED, LAST: None}, (8, 1))) as partition:
        shown = Shown({(8, 1): _body(b"request")})
        _fallback_entries(partition, shown, [EntrySpan(8, 0, 0)])
        assert shown.asked == [(8, 0)]
        _fallback_entries(partition, shown, [EntrySpan(8, 2, 2)])
        assert shown.asked == [(8, 0), LAST, LAST]
        _fallback_entries(partition, shown, [EntrySpan(8, 0, 2)])
        assert shown.asked[3:] == [(8, 0), LAST, LAST], "whatever others were not shown before"


def test_a_request_behind_an_open_transaction_is_not_lost_because_the_broker_is_slow_once() -> None:
    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(12)), None)

    @dataclass
    class SlowAtFirst(Shown):
        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            is_first = position not in self.asked
            answer = super().entry(partition, position, most_bytes, patience_seconds)
            return None if is_first and position == (8, 11) else answer

    with serving(Partition({**STORED, **stored}, (7, 2))) as partition:
        shown = SlowAtFirst({(8, 11): _body(b"request", txn_uncommitted="true")})
        assert _fallback_entries(partition, shown, [EntrySpan(8, 0, 11)])[-1] == ((8, 11), b"request", None)


def test_second_looks_at_many_entries_that_are_never_shown_end_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_SECOND_LOOKS_SECONDS", 0.05)
    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(40)), None)

    @dataclass
    class Slow(Shown):
        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            Event().wait(0.02)
            return super().entry(partition, position, most_bytes, patience_seconds)

    with serving(Partition({**STORED, **stored}, (7, 2))) as partition:
        shown = Slow()
        assert len(_fallback_entries(partition, shown, [EntrySpan(8, 0, 39)])) == 40
    assert 40 < len(shown.asked) <= 44


def test_a_sender_of_many_unreadable_entries_does_not_hold_the_others_up() -> None:
    stored: dict[Position, bytes | None] = dict.fromkeys(((7, number) for number in range(50)), None)
    with serving(Partition({**stored, (7, 50): ORDINARY}, (7, 50))) as partition:
        shown = Shown()
        found = _fallback_entries(partition, shown, [EntrySpan(7, 0, 50)])
        assert len(found) == 51
        assert found[-1] == ((7, 50), b"request", None)
        assert len(shown.asked) == 5


def test_what_the_broker_may_still_send_is_asked_for_whatever_others_were_not_shown() -> None:
    stored: dict[Position, bytes | None] = dict.fromkeys(((7, number) for number in range(8)), None)
    with serving(Partition({**stored, (7, 8): ORDINARY, (7, 9): None}, (7, 8))) as partition:
        shown = Shown({(7, 9): _body(b"request", txn_uncommitted="true")})
        assert _fallback_entries(partition, shown, [EntrySpan(7, 0, 9)])[-1] == ((7, 9), b"request", None)


def test_what_the_broker_may_still_send_is_asked_for_a_few_at_once_and_told_in_its_order() -> None:
    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(40)), None)
    asking: list[int] = []
    most: list[int] = []

    @dataclass
    class Slow(Shown):
        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            asking.append(1)
            most.append(len(asking))
            Event().wait(0.01)
            asking.pop()
            return None if position[1] % 3 else _body(b"%d" % position[1])

    with serving(Partition({**STORED, **stored}, (7, 2))) as partition:
        shown = Slow()
        found = _fallback_entries(partition, shown, [EntrySpan(8, 0, 39)])
        assert [(position[1], payload) for position, payload, _why in found] == [
            (number, b"" if number % 3 else b"%d" % number) for number in range(40)
        ]
    assert max(most) == 4


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
@pytest.mark.parametrize("place", [(7, 1), (8, 5)], ids=["passed over", "it may come yet"])
def test_an_answer_that_says_nothing_of_the_entry_gives_no_entry_up(
    place: Position, status: int, error: type[Exception]
) -> None:
    shown = Shown({place: Body(status, {}, b"", True)})
    stored: dict[Position, bytes | None] = {**STORED, (8, 5): None}
    with serving(Partition(stored, LAST)) as partition, pytest.raises(error, match=str(status)):
        _fallback_entries(partition, shown, [EntrySpan(place[0], place[1], place[1])])


BEHIND_A_PROXY = InternalStats(ledgers=((7, 1), (8, 6)), cursors={}, pending_adds=0)


@dataclass
class Proxied(Shown):
    """Behind a proxy: has that answer for one entry, for so many times it is asked; then the broker's own."""

    place: Position = (7, 1)
    status: int = 502
    times: int = 1 << 30

    def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
        answer = super().entry(partition, position, most_bytes, patience_seconds)
        return Body(self.status, {}, b"", True) if position == self.place and self._is_left() else answer

    def _is_left(self) -> bool:
        self.times -= 1
        return self.times >= 0


@pytest.mark.parametrize("status", [502, 504])
@pytest.mark.parametrize("place", [(7, 1), (8, 5)], ids=["passed over", "it may come yet"])
def test_what_a_proxy_cannot_pass_on_is_given_up_where_it_passes_another_entry_on(place: Position, status: int) -> None:
    shown = Proxied({(7, 0): _body(b"other")}, stats=BEHIND_A_PROXY, place=place, status=status)
    with serving(Partition({**STORED, (8, 5): None}, LAST)) as partition:
        assert _fallback_entries(partition, shown, [EntrySpan(*place, place[1])]) == [
            (place, b"", Undeliverable.NOT_SHOWN)
        ]


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_request_is_not_lost_because_its_topic_was_being_moved_for_a_moment(status: int) -> None:
    answers = {(7, 0): _body(b"other"), (8, 5): _body(b"request", txn_uncommitted="true")}
    for times in (1, 2):
        shown = Proxied(answers, stats=BEHIND_A_PROXY, place=(8, 5), status=status, times=times)
        with serving(Partition({**STORED, (8, 5): None}, LAST)) as partition:
            assert _fallback_entries(partition, shown, [EntrySpan(8, 5, 5)]) == [((8, 5), b"request", None)]


@pytest.mark.parametrize("place", [(7, 1), (8, 5)], ids=["passed over", "it may come yet"])
def test_behind_a_503_only_time_tells_though_others_are_shown(place: Position) -> None:
    shown = Proxied({(7, 0): _body(b"other")}, stats=BEHIND_A_PROXY, place=place, status=503)
    with serving(Partition({**STORED, (8, 5): None}, LAST)) as partition:
        with pytest.raises(UnavailableError, match=f"{entries.WITHHELD} 503"):
            _fallback_entries(partition, shown, [EntrySpan(*place, place[1])])
        controls = Controls(shown, TOPIC, gives_up=True)
        read = fallback_entries(settings_for(partition), shown, TOPIC, [EntrySpan(*place, place[1])], controls)
        assert [found.why for _position, found in read] == [Undeliverable.NOT_SHOWN]


def test_too_many_requests_never_give_an_entry_up() -> None:
    shown = Proxied({(7, 0): _body(b"other")}, stats=BEHIND_A_PROXY, status=429)
    with serving(Partition(STORED, LAST)) as partition:
        read = fallback_entries(
            settings_for(partition), shown, TOPIC, [EntrySpan(7, 1, 1)], Controls(shown, TOPIC, gives_up=True)
        )
        with pytest.raises(UnavailableError, match="429"):
            list(read)


def test_silent_entries_of_a_sender_cost_their_patience_once_and_not_for_each_of_his_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entries, "_SECOND_LOOKS_SECONDS", 0.0)
    monkeypatch.setattr(entries, "_PATIENCE_SECONDS", 0.2)
    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(400)), None)
    ours = "persistent://t/ns/ours-partition-0"
    waited: list[float] = []

    @dataclass
    class Silent(Shown):
        """Shows one entry of ours only, at once; for every other one it takes all the patience."""

        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            if partition == ours:
                return _body(b"")
            waited.append(patience_seconds)
            return None

    with serving(Partition({**STORED, **stored}, (7, 2))) as partition:
        shown = Silent(stats=InternalStats(ledgers=((5, 9), (6, 9), (7, 3), (8, 400)), cursors={}, pending_adds=0))
        controls = Controls(shown, TOPIC, [ours])
        found = [*fallback_entries(settings_for(partition), shown, TOPIC, [EntrySpan(8, 0, 399)], controls)]
    assert len(found) == 400
    own = 5 * 3.0 + 45 * 1.0 + 350 * 0.25
    assert sum(waited) < own + 4 * 16 * (0.25 + 1.0 + 3.0), "what is asked for in their place is asked for once"


def test_of_a_thousand_entries_that_nobody_is_told_of_each_is_asked_for_a_moment_only() -> None:
    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(80)), None)
    patience: list[float] = []

    @dataclass
    class Silent(Shown):
        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            patience.append(patience_seconds)
            return super().entry(partition, position, most_bytes, patience_seconds)

    with serving(Partition({**STORED, **stored}, (7, 2))) as partition:
        _fallback_entries(partition, Silent(), [EntrySpan(8, 0, 79)])
    assert sorted(set(patience)) == [0.25, 1, 3]


def test_what_comes_behind_entries_that_nobody_can_read_is_noticed_while_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entries, "_LOOK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(entries, "_PATIENCE_SECONDS", 0.2)
    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(1000)), None)

    @dataclass
    class Slow(Shown):
        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            Event().wait(0.01)
            if len(self.asked) == 20:
                broker.entries, broker.last = {**stored, (8, 1000): ORDINARY}, (8, 1000)
            return super().entry(partition, position, most_bytes, patience_seconds)

    with serving(Partition(stored, (8, 999))) as broker:
        shown = Slow()
        found = _fallback_entries(broker, shown, [EntrySpan(8, 0, 1000)])
    assert [position[1] for position, _payload, _why in found] == list(range(1001))
    assert found[-1] == ((8, 1000), b"request", None)
    assert len(shown.asked) < 300, "the others are passed over, and of such only a few are asked for"


TWO_LEDGERS = InternalStats(ledgers=((7, 3), (8, 3)), cursors={}, pending_adds=0)


def test_where_the_broker_shows_no_other_entry_either_none_is_given_up_until_that_is_said() -> None:
    stored: dict[Position, bytes | None] = {**STORED, (8, 1): None, LAST: None}
    with serving(Partition(stored, (8, 0))) as partition:
        shown = Shown(stats=TWO_LEDGERS)
        with pytest.raises(UnavailableError, match=entries.NOTHING_SHOWN):
            _fallback_entries(partition, shown, [EntrySpan(8, 1, 2)])
        read = fallback_entries(
            settings_for(partition), shown, TOPIC, [EntrySpan(8, 1, 2)], Controls(shown, TOPIC, gives_up=True)
        )
        assert [found.why for _position, found in read] == [Undeliverable.NOT_SHOWN] * 2


@pytest.mark.parametrize("other", [(8, 0), (7, 2)], ids=["of its ledger", "of another ledger"])
def test_an_entry_is_given_up_where_the_broker_shows_another_one(other: Position) -> None:
    stored: dict[Position, bytes | None] = {**STORED, LAST: None}
    with serving(Partition(stored, (8, 1))) as partition:
        shown = Shown({other: _body(b"request")}, stats=TWO_LEDGERS)
        assert _fallback_entries(partition, shown, [EntrySpan(8, 2, 2)]) == [(LAST, b"", Undeliverable.NOT_SHOWN)]


@pytest.mark.parametrize("status", [404, 409, 412, 500])
def test_a_status_that_the_broker_has_for_every_entry_gives_none_up(status: int) -> None:
    fails = Body(status, {}, b"", True)
    with serving(Partition({**STORED, LAST: None}, (8, 1))) as partition:
        shown = Shown({(8, 1): fails, LAST: fails, (8, 0): fails, (7, 2): fails, (7, 0): fails}, stats=TWO_LEDGERS)
        with pytest.raises(UnavailableError, match=entries.NOTHING_SHOWN):
            _fallback_entries(partition, shown, [EntrySpan(8, 2, 2)])


def test_a_request_behind_many_unreadable_entries_is_asked_for_with_patience_where_the_broker_is_slow() -> None:
    stored: dict[Position, bytes | None] = dict.fromkeys(((8, number) for number in range(61)), None)

    @dataclass
    class Slow(Shown):
        """Answers nothing within a second, but the first entry of the other ledger for those that ask before."""

        def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
            answer = super().entry(partition, position, most_bytes, patience_seconds)
            return answer if patience_seconds > 1 else None

    with serving(Partition({**STORED, **stored}, (7, 2))) as partition:
        answers = {(8, 60): _body(b"request", txn_uncommitted="true"), (7, 0): _body(b"other")}
        shown = Slow(answers, stats=InternalStats(ledgers=((7, 1), (8, 61)), cursors={}, pending_adds=0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(entries, "_SECOND_LOOKS_SECONDS", 0.0)
            assert _fallback_entries(partition, shown, [EntrySpan(8, 0, 60)])[-1] == ((8, 60), b"request", None)


def test_what_is_larger_than_the_bound_is_not_taken_into_memory() -> None:
    shown = Shown({(7, 1): Body(200, {}, b"the beginning", False)})
    with serving(Partition(STORED, LAST)) as partition:
        assert _fallback_entries(partition, shown, [EntrySpan(7, 1, 1)]) == [((7, 1), b"", Undeliverable.NOT_SHOWN)]


@pytest.mark.parametrize("of_each", [1000, (1 << 31) - 1, -1])
def test_batches_use_up_what_a_reader_allowed_by_their_messages_and_are_read_on_all_the_same(of_each: int) -> None:
    large = entry(b"batch", num_messages_in_batch=of_each)
    stored = {(7, number): large for number in range(20)}
    with serving(Partition(stored, (7, 19))) as partition:
        assert [sent.data for sent in _read(partition, [EntrySpan(7, 0, 19)])] == [large] * 20
        assert len(partition.readers) == 1


def test_a_partition_of_many_ledgers_is_read_on_one_connection() -> None:
    stored = {(ledger, number): ORDINARY for ledger in range(1, 30) for number in range(3)}
    with serving(Partition(stored, (29, 2))) as partition:
        spans = [EntrySpan(ledger, 0, 2) for ledger in range(1, 30)]
        assert len(_read(partition, spans)) == 87
        assert len(partition.readers) == 1
