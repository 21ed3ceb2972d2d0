"""Measures the encoding and decoding of ten million aborted ids, part by part, and the memory of a part.

.venv/bin/python -m bench.snapshots [--ids 10000000] [--part 500000]
"""

import argparse
import resource
import time

import numpy as np

from udfs.formats.internal_stats import BEFORE_ALL
from udfs.snapshots.aborts import Aborts
from udfs.snapshots.codec import Segment, Snapshot, decode_segment, decode_snapshot, encode_segment, encode_snapshot
from udfs.snapshots.keys import Capacity, PartKey
from udfs.snapshots.sealed_segments import sealed
from udfs.snapshots.snapshot_parts import pieces

TOPIC = "persistent://public/default/orders"
_SEGMENT_IDS = 87_364  # of Pulsar's default size


def _made(first: int, rows: int) -> Aborts:
    """Return ids of a cluster with a million transactions per coordinator, in ledgers near 100,000."""
    at = np.arange(first, first + rows, dtype=np.int64)
    return Aborts(at % 16, 1_000_000 + at // 16, 100_000 + at // 50_000, at % 50_000)


def _moved(ids: int, part: int) -> int:
    """Read parts one by one and seal them as segments, like to_segments_of; return the number of ids in them."""
    capacity = Capacity(part, 1 << 40)
    keys = [PartKey(1, capacity, number + 1, TOPIC) for number in range(-(-ids // part))]

    def value_of(key: PartKey) -> bytes:
        if key.number is None:
            return encode_snapshot(Snapshot(TOPIC, (1, 1), _made(0, 0)))
        first = (key.number - 1) * part
        return encode_snapshot(Snapshot(TOPIC, BEFORE_ALL, _made(first, min(part, ids - first))))

    ledgers = range(100_000, 100_001 + ids // 50_000)
    sealing = sealed(TOPIC, pieces([*keys, PartKey(1, capacity, None, TOPIC)], value_of, ledgers), _SEGMENT_IDS)
    rows = 0
    while True:
        try:
            rows += next(sealing).ids.rows
        except StopIteration as ended:
            return rows + int(ended.value.rows)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ids", type=int, default=10_000_000)
    options.add_argument("--part", type=int, default=500_000)
    given = options.parse_args()
    for kind in ("single", "segment"):
        encoding = decoding = 0.0
        size = 0
        for first in range(0, given.ids, given.part):
            part = _made(first, min(given.part, given.ids - first))
            begin = time.perf_counter()
            if kind == "single":
                data = encode_snapshot(Snapshot(TOPIC, (1, 1), part))
            else:
                data = encode_segment(Segment(TOPIC, 1, (1, 1), part.ids))
            between = time.perf_counter()
            rows = decode_snapshot(data).aborts.rows if kind == "single" else decode_segment(data).ids.rows
            end = time.perf_counter()
            assert rows == part.rows
            encoding, decoding, size = encoding + between - begin, decoding + end - between, size + len(data)
        print(f"{kind}: {given.ids} ids, {size / given.ids:.2f} bytes an id, {encoding:.1f} s, back {decoding:.1f} s")
    begin = time.perf_counter()
    rows = _moved(given.ids, given.part)
    assert rows == given.ids
    print(f"parts to segments: {rows} ids, {time.perf_counter() - begin:.1f} s, the making of the parts included")
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
