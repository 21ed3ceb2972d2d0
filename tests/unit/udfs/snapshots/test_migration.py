"""From each form to each other one: cut short behind any message, the ids stay what they were."""

from collections.abc import Generator, Iterator
from dataclasses import replace

import pytest

from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import Position
from udfs.snapshots.aborts import aborts_of
from udfs.snapshots.codec import Segment, decode_index, decode_segment, encode_index
from udfs.snapshots.keys import Capacity, SnapshotKind
from udfs.snapshots.migration import SnapshotMessage, Stored, StoredForm, current, to_parts, to_segments, to_single

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

    def send(self, message: SnapshotMessage) -> Position:
        self._sent += 1
        if message.value is None:
            self.latest[message.kind].pop(message.key)
        else:
            self.latest[message.kind][message.key] = message.value
            if message.kind is SnapshotKind.SEGMENT:
                self.at[50, self._sent] = decode_segment(message.value)
        return 50, self._sent

    def run(self, messages: Iterator[SnapshotMessage], most: int = 1000) -> int:
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

    def form(self) -> StoredForm:
        return current(self.stored, TOPIC, LEDGERS, NEWEST)

    def move(self, kind: SnapshotKind, form: StoredForm) -> Iterator[SnapshotMessage]:
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
        first = StoredForm(None, (6, 4), ABORTS)
        topics.run(topics.move(source, first))
        assert topics.form().kind is source
        return topics

    whole = begun()
    messages = whole.run(whole.move(target, whole.form()))
    for cut in range(messages + 1):
        topics = begun()
        topics.run(topics.move(target, topics.form()), cut)
        found = topics.form()
        _loses_nothing(found)
        topics.run(topics.move(target, found))
        after = topics.form()
        assert after.kind is target
        _loses_nothing(after)


def _loses_nothing(form: StoredForm) -> None:
    """Every id is there, or found again behind maxReadPosition; an index has no id that is found again."""
    ids = set(form.aborts.ids.pairs())
    behind = {(most, least) for most, least, *marker in ABORTS.tuples() if tuple(marker) > form.max_read}
    assert ids | behind == set(ABORTS.ids.pairs())
    assert form.kind is not SnapshotKind.INDEX or not ids & behind
    assert form.max_read in ((6, 4), (5, 2))


def test_an_index_that_has_ids_twice_is_not_migrated() -> None:
    topics = Topics()
    topics.run(topics.move(SnapshotKind.INDEX, StoredForm(None, (8, 0), ABORTS)))
    index = decode_index(topics.latest[SnapshotKind.INDEX][TOPIC])
    topics.latest[SnapshotKind.INDEX][TOPIC] = encode_index(replace(index, tail=ABORTS.between(0, 1).ids))
    with pytest.raises(FormatError, match="twice"):
        topics.form()


def test_of_settled_ids_nothing_is_cut() -> None:
    topics = Topics()
    topics.run(topics.move(SnapshotKind.INDEX, StoredForm(None, (8, 0), ABORTS)))
    found = topics.form()
    assert (found.aborts.rows, found.max_read) == (ABORTS.rows, (8, 0))


def test_where_all_lies_behind_max_read_position_the_topic_is_replayed() -> None:
    topics = Topics()
    topics.run(topics.move(SnapshotKind.INDEX, StoredForm(None, (4, 0), ABORTS)))
    found = topics.form()
    assert (found.aborts.rows, found.max_read) == (0, (-1, -1))


def test_nothing_of_the_old_form_stays_but_the_single_one_beside_an_index() -> None:
    topics = Topics()
    topics.run(topics.move(SnapshotKind.SINGLE, StoredForm(None, (6, 4), ABORTS)))
    for kind in (SnapshotKind.INDEX, SnapshotKind.PARTS, SnapshotKind.SINGLE):
        topics.run(topics.move(kind, topics.form()))
    assert {kind: set(values) for kind, values in topics.latest.items() if values} == {SnapshotKind.SINGLE: {TOPIC}}


def test_a_single_snapshot_that_no_message_holds_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(FormatError, match="more than 30"):
        next(to_single(TOPIC, StoredForm(None, (6, 4), ABORTS), 30, {}))


def test_no_snapshot_is_none() -> None:
    assert current(Topics().stored, TOPIC, LEDGERS, NEWEST).kind is None


def test_a_topic_with_a_name_like_a_part_keeps_its_own() -> None:
    topics = Topics()
    topics.run(to_single(OTHER, StoredForm(None, (6, 4), ABORTS), 1000, {}))
    topics.run(topics.move(SnapshotKind.PARTS, StoredForm(None, (6, 4), ABORTS)))
    assert OTHER in topics.latest[SnapshotKind.SINGLE]
