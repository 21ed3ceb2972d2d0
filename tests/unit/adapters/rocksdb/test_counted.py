import random
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from streaming.adapters.rocksdb.counted import CountedRows, write_counted
from streaming.adapters.rocksdb.database import opened, write_sst

TURN, HIGHEST = 1 << 16, (1 << 63) - 1
# where the bytes of a number that rows share change, where a block ends, and where neither does
FIRSTS = st.sampled_from([0, 1, 300, TURN - 1, TURN - 513, 5 * TURN, (1 << 32) - 700, (1 << 48) - 5, HIGHEST - 9000])
COUNTS = st.sampled_from([1, 2, 15, 16, 17, 511, 512, 513, 1024, 1500]) | st.integers(1, 2000)
PREFIXES = st.sets(st.binary(min_size=1, max_size=5) | st.binary(min_size=110, max_size=300), min_size=1, max_size=4)


def run(prefix: bytes, first: int, count: int, width: int = 28, seed: int | None = None) -> CountedRows:
    """Rows of values that can be compressed, or can't (seed)."""
    values = np.zeros((count, width), dtype=np.uint8)
    values[:, -1] = np.arange(count) % 251
    if seed is not None:
        values[:] = np.random.default_rng(seed).integers(0, 256, values.shape, dtype=np.uint8)
    return CountedRows(prefix, first, values.view(f"V{width}").ravel())


def rows_of(*runs: CountedRows) -> list[tuple[bytes, bytes]]:
    return [
        (each.prefix + (each.first + number).to_bytes(8, "big"), bytes(value))
        for each in runs
        for number, value in enumerate(each.values.tolist())
    ]


def apart(prefixes: set[bytes]) -> list[bytes]:
    """Those of which none begins another one, so that the runs of one lie before those of the next."""
    ordered = sorted(prefixes)
    return [each for each, after in pairwise([*ordered, b""]) if not after.startswith(each)]


@settings(max_examples=25, deadline=None)
@given(prefixes=PREFIXES, firsts=st.lists(FIRSTS, min_size=4, max_size=4), data=st.data())
def test_rocksdb_reads_what_was_written(prefixes: set[bytes], firsts: list[int], data: st.DataObject) -> None:
    runs = [
        run(
            prefix,
            first,
            data.draw(COUNTS),
            data.draw(st.sampled_from([1, 28, 200])),
            data.draw(st.none() | st.just(1)),
        )
        for prefix, first in zip(apart(prefixes), firsts, strict=False)
    ]
    wanted = rows_of(*runs)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        size = write_counted(root / "ours.sst", runs)
        assert size == (root / "ours.sst").stat().st_size
        write_sst(root / "theirs.sst", [([key for key, _ in wanted], [value for _, value in wanted])])
        for name in ("ours", "theirs"):
            with opened(root / name, compressed=True) as database:
                database.take_in([str(root / f"{name}.sst")])
                assert list(database.rows("default")) == wanted
        with opened(root / "ours", read_only=True) as database:
            step = max(len(wanted) // 700, 1)
            for place in range(0, len(wanted), step):
                key, value = wanted[place]
                assert database.get("default", key) == value
                assert database.get("default", key + b"\0") is None
                assert database.last_before("default", key + b"\0") == (key, value)
                assert next(database.rows("default", key)) == (key, value)


def test_rocksdb_reads_each_row_of_whole_turns_by_its_key(tmp_path: Path) -> None:
    runs = [run(b"a", TURN - 3, TURN + 1000), run(b"b", 7, 700)]
    write_counted(tmp_path / "1.sst", runs)
    with opened(tmp_path / "d") as database:
        database.take_in([str(tmp_path / "1.sst")])
        assert all(database.get("default", key) == value for key, value in rows_of(*runs))


def test_blocks_of_two_files_at_the_same_position_are_distinguished(tmp_path: Path) -> None:
    runs = [run(b"a", 0, 2000, seed=1), run(b"b", 0, 2000, seed=2)]
    for number, each in enumerate(runs):
        write_counted(tmp_path / f"{number}.sst", [each])
    with opened(tmp_path / "d") as database:
        database.take_in([str(tmp_path / "0.sst"), str(tmp_path / "1.sst")])
        found = rows_of(*runs)
        random.Random(1).shuffle(found)
        assert all(database.get("default", key) == value for key, value in found)


def test_rocksdb_compacts_it_with_rows_of_its_own(tmp_path: Path) -> None:
    each = run(b"a", 0, 3000)
    write_counted(tmp_path / "1.sst", [each])
    with opened(tmp_path / "d", compressed=True) as database:
        database.take_in([str(tmp_path / "1.sst")])
        database.put_all("default", [(rows_of(each)[5][0], b"other"), (b"b", b"behind")])
        database.flush()
    root = Rdict(str(tmp_path / "d"), Options(raw_mode=True))
    root.compact_range(None, None)
    root.close()
    wanted = dict(rows_of(each)) | {rows_of(each)[5][0]: b"other", b"b": b"behind"}
    with opened(tmp_path / "d", read_only=True) as database:
        assert dict(database.rows("default")) == wanted


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([run(b"b", 0, 5), run(b"a", 0, 5)], id="another prefix"),
        pytest.param([run(b"a", 0, 5), run(b"a", 4, 5)], id="a number twice"),
    ],
)
def test_keys_that_do_not_ascend_are_refused(tmp_path: Path, runs: list[CountedRows]) -> None:
    with pytest.raises(ValueError, match="does not follow"):
        write_counted(tmp_path / "1.sst", runs)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs rows"):
        write_counted(tmp_path / "1.sst", [run(b"a", 0, 0)])


def test_no_changed_byte_is_read_as_another_row(tmp_path: Path) -> None:
    each = run(b"a", 0, 1200)
    write_counted(tmp_path / "1.sst", [each])
    whole = (tmp_path / "1.sst").read_bytes()
    assert read_of(tmp_path / "1.sst", tmp_path / "whole") == rows_of(each)
    read = list[list[tuple[bytes, bytes]] | None]()
    for number, place in enumerate(range(0, len(whole), 149)):
        changed = bytearray(whole)
        changed[place] ^= 1 << number % 8
        path = tmp_path / f"{number}.changed"
        path.write_bytes(changed)
        read.append(read_of(path, tmp_path / f"{number}"))
    assert all(found in (None, rows_of(each)) for found in read)
    assert read.count(None) > len(read) * 0.9  # the footer has bytes that mean nothing


def read_of(path: Path, folder: Path) -> list[tuple[bytes, bytes]] | None:
    """The rows of a file; None where RocksDB does not take it in, or notices while it reads."""
    try:
        with opened(folder) as database:
            database.take_in([str(path)])
            return list(database.rows("default"))
    except Exception:  # rocksdict has no other
        return None
