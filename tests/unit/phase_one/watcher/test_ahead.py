"""What is heard of topics is handed over after a whole look, and nothing that can't be read raises."""

import pytest

from streaming.phase_one.watcher.ahead import Ahead, Seen
from streaming.ports import Unreadable, Znode
from tests.builders import CURSOR, SCHEMA, TOPIC, cursor_znode, list_znode, locator_znode
from udfs.formats.compression import Compression
from udfs.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, serialize_managed_ledger
from udfs.paths import cursor_path, managed_ledger_path, schema_path
from udfs.phase_one.marks import Marks, properties_of
from udfs.phase_one.watched import names_in

V1_TOPIC = "public/standalone/default/persistent/orders"
AT, CURSOR_AT, SCHEMA_AT = managed_ledger_path(TOPIC), cursor_path(TOPIC, CURSOR), schema_path(SCHEMA)
MARKED = Marks(frozenset({5}))


class Heard:
    """An Ahead after its first look."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.ahead = Ahead(self.seen.append)
        self.ahead.looked()

    def change(self, path: str, before: bytes, after: bytes) -> None:
        self.ahead.saw(path, znode(after), names_in(path, before), names_in(path, after))

    def look(self) -> Seen:
        self.ahead.looked()
        return self.seen[-1]


def znode(data: bytes) -> Znode:
    return Znode(data, 1, 0, 0)


def marked(*listed: int, compression: Compression = Compression.NONE) -> bytes:
    info = ManagedLedgerInfo(tuple(LedgerInfo(each, 10) for each in listed), properties_of(MARKED, "m"))
    return serialize_managed_ledger(info, compression)


def test_signs_are_those_of_one_look() -> None:
    heard = Heard()
    heard.change(AT, list_znode(1), list_znode(1, 2))
    assert heard.look() == Seen(loaded={TOPIC})
    assert heard.look() == Seen()
    heard.change(CURSOR_AT, cursor_znode(7), cursor_znode(-1))
    assert heard.look() == Seen(closed={TOPIC})
    heard.change(CURSOR_AT, cursor_znode(-1), cursor_znode(8))
    assert heard.look() == Seen(loaded={TOPIC})


def test_a_topic_that_was_made_since_the_last_look_is_loaded_and_a_cursor_alone_says_nothing() -> None:
    heard = Heard()
    heard.ahead.saw(CURSOR_AT, znode(cursor_znode(7)), None, names_in(CURSOR_AT, cursor_znode(7)))
    assert heard.look() == Seen()
    heard.ahead.saw(AT, znode(list_znode(1)), None, names_in(AT, list_znode(1)))
    assert heard.look() == Seen(loaded={TOPIC})
    heard.ahead.saw(AT, znode(list_znode(1)), None, None)
    assert heard.look() == Seen(), "it names the same as before"


def test_before_the_first_look_has_ended_nothing_is_a_sign_that_a_topic_is_loaded() -> None:
    seen: list[Seen] = []
    ahead = Ahead(seen.append)
    ahead.saw(AT, znode(marked(6)), names_in(AT, list_znode(1)), names_in(AT, list_znode(6)))
    ahead.looked()
    assert seen == [Seen(marked={TOPIC})]


@pytest.mark.parametrize("compression", list(Compression))
def test_marks_are_found_also_in_a_compressed_list(compression: Compression) -> None:
    heard = Heard()
    heard.ahead.saw(AT, znode(marked(5, 6, compression=compression)), None, None)
    assert heard.look() == Seen(), "the list names it"
    heard.ahead.saw(AT, znode(marked(6, compression=compression)), None, None)
    assert heard.look() == Seen(marked={TOPIC})


def test_other_owners_v1_names_and_what_cannot_be_read_tell_nothing() -> None:
    heard = Heard()
    heard.change(SCHEMA_AT, locator_znode(1), locator_znode(2))
    heard.change(managed_ledger_path(V1_TOPIC), list_znode(1), list_znode(2))
    heard.ahead.saw(managed_ledger_path(V1_TOPIC), znode(marked(6)), None, None)
    heard.ahead.saw("/elsewhere", znode(b""), None, None)
    heard.ahead.saw(AT, None, names_in(AT, list_znode(1)), None)
    heard.ahead.saw(AT, Unreadable("no right"), None, None)
    heard.ahead.saw(AT, znode(b"\x07 ledger-reaper.deletable. of no list"), None, None)
    assert heard.look() == Seen()
