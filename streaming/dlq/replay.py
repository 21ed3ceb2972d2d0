"""Publishes dead letters as requests again, each exactly once, or writes them off, each with a reason.

1. A plan is written before the first message is sent: it contains every message, and the ends of the topics at that
   time. After an interruption, the next run sends what is missing of it.
2. A letter goes to the request topic that it came from according to our receipts, or to a topic that the operator
   names. It never gets more rights than it had (udfs.requests.replay_target). Other letters stay, and the report gives
   reasons.
"""

import contextlib
import getpass
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from streaming.adapters.pulsar.named_producer import NamedProducer
from streaming.adapters.pulsar.readers.read import numbered
from streaming.clients import CommandClients
from streaming.clock import Clock, SystemClock
from streaming.config.amounts import topic_from
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.coordination.lock import InstanceLock
from streaming.dlq.letters import DeadLetter, DeadLetterFilters, selected
from streaming.dlq.origins import Origins
from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.ports import MetadataStore, Pulsar, TopicAdmin
from streaming.schemas import DLQ
from streaming.state.settlements import WAITING, PlanWriter, ReplayPlan, SettlementFolder
from streaming.topics.routing import NoLaneError, request_topics
from udfs import columns as c
from udfs.owners.references import key_of
from udfs.paths import tenant_of
from udfs.records import Outcome, PendingDelete, Reason
from udfs.requests.replay_target import Stays
from udfs.requests.retry import as_original

log = logging.getLogger("ledger-reaper")

REPLAY_ID = "REPLAY_ID"  # <plan>/<number in the plan>
REPLAY_OF = "REPLAY_OF"  # message id of the dead letter
REPLAY_ORIGIN = "REPLAY_ORIGIN"  # message id of the request that became the dead letter

_BATCH = 200  # dead letters in memory at once; each may have the largest size of a message


@dataclass(slots=True, kw_only=True)
class ReplayReport:
    """Counts of what a run did, or would do."""

    settled: int = 0  # letters that were replayed or written off
    resumed: int = 0  # messages of an interrupted replay that were published
    to: dict[str, int] = field(default_factory=dict)  # request topic -> messages
    skipped: dict[str, int] = field(default_factory=dict)  # state -> letters that were settled already
    stays: dict[str, int] = field(default_factory=dict)  # why -> letters that may be published nowhere


def replay(
    settings: Settings,
    clients: CommandClients,
    chosen: DeadLetterFilters | None,
    *,
    to: str = "",
    dry_run: bool = False,
) -> ReplayReport:
    """Publish the chosen dead letters again, as new requests, if they are WAITING.

    chosen None: only finish an interrupted replay.

    Raises SafetyError if another run is under way or the state belongs to another cluster, UnavailableError if the
    broker did not acknowledge all messages: a second call resumes.
    """
    work = _Work(settings, clients.pulsar, _checked_target(settings, to), SystemClock())
    if dry_run:
        return work.would_replay(chosen)
    with _alone(settings, clients.store, clients.pulsar.admin) as stop:
        work.finish_interrupted(stop)
        if chosen is not None:
            work.publish_all(work.plans(chosen), stop)
        if work.failure is not None:
            raise work.failure
        return work.report


def write_off(
    settings: Settings, clients: CommandClients, chosen: DeadLetterFilters, why: str, *, dry_run: bool = False
) -> ReplayReport:
    """Write off the chosen WAITING dead letters, all or none, each with a receipt. Raises like replay()."""
    if not why.strip():
        raise ConfigError("--why: give a reason for the write-off; the receipts will contain it")
    work = _Work(settings, clients.pulsar, "", SystemClock())
    if dry_run:
        work.report.settled = sum(len(batch) for batch in work.batches(chosen))
        return work.report
    with _alone(settings, clients.store, clients.pulsar.admin):
        batches = work.batches(chosen)
        first = next(batches, None)
        if first is not None:
            work.write_off(first, batches, f"{why.strip()} (by {getpass.getuser()})")
        return work.report


def is_interrupted(settings: Settings) -> bool:
    """Whether a replay was started and not finished."""
    return bool(SettlementFolder(settings.state_dir).unfinished())


class _Work:
    def __init__(self, settings: Settings, pulsar: Pulsar, target: str, clock: Clock) -> None:
        self._settings = settings
        self._pulsar = pulsar
        self._origins = Origins(settings, pulsar.admin, target)
        self._topics = request_topics(settings, pulsar.admin)
        self._clock = clock
        self._folder = SettlementFolder(settings.state_dir)
        self.report = ReplayReport()
        self.failure: UnavailableError | NoLaneError | None = None  # of a lane, which must not stop the other plans

    def would_replay(self, chosen: DeadLetterFilters | None) -> ReplayReport:
        """Count the messages that replay() would publish, including the missing ones of an interrupted replay."""
        for plan in self._interrupted():
            stored = self._stored(plan)
            missing = sum(number not in stored for number, _row in enumerate(self._folder.rows(plan)))
            self.report.resumed += missing
            _add(self.report.to, plan.target, missing)
        for batch in self.batches(chosen) if chosen is not None else ():
            for target, _letter in self._targets(batch):
                self.report.settled += 1
                _add(self.report.to, target, 1)
        return self.report

    def batches(self, chosen: DeadLetterFilters) -> Iterator[list[DeadLetter]]:
        """Yield the chosen WAITING letters, in batches, and count the other chosen letters in the report.

        Raises ConfigError at the end if a chosen id is of no dead letter: then the caller must discard its results.
        """
        missing = set(chosen.ids)
        settled = self._folder.settled()
        waiting = self._waiting(selected(self._settings, self._pulsar, chosen, self._clock.now_ms(), settled), missing)
        while batch := list(islice(waiting, _BATCH)):
            yield batch
        if missing:
            raise ConfigError(f"no dead letter has the id {', '.join(sorted(missing))}; nothing was done")

    def _waiting(self, letters: Iterator[tuple[DeadLetter, str]], missing: set[str]) -> Iterator[DeadLetter]:
        for letter, state in letters:
            missing -= {letter.id, letter.origin}
            if state == WAITING:
                yield letter
            else:
                _add(self.report.skipped, state, 1)

    def plans(self, chosen: DeadLetterFilters) -> list[ReplayPlan]:
        """Write a durable plan for each target topic; a lane that was deleted is created again."""
        now_ms = self._clock.now_ms()
        with contextlib.ExitStack() as stack:
            writers: dict[str, PlanWriter] = {}
            for batch in self.batches(chosen):
                rows: dict[str, list[dict[str, Any]]] = {}
                for target, letter in self._targets(batch):
                    if self._settings.topics.is_lane(target) and (error := self._topics.open_lane(target)):
                        _add(self.report.stays, f"{target} can't be used: {error.why}", 1)
                        continue
                    if target not in writers:
                        writer = self._folder.plan(now_ms, target, self._pulsar.admin.last_positions(target))
                        writers[target] = stack.enter_context(writer)
                    number = writers[target].count + len(rows.setdefault(target, []))
                    rows[target].append(_plan_row(letter, f"{writers[target].plan.run}/{number}"))
                for target, target_rows in rows.items():
                    writers[target].add(target_rows)
        return [writer.plan for writer in writers.values()]

    def finish_interrupted(self, stop: threading.Event) -> None:
        for plan in self._interrupted():
            log.info("finishing %s, which was interrupted", plan.run)
            with self._of_its_tenant_alone(plan):
                self.report.resumed += self.publish(plan, stop, is_fresh=False)

    def publish_all(self, fresh: Sequence[ReplayPlan], stop: threading.Event) -> None:
        for plan in fresh:
            with self._of_its_tenant_alone(plan):
                self.publish(plan, stop, is_fresh=True)

    @contextlib.contextmanager
    def _of_its_tenant_alone(self, plan: ReplayPlan) -> Iterator[None]:
        """Keep the failure of a lane until all other plans were published; the next run resumes the lane's plan."""
        try:
            yield
        except (UnavailableError, NoLaneError) as error:
            if not self._settings.topics.is_lane(plan.target):
                raise
            self.failure = self.failure or error

    def _interrupted(self) -> Iterator[ReplayPlan]:
        for plan in self._folder.unfinished():
            if not self._settings.topics.takes(plan.target):
                raise ConfigError(f"{plan.run} was interrupted and goes to {plan.target}: add it to topics.requests")
            yield plan

    def publish(self, plan: ReplayPlan, stop: threading.Event, *, is_fresh: bool) -> int:
        """Publish the unpublished messages of a plan, and return how many there were. Raises UnavailableError."""
        if self._settings.topics.is_lane(plan.target) and (error := self._topics.open_lane(plan.target)):
            raise error  # otherwise a broker would create an unpartitioned topic for the producer
        name = f"ledger-reaper-{self._settings.service.name}-replay"
        with NamedProducer(self._settings.pulsar, plan.target, name) as producer:
            stored: dict[int, str] = {}
            if not is_fresh:
                # this producer has taken its name from the interrupted run, which can send no more; now wait until the
                # topic has stored what that run sent
                producer.settle(lambda: _pending_adds(self._pulsar.admin, plan.target))
                stored = self._stored(plan)
            for number, row in enumerate(self._folder.rows(plan)):
                if stop.is_set():
                    raise SafetyError("the lock was lost while replaying; run the command again to resume")
                if number not in stored:
                    # the broker's deduplication is no help: it is off on request topics, and it forgets producers after
                    # hours
                    properties = dict(row[c.MESSAGE_PROPERTIES])
                    producer.send(number, row[c.MESSAGE_KEY] or "", row[c.PAYLOAD] or b"", properties)
            sent = producer.finish()
        self._topics.check_sent(plan.target)
        self._folder.finish(plan, stored | sent)
        if is_fresh:
            self.report.settled += len(sent)
        _add(self.report.to, plan.target, len(sent))
        return len(sent)

    def _stored(self, plan: ReplayPlan) -> dict[int, str]:
        """Return the messages that an interrupted run published: number in the plan -> message id."""
        _warn_if_trimmed(plan, self._pulsar.admin)
        messages = self._pulsar.reader.read(self._pulsar.admin.last_positions(plan.target), after=plan.after)
        return {number: message.id for number, message in numbered(messages, REPLAY_ID, plan.run)}

    def _targets(self, batch: list[DeadLetter]) -> Iterator[tuple[str, DeadLetter]]:
        """Yield (target, letter) for each letter that may be published; count the others in the report."""
        for letter, target in self._origins.targets(batch):
            if isinstance(target, Stays):
                _add(self.report.stays, target.why, 1)
            else:
                yield target, letter

    def write_off(self, first: list[DeadLetter], rest: Iterator[list[DeadLetter]], why: str) -> None:
        now_ms = self._clock.now_ms()

        def rows() -> Iterator[list[dict[str, Any]]]:
            yield [_receipt(letter, why, now_ms) for letter in first]
            for batch in rest:
                yield [_receipt(letter, why, now_ms) for letter in batch]

        self.report.settled = self._folder.write_off(now_ms, rows())


@contextlib.contextmanager
def _alone(settings: Settings, store: MetadataStore, admin: TopicAdmin) -> Iterator[threading.Event]:
    """Hold the lock that lets only one replay or write-off of a service run; sets the event if the lock is lost."""
    stop = threading.Event()
    with InstanceLock(store, settings.zookeeper.own_root, f"{settings.service.name}.dlq", on_lost=stop.set):
        identity.compare(identity.of_cluster(settings, store, admin), settings.state_dir)
        yield stop


def _add(counts: dict[str, int], name: str, count: int) -> None:
    counts[name] = counts.get(name, 0) + count


def _checked_target(settings: Settings, to: str) -> str:
    if not to:
        return ""
    topic = topic_from(to, "--to")
    if not settings.topics.takes(topic):
        raise ConfigError(
            f"--to {topic} is no request topic of this service; topics.requests has: "
            f"{', '.join(settings.topics.requests)}"
        )
    return topic


def _plan_row(letter: DeadLetter, replay_id: str) -> dict[str, Any]:
    # attempts, delay and sightings start over
    kept = as_original(letter.message.properties)
    kept |= {REPLAY_ID: replay_id, REPLAY_OF: letter.id, REPLAY_ORIGIN: letter.origin}
    return {
        **dict(zip(c.POSITION, letter.position, strict=True)),
        c.MESSAGE_KEY: letter.message.key,
        c.PAYLOAD: letter.message.payload,
        c.MESSAGE_PROPERTIES: list(kept.items()),
    }


def _receipt(letter: DeadLetter, why: str, now_ms: int) -> dict[str, Any]:
    request = letter.request
    receipt: dict[str, Any] = {
        c.CHUNK: 0,  # the service counts its chunks from 1
        c.AT_MS: now_ms,
        c.QUERY: DLQ,
        **dict(zip(c.POSITION, letter.position, strict=True)),
        c.ORIGIN_MESSAGE_ID: letter.origin,
        c.OUTCOME: str(Outcome.DEAD_LETTER),
        c.REASON: str(Reason.WRITTEN_OFF),
        c.DETAIL: f"{letter.reason}; {why}",
        c.ATTEMPT: letter.attempt,
        c.BYTES: 0,
    }
    if isinstance(request, PendingDelete):
        receipt |= {
            c.LEDGER_ID: request.ledger_id,
            c.LEDGER_TYPE: str(request.ledger_type),
            c.COMPONENT: str(request.component),
            c.TOPIC_NAME: letter.owner,
            c.UUID: request.part,
            c.REFERENCE_KEY: key_of(request),
            c.TENANT: tenant_of(letter.owner),
        }
    return receipt


def _pending_adds(admin: TopicAdmin, topic: str) -> int:
    return sum(admin.internal_stats(partition).pending_adds for partition in admin.last_positions(topic))


def _warn_if_trimmed(plan: ReplayPlan, admin: TopicAdmin) -> None:
    # Messages that were processed and then trimmed can't be found. They are sent again, which is harmless for requests.
    for partition, (ledger_id, _entry) in plan.after.items():
        oldest = min((stored for stored, _entries in admin.internal_stats(partition).ledgers), default=-1)
        if oldest > ledger_id:
            log.warning(
                "%s no longer has all messages that %s may have published: some may come twice", partition, plan.run
            )
