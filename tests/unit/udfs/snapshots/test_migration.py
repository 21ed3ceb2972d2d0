"""From each form to each other one: cut short behind any message, the ids stay what they were."""

from collections.abc import Generator, Iterator

import pytest

from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import Position
from udfs.snapshots.aborts import aborts_of
from udfs.snapshots.codec import Segment, decode_segment
from udfs.snapshots.keys import Capacity, SnapshotKind
from udfs.snapshots.migration import Form, Message, Stored, current, to_parts, to_segments, to_single

TOPIC = "persistent://t/ns/orders"
OTHER = "persistent://t/ns/orders-1"
ABORTS = aborts_of([(0, each, 5 + each // 3, each) for each in range(7)])
LEDGERS, NEWEST = {5, 6, 7}, (7, 99)


class Topics:
    """Compacted topics in memory. Places go on counting; `at` keeps what a place held, as raw ledgers do."""

    def __init__(self) -> None:
        self.latest: dict[SnapshotKind, dict[str, bytes]] = {kind: {} for kind in SnapshotKind}
        self.at: dict[Position, Segment] = {}
        self._sent = 0

    def send(self, message: Message) -> Position:
        self._sent += 1
        if message.value is None:
            self.latest[message.kind].pop(message.key)
        else:
            self.latest[message.kind][message.key] = message.value
            if message.kind is SnapshotKind.SEGMENT:
                self.at[50, self._sent] = decode_segment(message.value)
        return 50, self._sent

    def run(self, messages: Iterator[Message], most: int = 1000) -> int:
        """Send so many at most; returns how many there were."""
        sent = 0
        place: Position | None = None
        while sent < most:
            try:
                if isinstance(messages, Generator) and place is not None:
                    message = messages.send(place)
                else:
                    message = next(messages)
            except StopIteration:
                break
            place = self.send(message)
            sent += 1
        return sent

    @property
    def stored(self) -> Stored:
        return Stored(self.latest, self.at)

    def form(self) -> Form:
        return current(self.stored, TOPIC, LEDGERS, NEWEST)

    def move(self, kind: SnapshotKind, form: Form) -> Iterator[Message]:
        keys = self.stored.keys
        if kind is SnapshotKind.PARTS:
            return to_parts(TOPIC, form, Capacity(2, 1000), keys)
        if kind is SnapshotKind.INDEX:
            return to_segments(TOPIC, form, 3, keys)
        return to_single(TOPIC, form, 1000, keys)


FORMS = (SnapshotKind.SINGLE, SnapshotKind.PARTS, SnapshotKind.INDEX)


@pytest.mark.parametrize("source", FORMS)
@pytest.mark.parametrize("target", FORMS)
def test_a_migration_cut_short_anywhere_loses_nothing_and_can_be_begun_again(
    source: SnapshotKind, target: SnapshotKind
) -> None:
    def begun() -> Topics:
        topics = Topics()
        first = Form(None, (6, 4), ABORTS)
        topics.run(topics.move(source, first))
        assert topics.form().kind is source
        return topics

    whole = begun()
    messages = whole.run(whole.move(target, whole.form()))
    for cut in range(messages + 1):
        topics = begun()
        topics.run(topics.move(target, topics.form()), cut)
        found = topics.form()
        assert sorted(found.aborts.ids.pairs()) == sorted(ABORTS.ids.pairs())
        assert found.max_read == (6, 4)
        topics.run(topics.move(target, found))
        after = topics.form()
        assert after.kind is target
        assert sorted(after.aborts.ids.pairs()) == sorted(ABORTS.ids.pairs())
        assert after.max_read == (6, 4)


def test_nothing_of_the_old_form_stays_but_the_single_one_beside_an_index() -> None:
    topics = Topics()
    topics.run(topics.move(SnapshotKind.SINGLE, Form(None, (6, 4), ABORTS)))
    for kind in (SnapshotKind.INDEX, SnapshotKind.PARTS, SnapshotKind.SINGLE):
        topics.run(topics.move(kind, topics.form()))
    assert {kind: set(values) for kind, values in topics.latest.items() if values} == {SnapshotKind.SINGLE: {TOPIC}}


def test_a_single_snapshot_that_no_message_holds_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(FormatError, match="more than 30"):
        next(to_single(TOPIC, Form(None, (6, 4), ABORTS), 30, {}))


def test_no_snapshot_is_none() -> None:
    assert current(Topics().stored, TOPIC, LEDGERS, NEWEST).kind is None


def test_a_topic_with_a_name_like_a_part_keeps_its_own() -> None:
    topics = Topics()
    topics.run(to_single(OTHER, Form(None, (6, 4), ABORTS), 1000, {}))
    topics.run(topics.move(SnapshotKind.PARTS, Form(None, (6, 4), ABORTS)))
    assert OTHER in topics.latest[SnapshotKind.SINGLE]
