"""Whatever anyone publishes, on whichever topic: each message ends in one receipt, and requests in order do not wait.

Odd messages are drawn (drawn_messages.py) and published to the listed request topic, a tenant's own, RETRY and the DLQ,
beside requests in order. LEDGER_REAPER_FUZZ_SEED draws the same messages again, LEDGER_REAPER_FUZZ_SECONDS says for how
long, and LEDGER_REAPER_FUZZ_KINDS (with commas between) draws from some kinds only. The seed is printed.
"""

import json
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
from streaming.sandbox import ledgers, topics
from streaming.sandbox.cluster import Cluster
from streaming.state import receipts
from streaming.topics.setup import ensure_topics
from tests.integration.conftest import Deploy, Deployment, deployment, kill, leak, payload, stop, wait_until
from tests.integration.drawn_messages import REFUSED, Drawer
from tests.integration.odd_messages import Senders, senders
from tests.integration.stored_messages import StoredMessages
from udfs import columns as c
from udfs.entry_ranges import MessageAddress
from udfs.records import Outcome, Reason

SECONDS, SEED, KINDS = (os.environ.get(f"LEDGER_REAPER_FUZZ_{name}", "") for name in ("SECONDS", "SEED", "KINDS"))
ANSWERED_WITHIN_S = 150
WITHIN_ITS_SHARE_S = 300  # a hostile tenant's own topic: its further ones have but one share of the slots with it
NEIGHBOUR_WITHIN_S = 90  # a topic to which no odd message goes: the minute of promise 8, and a chunk of its own
PAUSE_S = 8.0
# what is in these messages is not to be acted on, whatever it says
NOT_ACTED_ON = {
    "aborted",
    "encrypted",
    "encrypted_and_compressed",
    "encrypted_batch",
    "said_to_be_encrypted",
    "marker_with_a_request_in_it",
    "open_and_no_coordinator_knows",
}


@dataclass
class Arena:
    """A service with a listed request topic and two tenants' own ones; odd messages go to all but the rival's.

    further: more topics of the hostile tenant's, to which no requests in order go.
    owners: the topic that each request topic's honest requests name. in_use: ledgers that topics use.
    kept: leaked ledgers that no message names which may be acted on. acknowledged: where messages lie, as brokers
    said; nothing of ours was asked for it.
    """

    cluster: Cluster
    service: Deployment
    owners: dict[str, str]
    odd_topics: list[str]
    foreign: str
    in_use: set[int]
    stored: StoredMessages
    further: list[str]
    kept: set[int] = field(default_factory=set)
    acknowledged: set[MessageAddress] = field(default_factory=set)
    asked: dict[int, tuple[str, float]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)

    def within_s(self, topic: str, *, was_retried: bool) -> float:
        """How long a request in order on that topic may wait.

        was_retried: so its copy lay in RETRY, to which odd messages go.
        """
        if topic not in self.odd_topics:
            return ANSWERED_WITHIN_S if was_retried else NEIGHBOUR_WITHIN_S
        is_listed = topic in self.service.settings.topics.requests
        return ANSWERED_WITHIN_S if is_listed or not self.further else WITHIN_ITS_SHARE_S

    @property
    def record(self) -> str:
        """What was published last, for whoever has to find out which of them it was."""
        return "\n".join(["published last:", *self.told[-40:]])


def test_the_same_seed_draws_the_same_messages() -> None:
    def drawn(seed: int) -> list[tuple[str, str]]:
        drawer = Drawer(random.Random(seed), transactions=True)
        return [(each.kind, each.said) for each in (drawer.draw(drawer.kind(), b"{}") for _ in range(300))]

    assert drawn(5) == drawn(5) != drawn(6)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_odd_messages_of_a_minute_stop_nobody(cluster: Cluster, deploy: Deploy, tmp_path: Path) -> None:
    _fuzz(_arena(cluster, deploy(), further=0), tmp_path, float(SECONDS or 60), transactions=False)


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(7200)
def test_odd_messages_of_twenty_minutes_stop_nobody_nor_do_transactions(transactional: Cluster, tmp_path: Path) -> None:
    here = tmp_path / "service"
    here.mkdir()
    service = deployment(transactional, here)
    _fuzz(_arena(transactional, service, further=3), tmp_path, float(SECONDS or 1200), transactions=True)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _arena(cluster: Cluster, service: Deployment, *, further: int) -> Arena:
    """Make tenants, topics and the ledgers that they use. further: so many more topics of the hostile tenant."""
    suffix = uuid.uuid4().hex[:8]
    acme, rival = f"acme-{suffix}", f"rival-{suffix}"
    known = json.loads(topics.admin(cluster, "GET", "clusters"))
    for tenant in (acme, rival):
        topics.admin(cluster, "PUT", f"tenants/{tenant}", {"allowedClusters": known, "adminRoles": []})
        namespace = f"namespaces/{tenant}/reaper"
        topics.admin(cluster, "PUT", namespace)
        # else the broker drops a ledger of ten entries once all are worked off, and nothing is left to compare with
        topics.admin(cluster, "POST", f"{namespace}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    pattern = f'requests_pattern = "persistent://({acme}|{rival})/reaper/d[0-9]*"'
    service.config.write_text(service.config.read_text().replace("[two_phase]", f"{pattern}\n[two_phase]"))
    named = service.settings.topics
    acmes, rivals = f"persistent://{acme}/reaper/d", f"persistent://{rival}/reaper/d"
    more = [f"{acmes}{number}" for number in range(further)]
    owners = {
        named.requests[0]: f"persistent://public/default/fuzz-{suffix}",
        acmes: f"persistent://{acme}/reaper/data",
        rivals: f"persistent://{rival}/reaper/data",
    }
    in_use: set[int] = set()
    for owner in owners.values():
        topics.fill(cluster, owner, 2, ["s"])
        in_use |= {*topics.data_ledgers(cluster, owner), *topics.cursor_ledgers(cluster, owner).values()} - {-1}
    with admin_for(service.settings) as admin:
        ensure_topics(admin, service.settings)
        for topic in (acmes, rivals, *more):
            admin.create_partitioned_topic(topic, 2)
            admin.ensure_subscription(topic, named.subscription)
    odd = [named.requests[0], acmes, *more, named.retry, named.dead_letter]
    return Arena(cluster, service, owners, odd, owners[rivals], in_use, StoredMessages(service.settings), more)


def _fuzz(arena: Arena, here: Path, seconds: float, *, transactions: bool) -> None:
    seed = int(SEED or random.SystemRandom().randrange(1 << 32))
    _say(f"LEDGER_REAPER_FUZZ_SEED={seed} LEDGER_REAPER_FUZZ_SECONDS={seconds:.0f}")
    chance = random.Random(seed)
    # of its own, so that the same messages are drawn however many ledgers there are to choose from
    drawer = Drawer(random.Random(seed), transactions=transactions, only=[each for each in KINDS.split(",") if each])
    service, log = arena.service, here / "run.log"
    with _telling(arena, seed), senders(arena.cluster.addresses.pulsar, transactions=transactions) as send:
        running = service.start("run", log=log)
        requests = partial(_unanswered_requests, arena)
        answered = partial(_until_none, requests, running, log, seconds=ANSWERED_WITHIN_S)
        try:
            _ask(arena, send)
            answered()
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s:
                for _ in range(chance.randrange(1, 9)):
                    _publish_odd(arena, send, chance, drawer)
                _ask(arena, send)
                time.sleep(chance.uniform(0, PAUSE_S))
                late = _late(arena)
                assert not late, late
            _until_none(requests, running, log, seconds=WITHIN_ITS_SHARE_S)
            _until_none(partial(_unanswered, arena), running, log, seconds=300)
            stop(running)
        finally:
            kill(running)
        _work_off_all(service, here / "until-idle.log")
        _look_at(arena)


def _work_off_all(service: Deployment, log: Path) -> None:
    began_s = time.monotonic()
    running = service.start("run", "--until-idle", log=log)
    try:
        assert running.wait(400) == 0, log.read_text()[-3000:]
    except subprocess.TimeoutExpired as error:
        error.add_note(log.read_text()[-3000:])
        raise
    finally:
        kill(running)
    _say(f"run --until-idle took {time.monotonic() - began_s:.0f} s")


@contextmanager
def _telling(arena: Arena, seed: int) -> Iterator[None]:
    """Add to a failure what is needed to have it again."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"LEDGER_REAPER_FUZZ_SEED={seed}\n{arena.record}")
        raise
    finally:
        _say(f"published: {dict(arena.sent)}\nrefused: {dict(arena.refused)}")


def _partitions(arena: Arena, topic: str) -> list[str]:
    with admin_for(arena.service.settings) as admin:
        return [f"{topic}-partition-{number}" for number in range(admin.partitions(topic) or 0)]


def _publish_odd(arena: Arena, send: Senders, chance: random.Random, drawer: Drawer) -> None:
    topic = chance.choice(arena.odd_topics)
    partition = chance.choice(_partitions(arena, topic))
    kind = drawer.kind()
    drawn = drawer.draw(kind, _kept(arena) if kind in NOT_ACTED_ON else _request(arena, chance, topic))
    if drawn.may_wait and topic == arena.service.settings.topics.retry:
        partition = f"{arena.service.settings.topics.requests[0]}-partition-0"
    said = f"{drawn.kind} on {partition}: {drawn.said}"
    before = send.acknowledged
    try:
        drawn.publish(send, partition)
    except REFUSED as error:
        arena.refused[drawn.kind] += 1
        said += f"  REFUSED: {str(error)[:100]}"
        send.raw.connect_anew()
    if not drawn.may_be_none:
        arena.acknowledged |= send.acknowledged - before
    arena.sent[drawn.kind] += 1
    arena.told.append(said)


def _request(arena: Arena, chance: random.Random, topic: str) -> bytes:
    """A request: of a ledger in use, of the rival's leaked one (from its neighbour's topic only), or of none."""
    owner = arena.owners.get(topic, next(iter(arena.owners.values())))
    match chance.randrange(3):
        case 0:
            return payload(owner, chance.choice(sorted(arena.in_use)))
        case 1 if topic not in arena.service.settings.topics.requests and topic in arena.owners:
            return _kept(arena)
        case _:
            return payload(owner, 4 * 10**15 + chance.randrange(1000))


def _kept(arena: Arena) -> bytes:
    """A request for a leaked ledger of the rival's, sent in such a way that it must not be acted on."""
    (ledger_id,) = leak(arena.cluster, arena.foreign, 1)
    arena.kept.add(ledger_id)
    return payload(arena.foreign, ledger_id)


def _ask(arena: Arena, send: Senders) -> None:
    """One request in order on each request topic, for a ledger that has really leaked."""
    for topic, owner in arena.owners.items():
        (ledger_id,) = leak(arena.cluster, owner, 1)
        producer = send.python.create_producer(topic)
        producer.send(payload(owner, ledger_id))
        producer.close()
        arena.asked[ledger_id] = (topic, time.time())


def _answers(arena: Arena) -> dict[int, int]:
    """Ledgers that were deleted, and when (ms)."""
    rows = arena.service.receipts()
    return {row["ledger_id"]: row["at_ms"] for row in rows if row["outcome"] == Outcome.DELETED}


def _unanswered_requests(arena: Arena) -> list[tuple[str, int]]:
    """Requests in order without an answer: topic and ledger."""
    found = _answers(arena)
    return [(topic, ledger_id) for ledger_id, (topic, _asked) in arena.asked.items() if ledger_id not in found]


def _late(arena: Arena) -> list[tuple[str, int, float]]:
    """Requests in order that have waited for longer than they may: topic, ledger, and for how long."""
    answers, retried = _answers(arena), _retried(arena)
    waits = (
        (topic, ledger_id, answers.get(ledger_id, time.time() * 1000) / 1000 - asked_s)
        for ledger_id, (topic, asked_s) in arena.asked.items()
    )
    return [each for each in waits if each[2] > arena.within_s(each[0], was_retried=each[1] in retried)]


def _retried(arena: Arena) -> set[int]:
    """Ledgers of which a request was put off, as too young."""
    return {row["ledger_id"] for row in arena.service.receipts() if row["outcome"] == Outcome.RETRY}


def _until_none(
    left: Callable[[], Sequence[object]], running: subprocess.Popen[bytes], log: Path, *, seconds: float
) -> None:
    """Wait until nothing is left; a failure says what is."""
    try:
        wait_until(lambda: not left(), running, log, seconds=seconds)
    except AssertionError as error:
        error.add_note("without an answer: " + "\n".join(str(each) for each in left()[:20]))
        raise


def _stored(arena: Arena, *topics: str) -> dict[MessageAddress, str | None]:
    """Every message of the topics; those that are copies with the name of the copy."""
    return arena.stored.of([partition for topic in topics for partition in _partitions(arena, topic)])


def _answered(arena: Arena) -> Counter[MessageAddress]:
    rows = receipts.rows(arena.service.settings.state.dir, columns=list(c.POSITION))
    return Counter(
        (row[c.SOURCE], row[c.POSITION_LEDGER], row[c.POSITION_ENTRY], row[c.POSITION_BATCH]) for row in rows
    )


def _not_shown(arena: Arena) -> set[tuple[str, int, int]]:
    """Entries of which the broker told nothing when they were read; their one receipt stands for all their messages.

    The broker may send them later: once the transaction that they lay behind has ended.
    """
    rows = receipts.rows(arena.service.settings.state.dir, columns=[*c.POSITION, c.REASON])
    return {
        (row[c.SOURCE], row[c.POSITION_LEDGER], row[c.POSITION_ENTRY])
        for row in rows
        if row[c.REASON] == Reason.NOT_SHOWN
    }


def _unanswered(arena: Arena) -> list[MessageAddress]:
    """Messages without a receipt, on the topics whose messages have one; -1 also for an entry that nobody was told."""
    known, whole = _answered(arena), _not_shown(arena)
    has_one = {place[:3] for place in known}
    stored = _stored(arena, *_read_topics(arena))
    arena.stored.ask_again(arena.stored.untold - has_one)
    lacking = [place for place in stored if place not in known and place[:3] not in whole]
    return lacking + [(*entry, -1) for entry in arena.stored.untold - has_one if _is_read(arena, entry[0])]


def _read_topics(arena: Arena) -> list[str]:
    return [*arena.owners, *arena.further, arena.service.settings.topics.retry]


def _is_read(arena: Arena, partition: str) -> bool:
    return partition.rpartition("-partition-")[0] in _read_topics(arena)


def _look_at(arena: Arena) -> None:
    """Every promise that can be seen from outside, once nothing is left to do."""
    service = arena.service
    known = _answered(arena)
    whole = _not_shown(arena)
    assert [place for place, count in known.items() if count > 1] == [], "several receipts for one message"
    assert [place for place in known if place[:3] in whole and place[3] >= 0] == [], "several receipts for one entry"
    assert sorted(_unanswered(arena)) == [], "no receipt"
    read = {place for place in arena.acknowledged if _is_read(arena, place[0])}
    entries = {place[:3] for place in known}
    lacking = [each for each in read if not (each in known or _is_whole(each, known, entries))]
    assert sorted(lacking) == [], "stored, as the broker said, and without a receipt"
    _look_at_not_shown(arena, whole, len({place[:3] for place in read}))
    # how many messages there are in an entry of which only the service was told, the receipts alone say
    unsure = whole | arena.stored.untold
    messages = {place for place in known if place[:3] not in unsure}
    none = sorted(messages - _stored(arena, *_read_topics(arena)).keys())
    assert none == [], "a receipt for what is no message" + "".join(map(arena.stored.told_of, none))

    rows = list(receipts.rows(service.settings.state.dir, columns=[c.OUTCOME]))
    outcomes = Counter(row[c.OUTCOME] for row in rows)
    for outcome, topic in (
        (Outcome.RETRY, service.settings.topics.retry),
        (Outcome.DEAD_LETTER, service.settings.topics.dead_letter),
    ):
        # each partition counts its copies for itself
        copies = Counter((place[0], copy) for place, copy in _stored(arena, topic).items() if copy)
        assert copies.total() == len(copies) == outcomes[outcome], f"{outcome}: {copies.most_common(3)}"

    left = ledgers.every_ledger(arena.cluster).keys()
    assert sorted((arena.in_use | arena.kept) - left) == [], "deleted, and nobody could ask for it"
    assert sorted(arena.asked.keys() & left) == [], "asked for in order, and still there"

    for command in ("check", "backlog", "receipts --json"):
        said = service.call(*command.split())
        assert "PROBLEM" not in said, said[-3000:]
    service.run("dlq", "list")  # in a process of its own: Pulsar's client reads the messages, which may end it
    _tell_waits(arena)


def _is_whole(place: MessageAddress, known: Counter[MessageAddress], entries: set[tuple[str, int, int]]) -> bool:
    """Whether there is a receipt for a place as a whole: of its entry, or, where it is one, of any message in it."""
    return place[:3] in entries if place[3] < 0 else (*place[:3], -1) in known


def _look_at_not_shown(arena: Arena, whole: set[tuple[str, int, int]], entries: int) -> None:
    """Of what was given up without its bytes, only a little is ever shown: what lay behind an open transaction."""
    shown = {place[:3] for place in _stored(arena, *_read_topics(arena))} & whole
    _say(f"{len(whole)} of {entries} entries were not shown when they were read, {len(shown)} of them are now")
    assert len(shown) <= max(3, entries // 50), sorted(shown)


def _tell_waits(arena: Arena) -> None:
    answers, retried = _answers(arena), _retried(arena)
    for topic in arena.owners:
        for how in (False, True):
            waits = sorted(
                answers[number] / 1000 - asked_s
                for number, (where, asked_s) in arena.asked.items()
                if where == topic and (number in retried) == how
            )
            if waits:
                _say(
                    f"{topic}: {len(waits)} requests in order{', put off as too young,' if how else ''} waited "
                    f"{statistics.median(waits):.1f} s (median), {waits[-1]:.1f} s at most"
                )
    assert not _late(arena)
