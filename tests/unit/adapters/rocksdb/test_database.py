import errno
from pathlib import Path

import pytest

from streaming.adapters.rocksdb.database import exists, opened, write_sst
from streaming.errors import SafetyError, UnavailableError

ROWS = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def test_rows_are_written_read_in_order_and_there_after_a_close(tmp_path: Path) -> None:
    with opened(tmp_path / "d", ("offset",), compressed=True) as database:
        database.put_all("default", reversed(ROWS))
        database.put_atomically({"offset": [(b"x", b"9")], "default": [(b"d", b"4")]})
        database.delete("default", b"d")
    with opened(tmp_path / "d", read_only=True) as database:
        assert list(database.rows("default")) == ROWS
        assert list(database.rows("default", b"b")) == ROWS[1:]
        assert list(database.rows("default", b"b", b"c")) == ROWS[1:2]
        assert database.last_before("default", b"bb") == (b"b", b"2")
        assert database.last_before("default", b"A") is None
        assert (database.get("offset", b"x"), database.get("offset", b"y")) == (b"9", None)
        assert (database.has("offset"), database.has("other")) == (True, False)


def test_files_are_taken_in_beside_rows(tmp_path: Path) -> None:
    write_sst(tmp_path / "1.sst", [([b"a"], [b"1"]), ([b"b"], [b"2"])])
    write_sst(tmp_path / "2.sst", [([b"c"], [b"3"])])
    with opened(tmp_path / "d") as database:
        database.take_in([str(tmp_path / "2.sst"), str(tmp_path / "1.sst")])
        assert list(database.rows("default")) == ROWS


def test_what_was_written_is_in_files_after_a_flush_and_needs_no_close(tmp_path: Path) -> None:
    with opened(tmp_path / "d", ("offset",)) as database:
        database.put_all("offset", ROWS)
        database.flush()
        with opened(tmp_path / "d", read_only=True) as reader:
            assert list(reader.rows("offset")) == ROWS


def test_a_folder_that_is_no_database_is_reported(tmp_path: Path) -> None:
    assert not exists(tmp_path)
    with pytest.raises(SafetyError, match="can't be opened"), opened(tmp_path, read_only=True):
        pass
    (tmp_path / "CURRENT").write_text("MANIFEST-000001\n")
    assert exists(tmp_path)
    with pytest.raises(SafetyError, match="can't be opened"), opened(tmp_path, read_only=True):
        pass


def test_a_database_has_one_writer(tmp_path: Path) -> None:
    with opened(tmp_path / "d"), pytest.raises(UnavailableError), opened(tmp_path / "d"):
        pass


def test_damage_is_not_taken_for_a_lock_by_the_name_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "block-LOCK"
    with opened(folder) as database:
        database.put_all("default", ROWS)
    for manifest in folder.glob("MANIFEST-*"):
        manifest.write_bytes(b"x" * 100)
    with pytest.raises(SafetyError, match="can't be opened"), opened(folder):
        pass


def test_a_damaged_block_is_an_error_and_never_the_end_of_the_rows(tmp_path: Path) -> None:
    with opened(tmp_path / "d") as database:
        database.put_all("default", [(b"%06d" % number, bytes([number % 256]) * 50) for number in range(5000)])
        database.flush()
    file = max((tmp_path / "d").glob("*.sst"), key=lambda each: each.stat().st_size)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2 : len(raw) // 2 + 50] = bytes(50)
    file.write_bytes(raw)
    with opened(tmp_path / "d", read_only=True) as database:
        with pytest.raises(SafetyError, match=f"damaged.*{file.name}"):
            list(database.rows("default"))
        with pytest.raises(SafetyError, match="damaged"):
            [database.get("default", b"%06d" % number) for number in range(5000)]
        with pytest.raises(SafetyError, match="damaged"):
            [database.last_before("default", b"%06d" % number) for number in range(5000)]


def test_a_full_disk_is_distinguished_from_a_damaged_database(tmp_path: Path) -> None:
    (tmp_path / "000001.dbtmp").symlink_to("/dev/full")  # a file of RocksDB, which takes no byte there
    with pytest.raises(OSError, match="No space left on device") as caught, opened(tmp_path):
        pass
    assert caught.value.errno == errno.ENOSPC
