from streaming.rocketmq.inspect.check import CheckResult, QueueState
from streaming.rocketmq.inspect.printing import check_json, check_lines
from udfs.rocketmq.compare import Finding, FindingKind

QUEUES = (
    QueueState(topic="T", queue_id=0, first=0, next=5, file_end=5, units=5),
    QueueState(topic="T", queue_id=1, first=2, next=7, file_end=6, units=5),
)
MISSING = Finding(
    topic=b"T", queue_id=1, kind=FindingKind.MISSING, count=3, offset=4, text="it is missing from the database"
)
CHECKPOINT = Finding(
    topic=b"", queue_id=-1, kind=FindingKind.CHECKPOINT, count=1, offset=-1, text="the database has no CHECKPOINT"
)
WELL = CheckResult(queues=QUEUES, findings=(), notes=("a note",), checkpoint=100, log_end=100)
WRONG = CheckResult(queues=QUEUES, findings=(MISSING, CHECKPOINT), notes=(), checkpoint=0, log_end=100)


def test_a_sound_store_is_one_line_and_the_notes() -> None:
    assert list(check_lines(WELL)) == ["note: a note", "no fault: 2 queues, 10 units, commitlog up to 100"]


def test_with_a_topic_nothing_is_printed_about_others() -> None:
    assert list(check_lines(WELL, "T"))[-1] == "no fault in this topic: 2 queues, 10 units, commitlog up to 100"


def test_of_a_topic_each_queue_has_a_line() -> None:
    lines = list(check_lines(WRONG, "T"))
    assert lines[0].startswith("T queue 0: ready, first 0, next 5")
    assert lines[1].startswith("T queue 1: 1 finding, first 2, next 7, next of the file queue 6")
    assert lines[2] == "MISSING T queue 1: it is missing from the database (3 units, from offset 4)"
    assert lines[3] == "CHECKPOINT the database has no CHECKPOINT"


def test_json_has_the_queues_with_findings_and_one_line_for_all() -> None:
    queue, total = check_json(WRONG)
    assert (queue["topic"], queue["queue_id"], queue["findings"][0]["kind"]) == ("T", 1, "MISSING")
    assert (total["ok"], total["findings"], total["others"][0]["kind"]) == (False, 2, "CHECKPOINT")
    assert len(list(check_json(WELL, "T"))) == 3


def test_json_contains_a_queue_that_only_the_log_has() -> None:
    nowhere = Finding(
        topic=b"T",
        queue_id=9,
        kind=FindingKind.NO_QUEUE,
        count=1,
        offset=0,
        text="file queue and database end before it",
    )
    (total,) = check_json(WELL._replace(findings=(nowhere,)))
    assert [(each["kind"], each["topic"], each["queue_id"]) for each in total["others"]] == [("NO_QUEUE", "T", 9)]


def test_json_of_a_finding_about_no_queue_names_none() -> None:
    *_, total = check_json(WRONG)
    assert [(each["kind"], each["topic"], each["queue_id"]) for each in total["others"]] == [("CHECKPOINT", None, None)]
