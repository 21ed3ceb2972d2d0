import re
from pathlib import Path
from typing import Any

import pytest

from udfs.rocketmq.refusals import LOSSES, Code, DiskFacts, StoreFacts, losses_of, refusals_of


def codes(*, replace: bool = False, **facts: Any) -> list[Code]:
    return [each.code for each in refusals_of(StoreFacts(**facts), replace=replace)]


def test_a_healthy_store_is_not_refused() -> None:
    assert codes(topics=(b"T" * 281,), disk=DiskFacts(bytes_needed=5, bytes_free=5)) == []
    assert codes(disk=DiskFacts(bytes_kept=2, bytes_free=17, bytes_total=100)) == []


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"is_running": True, "has_abort": True}, Code.RUNNING),
        ({"has_abort": True}, Code.ABORT),
        ({"unfinished_rollback": "run it again"}, Code.ROLLBACK),
        ({"bad_bytes": ("a file",)}, Code.BAD_BYTES),
        ({"wrong_size": "a file is larger"}, Code.WRONG_SIZE),
        ({"batch_queues": "topic B"}, Code.BATCH_QUEUES),
        ({"ext_queues": "a file"}, Code.EXT_QUEUES),
        ({"compaction": "topic C"}, Code.COMPACTION),
        ({"config_manager": "V2"}, Code.CONFIG_V2),
        ({"has_one_database": True}, Code.CONFIG_V2),
        ({"other_databases": "config/rdb"}, Code.CONFIG_V2),
        ({"has_rocksdb": True}, Code.ROCKSDB_THERE),
        ({"databases_with_rows": ("topics",)}, Code.DATABASES_THERE),
        ({"topics": (b"T" * 282,)}, Code.LONG_TOPIC),
        ({"two_offset_files": "both"}, Code.TWO_OFFSET_FILES),
        ({"unread_offsets": "a file"}, Code.UNREAD_OFFSETS),
        ({"unknown_topics": (b"T",)}, Code.UNKNOWN_TOPICS),
        ({"unindexed": ("a queue",)}, Code.UNINDEXED),
        ({"lacks_queues": True}, Code.NO_QUEUES),
        ({"has_topics": False}, Code.NO_TOPICS),
        ({"disk": DiskFacts(is_one_disk=False)}, Code.OTHER_DISK),
        ({"wrong_user": "it is another's"}, Code.WRONG_USER),
        ({"disk": DiskFacts(bytes_needed=6, bytes_free=5)}, Code.NO_SPACE),
        ({"disk": DiskFacts(bytes_kept=2, bytes_free=16, bytes_total=100)}, Code.CROWDED_DISK),
    ],
    ids=str,
)
def test_each_reason_alone_refuses_a_store(facts: dict[str, Any], code: Code) -> None:
    assert codes(**facts) == [code]


def test_all_reasons_are_reported_together() -> None:
    assert codes(has_abort=True, has_rocksdb=True, disk=DiskFacts(is_one_disk=False)) == [
        Code.ABORT,
        Code.ROCKSDB_THERE,
        Code.OTHER_DISK,
    ]


def test_a_database_of_queues_may_be_replaced_and_one_of_offsets_never() -> None:
    assert codes(has_rocksdb=True, replace=True) == []
    assert codes(has_rocksdb=True, databases_with_rows=("topics",), replace=True) == [Code.DATABASES_THERE]


def test_only_a_loss_can_be_accepted() -> None:
    facts = StoreFacts(unread_offsets="a file", unknown_topics=(b"T",), unindexed=("a queue",), has_abort=True)
    assert [each.code for each in refusals_of(facts, accept_loss=tuple(Code))] == [Code.ABORT]


@pytest.mark.parametrize("code", LOSSES)
def test_an_accepted_loss_accepts_no_other_loss_and_is_named(code: Code) -> None:
    facts = StoreFacts(unread_offsets="a file", unknown_topics=(b"T",), unindexed=("a queue",))
    (loss,) = losses_of(facts, [code])
    assert loss.code == code
    assert "--accept-loss" not in loss.text
    refusals = refusals_of(facts, accept_loss=[code])
    assert [each.code for each in refusals] == [each for each in LOSSES if each != code]
    assert all(each.text.endswith(f"`backfill --accept-loss {each.code}`") for each in refusals)


def test_an_empty_store_needs_no_topics() -> None:
    assert codes(has_topics=False, has_messages=False) == []


def test_a_broker_whose_queues_only_rocksdb_has_is_never_sent_back_to_files() -> None:
    (refusal,) = refusals_of(StoreFacts(lacks_queues=True, has_rocksdb=True), replace=True)
    assert refusal.code == Code.NO_QUEUES
    assert "let the broker use it" in refusal.text
    assert all("file mode" not in each.text for each in refusals_of(StoreFacts(has_abort=True)))


def test_the_docs_have_advice_for_each_reason() -> None:
    table = (Path(__file__).parents[4] / "docs" / "rocketmq.md").read_text(encoding="utf-8")
    assert [code for code in Code if not re.search(rf"^\|[^|]*\b{code.name}\b[^|]*\|", table, re.MULTILINE)] == []
