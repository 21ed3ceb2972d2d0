import numpy as np
import pytest

from udfs.rocketmq.compare import Finding, FindingKind, UnitRun, compare

ALL = [0, 1, 2, 3]


def run(offsets: list[int], *, phy: int = 0, tags: int = 0, time: int | None = None) -> UnitRun:
    offset = np.array(offsets, dtype=np.int64)
    times = None if time is None else offset + time
    return UnitRun(
        offset=offset,
        phy=offset * 100 + phy,
        size=np.full(len(offsets), 100, np.int32),
        tags=offset * 0 + tags,
        time=times,
    )


def kinds(queue: UnitRun, database: UnitRun, log: UnitRun) -> list[tuple[FindingKind, int, int]]:
    found = compare((b"T", 0, 0, 4), queue=queue, database=database, log=log)
    return [(each.kind, each.count, each.offset) for each in found]


def test_three_times_the_same_is_well() -> None:
    assert kinds(run(ALL), run(ALL, time=5), run(ALL, time=5)) == []


@pytest.mark.parametrize(
    ("queue", "database", "log", "expected"),
    [
        (run(ALL), run([0, 3], time=5), run(ALL, time=5), [(FindingKind.MISSING, 2, 1)]),
        (run(ALL), run(ALL, time=5, phy=1), run(ALL, time=5), [(FindingKind.DIFFERENT, 4, 0)]),
        (run(ALL), run(ALL, time=5, tags=1), run(ALL, time=5), [(FindingKind.DIFFERENT, 4, 0)]),
        (run(ALL), run(ALL, time=6), run(ALL, time=5), [(FindingKind.TIME, 4, 0)]),
        (run([0, 1, 2]), run(ALL, time=5), run([0, 1, 2], time=5), [(FindingKind.NO_MESSAGE, 1, 3)]),
        (run([0, 3]), run(ALL, time=5), run(ALL, time=5), [(FindingKind.FILE_MISSING, 2, 1)]),
        (run([0, 1]), run(ALL, time=5), run(ALL, time=5), []),
        (run(ALL, tags=1), run(ALL, time=5), run(ALL, time=5), [(FindingKind.FILE_DIFFERENT, 4, 0)]),
        (run(ALL), run([0, 1, 2], time=5), run([0, 1, 2], time=5), [(FindingKind.FILE_NO_MESSAGE, 1, 3)]),
    ],
    ids=["holes", "place", "tags", "time", "no message", "hole in the file", "short file", "file differs", "file only"],
)
def test_what_differs_is_found(
    queue: UnitRun, database: UnitRun, log: UnitRun, expected: list[tuple[FindingKind, int, int]]
) -> None:
    assert kinds(queue, database, log) == expected


def test_a_finding_names_the_queue() -> None:
    (found,) = compare((b"T", 7, 2, 3), queue=run([]), database=run([], time=0), log=run([2], time=0))
    assert found == Finding(
        topic=b"T", queue_id=7, kind=FindingKind.MISSING, count=1, offset=2, text="it is missing from the database"
    )
