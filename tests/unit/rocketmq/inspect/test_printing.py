from streaming.rocketmq.inspect.check import CheckResult, QueueState
from streaming.rocketmq.inspect.printing import check_json, check_lines
from udfs.rocketmq.compare import Finding, FindingKind

QUEUES = (QueueState("T", 0, 0, 5, 5, 5), QueueState("T", 1, 2, 7, 6, 5))
MISSING = Finding(b"T", 1, FindingKind.MISSING, 3, 4, "it is missing from the database")
CHECKPOINT = Finding(b"", -1, FindingKind.CHECKPOINT, 1, -1, "the database has no CHECKPOINT")
WELL = CheckResult(QUEUES, (), ("a note",), 100, 100)
WRONG = CheckResult(QUEUES, (MISSING, CHECKPOINT), (), 0, 100)


def test_all_well_is_one_line_and_the_notes() -> None:
    assert list(check_lines(WELL)) == ["note: a note", "all is well: 2 queues, 10 units, commitlog up to 100"]


def test_of_a_topic_nothing_is_said_of_the_others() -> None:
    assert list(check_lines(WELL, "T"))[-1] == "this topic is well: 2 queues, 10 units, commitlog up to 100"


def test_of_a_topic_each_queue_has_a_line() -> None:
    lines = list(check_lines(WRONG, "T"))
    assert lines[0].startswith("T queue 0: ready, first 0, next 5")
    assert lines[1].startswith("T queue 1: 1 findings, first 2, next 7, next of the file queue 6")
    assert lines[2] == "MISSING T queue 1: it is missing from the database (3 units, from offset 4)"
    assert lines[3] == "CHECKPOINT the database has no CHECKPOINT"


def test_json_has_the_queues_with_findings_and_one_line_for_all() -> None:
    queue, total = check_json(WRONG)
    assert (queue["topic"], queue["queue_id"], queue["findings"][0]["kind"]) == ("T", 1, "MISSING")
    assert (total["ok"], total["findings"], total["others"][0]["kind"]) == (False, 2, "CHECKPOINT")
    assert len(list(check_json(WELL, "T"))) == 3


def test_json_tells_of_a_queue_that_only_the_log_knows() -> None:
    nowhere = Finding(b"T", 9, FindingKind.NO_QUEUE, 1, 0, "file queue and database end before it")
    (total,) = check_json(WELL._replace(findings=(nowhere,)))
    assert [(each["kind"], each["topic"], each["queue_id"]) for each in total["others"]] == [("NO_QUEUE", "T", 9)]


def test_json_of_a_finding_about_no_queue_names_none() -> None:
    *_, total = check_json(WRONG)
    assert [(each["kind"], each["topic"], each["queue_id"]) for each in total["others"]] == [("CHECKPOINT", None, None)]
