"""The ledger in an unfinished upload's name, as read from BookKeeper: its metadata, nothing, or a fault."""

from dataclasses import replace

import pytest

from streaming.sweep.jobs import Job
from streaming.sweep.tiered_storage.offload_jobs import OffloadJob, OffloadRules, opened
from streaming.sweep.tiered_storage.upload_owners import ask_bookkeeper
from tests.builders import HOUR_MS, OTHER_TOPIC, ROOT, UUID, data_custom, data_request
from tests.world import EPOCH, POLICY, Bench, path_of
from udfs.paths import Layout
from udfs.records import LedgerType, OffloadContext, OffloadFacts, StoredObject, UnfinishedUpload
from udfs.verdicts.judge_offload import OffloadPolicy

RULES = OffloadRules((EPOCH, 0), OffloadPolicy(POLICY, HOUR_MS, "ours"), Layout.HIERARCHICAL, ROOT)
PARTS = OffloadFacts(data=None, index=None, uploads=(UnfinishedUpload("name", "id", 1),))
PAIR = replace(PARTS, index=StoredObject(size_bytes=1, last_modified_ms=1))


def job(facts: OffloadFacts = PARTS, ledger_id: int = 5) -> OffloadJob:
    request = replace(
        data_request(ledger_id), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=OffloadContext(uuid=UUID)
    )
    upload_job = opened(Job(request))
    upload_job.objects = facts
    return upload_job


def test_metadata_if_bookkeeper_has_the_ledger() -> None:
    bench = Bench()
    bench.ledger(data_request(5, OTHER_TOPIC))
    upload_job = job()
    ask_bookkeeper(bench.loader(), RULES, [upload_job])
    assert upload_job.facts.ledger is not None
    assert upload_job.facts.ledger.custom_metadata == data_custom(OTHER_TOPIC)
    assert upload_job.facts.ledger_unread == ""


def test_nothing_if_bookkeeper_has_no_such_ledger() -> None:
    upload_job = job()
    ask_bookkeeper(Bench().loader(), RULES, [upload_job])
    assert (upload_job.facts.ledger, upload_job.facts.ledger_unread) == (None, "")


@pytest.mark.parametrize("is_unreadable", [True, False])
def test_a_fault_if_the_ledger_cannot_be_read(*, is_unreadable: bool) -> None:
    bench = Bench()
    bench.ledger(data_request(5), data=b"junk")
    bench.store.unreadable |= {path_of(5)} if is_unreadable else set()
    upload_job = job()
    ask_bookkeeper(bench.loader(), RULES, [upload_job])
    assert upload_job.facts.ledger is None
    assert upload_job.facts.ledger_unread.startswith("its ledger can't be")


def test_only_the_ledgers_of_jobs_with_nothing_but_parts_are_read() -> None:
    bench = Bench()
    bench.ledger(data_request(5))
    asked: list[str] = []
    bench.store.faults.before(lambda _operation, paths: asked.extend(paths))
    jobs = [job(PAIR, 4), job(), job(ledger_id=6), job(OffloadFacts(data=None, index=None), 7)]
    ask_bookkeeper(bench.loader(), RULES, jobs)
    assert asked == [path_of(5), path_of(6)]
    assert [upload_job.facts.ledger is not None for upload_job in jobs] == [False, True, False, False]
    assert jobs[0].facts.ledger_unread
