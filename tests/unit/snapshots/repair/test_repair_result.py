"""The line that the terminal shows for a repair."""

from streaming.snapshots.repair.repair_result import RepairResult


def test_what_a_repair_came_to_stands_in_one_line() -> None:
    said = RepairResult(topic="T", journal="1.json", aborted=3, known=4, expected=3, delivered=2).describe()
    assert said == (
        "T is loaded again and has 3 aborted ids (its old snapshot had 4); a reader gets 2 entries, none of them "
        "aborted. The old index is 1.json in the journal"
    )
