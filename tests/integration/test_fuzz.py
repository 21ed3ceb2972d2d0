"""Random odd messages on any topic: each message ends in one receipt, and valid requests do not wait.

drawn_messages.py draws the odd messages. They are published to the listed request topic, a tenant's own topic, RETRY
and the DLQ, beside valid requests. LEDGER_REAPER_FUZZ_SEED draws the same messages again, LEDGER_REAPER_FUZZ_SECONDS
is the duration, and LEDGER_REAPER_FUZZ_KINDS (separated by commas) restricts the kinds. The seed is printed.
"""

import os
import random
import statistics
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from streaming.clients import admin_for
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.state import receipts
from streaming.topics.setup import ensure_topics
from tests.integration.conftest import (
    Deploy,
    Deployment,
    create_tenant,
    deployment,
    kill,
    leak,
    payload,
    stop,
    wait_until,
)
from tests.integration.drawn_messages import REFUSED, Drawer
from tests.integration.odd_messages import Senders, senders
from tests.integration.stored_messages import StoredMessages
from udfs import columns as c
from udfs.entry_ranges import MessageAddress
from udfs.records import Outcome, Reason

SECONDS, SEED, KINDS = (os.environ.get(f"LEDGER_REAPER_FUZZ_{name}", "") for name in ("SECONDS", "SEED", "KINDS"))
ANSWERED_WITHIN_S = 150
# A hostile tenant's own topic: its slow lanes take turns, one at a time, and each may wait a minute for entries that
# the broker does not return.
WITHIN_ITS_SHARE_S = 600
NEIGHBOUR_WITHIN_S = 90  # a topic without odd messages: the minute of promise 8, and one chunk
PAUSE_S = 8.0
# the service must not act on the content of these messages
NOT_ACTED_ON = {
    "aborted",
    "encrypted",
    "encrypted_and_compressed",
    "encrypted_batch",
    "flagged_as_encrypted",
    "marker_with_a_request",
    "open_unknown_to_the_coordinator",
}


@dataclass
class Arena:
    """A service with a listed request topic and a topic for each of two tenants; the rival's gets no odd message."""

    cluster: Cluster
    service: Deployment
    owners: dict[str, str]  # the topic that the valid requests of each request topic name
    odd_topics: list[str]
    foreign: str  # the rival's topic with data
    in_use: set[int]  # ledgers that topics use
    stored: StoredMessages
    further: list[str]  # more topics of the hostile tenant, without valid requests
    kept: set[int] = field(default_factory=set)  # leaked ledgers that only messages name which must not be acted on
    acknowledged: set[MessageAddress] = field(default_factory=set)  # as the brokers answered, without any of our code
    requests: dict[int, tuple[str, float]] = field(default_factory=dict)  # valid: ledger to topic and time (s)
    descriptions: list[str] = field(default_factory=list)  # of the odd messages, in the order of publication
    refused: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)

    def within_s(self, topic: str, *, was_retried: bool) -> float:
        """Return how long a valid request on that topic may wait.

        Args:
            was_retried: a copy of the request was in RETRY, which has odd messages, too.
        """
        if topic not in self.odd_topics:
            return ANSWERED_WITHIN_S if was_retried else NEIGHBOUR_WITHIN_S
        is_listed = topic in self.service.settings.topics.requests
        return ANSWERED_WITHIN_S if is_listed or not self.further else WITHIN_ITS_SHARE_S

    @property
    def record(self) -> str:
        """The last odd messages, one of which caused the failure."""
        return "\n".join(["published last:", *self.descriptions[-40:]])


def test_the_same_seed_draws_the_same_messages() -> None:
    def draw(seed: int) -> list[tuple[str, str]]:
        drawer = Drawer(random.Random(seed), transactions=True)
        drawn = [drawer.draw(drawer.kind(), b"{}") for _ in range(300)]
        return [(odd.kind, odd.description) for odd in drawn]

    assert draw(5) == draw(5) != draw(6)


@pytest.mark.cluster
@pytest.mark.long  # its messages differ from run to run, and a commit must not fail by luck
@pytest.mark.timeout(900)
def test_odd_messages_of_a_minute_block_no_valid_request(cluster: Cluster, deploy: Deploy, tmp_path: Path) -> None:
    _fuzz(_arena(cluster, deploy(), further=0), tmp_path, float(SECONDS or 60), transactions=False)


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(7200)
def test_odd_messages_and_transactions_of_twenty_minutes_block_no_valid_request(
    transactional: Cluster, tmp_path: Path
) -> None:
    here = tmp_path / "service"
    here.mkdir()
    service = deployment(transactional, here)
    _fuzz(_arena(transactional, service, further=3), tmp_path, float(SECONDS or 1200), transactions=True)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _arena(cluster: Cluster, service: Deployment, *, further: int) -> Arena:
    """Create the tenants, their topics and the ledgers in use; `further` counts more topics of the hostile tenant."""
    suffix = uuid.uuid4().hex[:8]
    acme, rival = f"acme-{suffix}", f"rival-{suffix}"
    for tenant in (acme, rival):
        create_tenant(cluster, tenant, "reaper")
        # without retention the broker drops a ledger once all its entries are processed, before they are compared
        for_ever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        topics.admin(cluster, "POST", f"namespaces/{tenant}/reaper/retention", for_ever)
    pattern = f'requests_pattern = "persistent://({acme}|{rival})/reaper/d[0-9]*"'
    service.config.write_text(service.config.read_text().replace("[two_phase]", f"{pattern}\n[two_phase]"))
    settings = service.settings.topics
    acmes, rivals = f"persistent://{acme}/reaper/d", f"persistent://{rival}/reaper/d"
    more_topics = [f"{acmes}{number}" for number in range(further)]
    owners = {
        settings.requests[0]: f"persistent://public/default/fuzz-{suffix}",
        acmes: f"persistent://{acme}/reaper/data",
        rivals: f"persistent://{rival}/reaper/data",
    }
    in_use: set[int] = set()
    for owner in owners.values():
        topics.fill(cluster, owner, 2, ["s"])
        in_use |= {*topics.data_ledgers(cluster, owner), *topics.cursor_ledgers(cluster, owner).values()} - {-1}
    with admin_for(service.settings) as admin:
        ensure_topics(admin, service.settings)
        for topic in (acmes, rivals, *more_topics):
            admin.create_partitioned_topic(topic, 2)
            admin.ensure_subscription(topic, settings.subscription)
    odd = [settings.requests[0], acmes, *more_topics, settings.retry, settings.dead_letter]
    return Arena(
        cluster=cluster,
        service=service,
        owners=owners,
        odd_topics=odd,
        foreign=owners[rivals],
        in_use=in_use,
        stored=StoredMessages(service.settings),
        further=more_topics,
    )


def _fuzz(arena: Arena, here: Path, seconds: float, *, transactions: bool) -> None:
    seed = int(SEED or random.SystemRandom().randrange(1 << 32))
    _print(f"LEDGER_REAPER_FUZZ_SEED={seed} LEDGER_REAPER_FUZZ_SECONDS={seconds:.0f}")
    chance = random.Random(seed)
    # a second generator: the drawn messages must not depend on the number of ledgers that `chance` chooses from
    drawer = Drawer(random.Random(seed), transactions=transactions, only=[kind for kind in KINDS.split(",") if kind])
    service, log = arena.service, here / "run.log"
    with _reporting(arena, seed), senders(arena.cluster.addresses.pulsar, transactions=transactions) as send:
        running = service.start("run", log=log)
        unanswered = partial(_unanswered_requests, arena)
        answered = partial(_until_none, unanswered, running, log, seconds=ANSWERED_WITHIN_S)
        try:
            _request_leaked(arena, send)
            answered()
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s:
                for _ in range(chance.randrange(1, 9)):
                    _publish_odd(arena, send, chance, drawer)
                _request_leaked(arena, send)
                time.sleep(chance.uniform(0, PAUSE_S))
                late = _late(arena)
                assert not late, late
            _until_none(unanswered, running, log, seconds=WITHIN_ITS_SHARE_S)
            _until_none(partial(_without_receipt, arena), running, log, seconds=300)
            stop(running)
        finally:
            kill(running)
        _process_all(service, here / "until-idle.log")
        _check_promises(arena)


def _process_all(service: Deployment, log: Path) -> None:
    start_s = time.monotonic()
    running = service.start("run", "--until-idle", log=log)
    try:
        assert running.wait(400) == 0, log.read_text()[-3000:]
    except subprocess.TimeoutExpired as error:
        error.add_note(log.read_text()[-3000:])
        raise
    finally:
        kill(running)
    _print(f"run --until-idle took {time.monotonic() - start_s:.0f} s")


@contextmanager
def _reporting(arena: Arena, seed: int) -> Iterator[None]:
    """Add the seed and the last messages to a failure."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"LEDGER_REAPER_FUZZ_SEED={seed}\n{arena.record}")
        raise
    finally:
        _print(f"published: {dict(arena.sent)}\nrefused: {dict(arena.refused)}")


def _partitions(arena: Arena, topic: str) -> list[str]:
    with admin_for(arena.service.settings) as admin:
        return [f"{topic}-partition-{number}" for number in range(admin.partitions(topic) or 0)]


def _publish_odd(arena: Arena, send: Senders, chance: random.Random, drawer: Drawer) -> None:
    topic = chance.choice(arena.odd_topics)
    partition = chance.choice(_partitions(arena, topic))
    kind = drawer.kind()
    drawn = drawer.draw(
        kind, _request_not_to_act_on(arena) if kind in NOT_ACTED_ON else _drawn_request(arena, chance, topic)
    )
    if drawn.may_wait and topic == arena.service.settings.topics.retry:
        partition = f"{arena.service.settings.topics.requests[0]}-partition-0"
    description = f"{drawn.kind} on {partition}: {drawn.description}"
    before = send.acknowledged
    try:
        drawn.publish(send, partition)
    except REFUSED as error:
        arena.refused[drawn.kind] += 1
        description += f"  REFUSED: {str(error)[:100]}"
        send.raw.reconnect()
    if not drawn.may_be_none:
        arena.acknowledged |= send.acknowledged - before
    arena.sent[drawn.kind] += 1
    arena.descriptions.append(description)


def _drawn_request(arena: Arena, chance: random.Random, topic: str) -> bytes:
    """Return a request for a ledger in use, a leaked ledger of the rival (only from the other tenant), or no ledger."""
    owner = arena.owners.get(topic, next(iter(arena.owners.values())))
    match chance.randrange(3):
        case 0:
            return payload(owner, chance.choice(sorted(arena.in_use)))
        case 1 if topic not in arena.service.settings.topics.requests and topic in arena.owners:
            return _request_not_to_act_on(arena)
        case _:
            return payload(owner, 4 * 10**15 + chance.randrange(1000))


def _request_not_to_act_on(arena: Arena) -> bytes:
    """Leak a ledger of the rival; the service must not act on the message that gets this request."""
    (ledger_id,) = leak(arena.cluster, arena.foreign, 1)
    arena.kept.add(ledger_id)
    return payload(arena.foreign, ledger_id)


def _request_leaked(arena: Arena, send: Senders) -> None:
    """Publish a valid request for a leaked ledger to each request topic."""
    for topic, owner in arena.owners.items():
        (ledger_id,) = leak(arena.cluster, owner, 1)
        producer = send.python.create_producer(topic)
        producer.send(payload(owner, ledger_id))
        producer.close()
        arena.requests[ledger_id] = (topic, time.time())


def _answers(arena: Arena) -> dict[int, int]:
    """Return the time (ms) of each ledger's deletion."""
    rows = arena.service.receipts()
    return {row["ledger_id"]: row["at_ms"] for row in rows if row["outcome"] == Outcome.DELETED}


def _unanswered_requests(arena: Arena) -> list[tuple[str, int]]:
    """Return topic and ledger of each valid request whose ledger was not deleted yet."""
    answers = _answers(arena)
    return [(topic, ledger_id) for ledger_id, (topic, _sent_s) in arena.requests.items() if ledger_id not in answers]


def _late(arena: Arena) -> list[tuple[str, int, float]]:
    """Return topic, ledger and wait (s) of each valid request that waited too long."""
    answers, retried = _answers(arena), _retried(arena)
    waits = (
        (topic, ledger_id, answers.get(ledger_id, time.time() * 1000) / 1000 - sent_s)
        for ledger_id, (topic, sent_s) in arena.requests.items()
    )
    return [wait for wait in waits if wait[2] > arena.within_s(wait[0], was_retried=wait[1] in retried)]


def _retried(arena: Arena) -> set[int]:
    """Return the ledgers whose request was retried because the ledger was too young."""
    return {row["ledger_id"] for row in arena.service.receipts() if row["outcome"] == Outcome.RETRY}


def _until_none(
    left: Callable[[], Sequence[object]], running: subprocess.Popen[bytes], log: Path, *, seconds: float
) -> None:
    """Wait until nothing is left; a failure lists the rest."""
    try:
        wait_until(lambda: not left(), running, log, seconds=seconds)
    except AssertionError as error:
        error.add_note("without an answer: " + "\n".join(map(str, left()[:20])))
        raise


def _stored(arena: Arena, *topics: str) -> dict[MessageAddress, str | None]:
    """Return every message of the topics, and the copy id of those that are copies."""
    return arena.stored.of([partition for topic in topics for partition in _partitions(arena, topic)])


def _answered(arena: Arena) -> Counter[MessageAddress]:
    rows = receipts.rows(arena.service.settings.state.dir, columns=list(c.POSITION))
    return Counter(
        (row[c.SOURCE], row[c.POSITION_LEDGER], row[c.POSITION_ENTRY], row[c.POSITION_BATCH]) for row in rows
    )


def _not_shown(arena: Arena) -> set[tuple[str, int, int]]:
    """Return entries that the broker did not send when they were read: one receipt covers all their messages.

    The broker may send them later, once an earlier open transaction has ended.
    """
    rows = receipts.rows(arena.service.settings.state.dir, columns=[*c.POSITION, c.REASON])
    return {
        (row[c.SOURCE], row[c.POSITION_LEDGER], row[c.POSITION_ENTRY])
        for row in rows
        if row[c.REASON] == Reason.NOT_SHOWN
    }


def _without_receipt(arena: Arena) -> list[MessageAddress]:
    """Return the messages without a receipt on the topics that the service reads.

    An entry that the broker shows neither to the service nor to this test appears with batch index -1.
    """
    answered, whole = _answered(arena), _not_shown(arena)
    answered_entries = {address[:3] for address in answered}
    stored = _stored(arena, *_read_topics(arena))
    arena.stored.read_again(arena.stored.unread - answered_entries)
    missing = [address for address in stored if address not in answered and address[:3] not in whole]
    unread = arena.stored.unread - answered_entries
    return missing + [(*entry, -1) for entry in unread if _is_read(arena, entry[0])]


def _read_topics(arena: Arena) -> list[str]:
    return [*arena.owners, *arena.further, arena.service.settings.topics.retry]


def _is_read(arena: Arena, partition: str) -> bool:
    return partition.rpartition("-partition-")[0] in _read_topics(arena)


def _check_promises(arena: Arena) -> None:
    """Check every promise that is visible from outside, once nothing is left to do."""
    service = arena.service
    answered = _answered(arena)
    whole = _not_shown(arena)
    assert [address for address, count in answered.items() if count > 1] == [], "several receipts for one message"
    doubled = [address for address in answered if address[:3] in whole and address[3] >= 0]
    assert doubled == [], "several receipts for one entry"
    assert sorted(_without_receipt(arena)) == [], "no receipt"
    read = {address for address in arena.acknowledged if _is_read(arena, address[0])}
    entries = {address[:3] for address in answered}
    missing = [address for address in read if not (address in answered or _is_whole(address, answered, entries))]
    assert sorted(missing) == [], "acknowledged by the broker, and without a receipt"
    _check_not_shown(arena, whole, len({address[:3] for address in read}))
    # only the receipts show how many messages an entry has that the broker sent to the service alone
    unsure = whole | arena.stored.unread
    messages = {address for address in answered if address[:3] not in unsure}
    unknown = sorted(messages - _stored(arena, *_read_topics(arena)).keys())
    assert unknown == [], "a receipt without a message" + "".join(map(arena.stored.describe, unknown))

    rows = list(receipts.rows(service.settings.state.dir, columns=[c.OUTCOME]))
    outcomes = Counter(row[c.OUTCOME] for row in rows)
    for outcome, topic in (
        (Outcome.RETRY, service.settings.topics.retry),
        (Outcome.DEAD_LETTER, service.settings.topics.dead_letter),
    ):
        # each partition numbers its copies separately
        copies = Counter((address[0], copy) for address, copy in _stored(arena, topic).items() if copy)
        assert copies.total() == len(copies) == outcomes[outcome], f"{outcome}: {copies.most_common(3)}"

    left = ledger_list.every_ledger(arena.cluster).keys()
    assert sorted((arena.in_use | arena.kept) - left) == [], "deleted without a request that may be acted on"
    assert sorted(arena.requests.keys() & left) == [], "validly requested, and not deleted"

    for command in ("check", "backlog", "receipts --json"):
        output = service.call(*command.split())
        assert "PROBLEM" not in output, output[-3000:]
    service.run("dlq", "list")  # in a separate process: Pulsar's client reads the messages, which may crash it
    _print_waits(arena)


def _is_whole(address: MessageAddress, answered: Counter[MessageAddress], entries: set[tuple[str, int, int]]) -> bool:
    """Return whether the entry of a message has a receipt; for an entry (index -1), whether any message in it has."""
    return address[:3] in entries if address[3] < 0 else (*address[:3], -1) in answered


def _check_not_shown(arena: Arena, whole: set[tuple[str, int, int]], entries: int) -> None:
    """Check that the broker shows few of the skipped entries later: only those after an open transaction."""
    shown = {address[:3] for address in _stored(arena, *_read_topics(arena))} & whole
    _print(f"{len(whole)} of {entries} entries were not shown when they were read, {len(shown)} of them are now")
    assert len(shown) <= max(3, entries // 50), sorted(shown)


def _print_waits(arena: Arena) -> None:
    answers, retried = _answers(arena), _retried(arena)
    for topic in arena.owners:
        for was_retried in (False, True):
            waits = sorted(
                answers[ledger_id] / 1000 - sent_s
                for ledger_id, (sent_to, sent_s) in arena.requests.items()
                if sent_to == topic and (ledger_id in retried) == was_retried
            )
            if waits:
                _print(
                    f"{topic}: {len(waits)} valid requests{', retried as too young,' if was_retried else ''} waited "
                    f"{statistics.median(waits):.1f} s (median), {waits[-1]:.1f} s at most"
                )
    assert not _late(arena)
