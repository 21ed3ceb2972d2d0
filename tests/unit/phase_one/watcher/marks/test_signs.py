"""Signs of topics are passed on after a full scan, and unreadable znodes raise no error."""

import pytest

from streaming.phase_one.watcher.marks.signs import SignCollector, TopicSigns
from streaming.ports import Unreadable, Znode
from tests.builders import CURSOR, SCHEMA, TOPIC, cursor_znode, list_znode, locator_znode
from udfs.formats.compression import Compression
from udfs.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, serialize_managed_ledger
from udfs.paths import cursor_path, managed_ledger_path, schema_path
from udfs.phase_one.marks import Marks, properties_of
from udfs.phase_one.vanished_names import names_in

V1_TOPIC = "public/standalone/default/persistent/orders"
AT, CURSOR_AT, SCHEMA_AT = managed_ledger_path(TOPIC), cursor_path(TOPIC, CURSOR), schema_path(SCHEMA)
MARKED = Marks(frozenset({5}))


class Heard:
    """A SignCollector after its first scan."""

    def __init__(self) -> None:
        self.seen: list[TopicSigns] = []
        self.signs = SignCollector(self.seen.append)
        self.signs.scan_ended()

    def change(self, path: str, before: bytes, after: bytes) -> None:
        self.signs.observe(path, znode(after), names_in(path, before), names_in(path, after))

    def look(self) -> TopicSigns:
        self.signs.scan_ended()
        return self.seen[-1]


def znode(data: bytes) -> Znode:
    return Znode(data=data, version=1, ctime_ms=0, mtime_ms=0)


def marked(*listed: int, compression: Compression = Compression.NONE) -> bytes:
    info = ManagedLedgerInfo(
        tuple(LedgerInfo(ledger_id=each, entries=10) for each in listed), properties_of(MARKED, "m")
    )
    return serialize_managed_ledger(info, compression)


def test_signs_are_those_of_one_scan() -> None:
    heard = Heard()
    heard.change(AT, list_znode(1), list_znode(1, 2))
    assert heard.look() == TopicSigns(loaded={TOPIC})
    assert heard.look() == TopicSigns()
    heard.change(CURSOR_AT, cursor_znode(7), cursor_znode(-1))
    assert heard.look() == TopicSigns(closed={TOPIC})
    heard.change(CURSOR_AT, cursor_znode(-1), cursor_znode(8))
    assert heard.look() == TopicSigns(loaded={TOPIC})


def test_a_topic_created_since_the_last_scan_is_loaded_and_a_cursor_alone_is_no_sign() -> None:
    heard = Heard()
    heard.signs.observe(CURSOR_AT, znode(cursor_znode(7)), None, names_in(CURSOR_AT, cursor_znode(7)))
    assert heard.look() == TopicSigns()
    heard.signs.observe(AT, znode(list_znode(1)), None, names_in(AT, list_znode(1)))
    assert heard.look() == TopicSigns(loaded={TOPIC})
    heard.signs.observe(AT, znode(list_znode(1)), None, None)
    assert heard.look() == TopicSigns(), "it names the same as before"


def test_before_the_end_of_the_first_scan_nothing_is_a_sign_that_a_topic_is_loaded() -> None:
    seen: list[TopicSigns] = []
    signs = SignCollector(seen.append)
    signs.observe(AT, znode(marked(6)), names_in(AT, list_znode(1)), names_in(AT, list_znode(6)))
    signs.scan_ended()
    assert seen == [TopicSigns(marked={TOPIC})]


@pytest.mark.parametrize("compression", list(Compression))
def test_marks_are_found_also_in_a_compressed_list(compression: Compression) -> None:
    heard = Heard()
    heard.signs.observe(AT, znode(marked(5, 6, compression=compression)), None, None)
    assert heard.look() == TopicSigns(), "the list names it"
    heard.signs.observe(AT, znode(marked(6, compression=compression)), None, None)
    assert heard.look() == TopicSigns(marked={TOPIC})


def test_other_owners_v1_names_and_unreadable_znodes_are_no_signs() -> None:
    heard = Heard()
    heard.change(SCHEMA_AT, locator_znode(1), locator_znode(2))
    heard.change(managed_ledger_path(V1_TOPIC), list_znode(1), list_znode(2))
    heard.signs.observe(managed_ledger_path(V1_TOPIC), znode(marked(6)), None, None)
    heard.signs.observe("/elsewhere", znode(b""), None, None)
    heard.signs.observe(AT, None, names_in(AT, list_znode(1)), None)
    heard.signs.observe(AT, Unreadable("no right"), None, None)
    heard.signs.observe(AT, znode(b"\x07 ledger-reaper.deletable. of no list"), None, None)
    assert heard.look() == TopicSigns()
