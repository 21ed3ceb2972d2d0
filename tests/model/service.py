"""A model of the service around the sweep: queues, batches, changing instances; and the observer."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from streaming.adapters.memory.store import CrashError, MemoryStore
from streaming.clock import ManualClock
from streaming.coordination.agreed_clock import AgreedClock
from streaming.errors import FencedError, UnavailableError
from streaming.in_use.cache import InUseCache
from streaming.in_use.loader import InUseLoader
from streaming.ports import Unreadable, Znode
from streaming.state.journal import JournalEntry
from streaming.sweep.jobs import Job, SweepRules, Swept
from streaming.sweep.ledgers import Sweeper
from streaming.sweep.pace import Capped, Pace
from tests.builders import DAY_MS, HOUR_MS, MINUTE_MS, NOW_MS, ROOT, exists, put
from tests.invariants import Deletion, Final
from tests.model.pulsar import Pulsar
from tests.world import EPOCH, MemoryJournal, ObservedTree, Removal, confirmed, path_of
from udfs.owners.completeness import certificate
from udfs.owners.references import KeyOwner, key_of, owner_of
from udfs.owners.segment_witness import layout_of
from udfs.owners.sightings import OWNER_ABSENT_SINCE, absent_since_ms, signed, subject_of
from udfs.paths import Layout, cursor_path, managed_ledger_path, schema_path
from udfs.records import Outcome, PendingDelete, Presence, Reference
from udfs.requests.retry import Delays, delay_ms, dispose
from udfs.verdicts.judge import Policy

POLICY = Policy(
    min_age_ms=5 * MINUTE_MS,
    above_newest_quarantine_ms=DAY_MS,
    absence_interval_ms=10 * MINUTE_MS,
    open_quiet_ms=6 * HOUR_MS,  # shorter than a broker may be stalled
)
SECRET = b"secret of the cluster"
DELAYS = Delays(base_ms=10 * MINUTE_MS, not_closed_ms=10 * MINUTE_MS)
MAX_RETRIES = 60  # enough that quarantine and outages do not use up the tries
REFRESH_MS = 10 * MINUTE_MS


@dataclass
class Message:
    """A request in a topic; its properties may contain forged or true sightings."""

    number: int
    request: PendingDelete
    due_ms: int
    attempt: int = 0
    properties: dict[str, str | None] = field(default_factory=dict)


def _undisturbed(_operation: str) -> None:
    """Let nothing happen between two steps."""


@dataclass(frozen=True)
class SweepOptions:
    """The circumstances of a sweep."""

    uses_cache: bool = True
    commits: bool = True
    is_lied_to: bool = False  # the store returns DELETED without a delete
    allowance: int = 1_000  # deletes
    hook: Callable[[str], None] = _undisturbed  # called with the operation before each step


UNDISTURBED = SweepOptions()
WITHOUT_TRACE = SweepOptions(uses_cache=False, commits=False)


class HidingStore(MemoryStore):
    """A session in which some existing znodes seem absent, as after a hiccup of any cause."""

    hidden: frozenset[str] = frozenset()

    def read_many(self, paths: Sequence[str]) -> list[Znode | Unreadable | None]:
        """Return the znodes in the order of the paths."""
        nodes = super().read_many(paths)
        return [None if path in self.hidden else node for path, node in zip(paths, nodes, strict=True)]


class RecordingLoader(InUseLoader):
    """Records the certificates of each owner's sources for all callers."""

    def __init__(self, store: MemoryStore, cluster: "Cluster") -> None:
        super().__init__(store, cluster.pulsar, cluster.clock)
        self._certificates = cluster.read_certificates

    def load(self, keys: Iterable[str]) -> dict[str, Reference]:
        """Read all keys."""
        references = super().load(keys)
        for key, reference in references.items():
            self._certificates[key].add(certificate(reference))
        return references


class Instance:
    """A running service with its own session, cache and epoch; its journal is durable."""

    def __init__(self, cluster: "Cluster") -> None:
        tree = cluster.tree
        self.epoch_version = tree.write(EPOCH, b"")
        self.store = HidingStore(tree)
        self.journal = MemoryJournal(self.store.faults)
        self.journal.entries = cluster.journaled
        self.ahead_ms = 0  # of this machine's clock
        agreed = _agreed_clock(self, cluster)
        loader = RecordingLoader(self.store, cluster)
        self.cache = InUseCache(loader=loader, clock=agreed, refresh_ms=REFRESH_MS, max_bytes=1_000_000)
        rules = SweepRules(Layout.HIERARCHICAL, ROOT, (EPOCH, self.epoch_version), POLICY)
        self.sweeper = Sweeper(self.store, loader, self.journal, agreed, rules, confirm=confirmed)


@dataclass(frozen=True)
class _Machine:
    """The clock of an instance's machine, which may be wrong."""

    instance: Instance
    right: ManualClock

    def now_ms(self) -> int:
        return self.right.now_ms() + self.instance.ahead_ms


def _agreed_clock(instance: Instance, cluster: "Cluster") -> AgreedClock:
    """Return the agreed clock of an instance's driver, over a session without the faults of the sweep's session."""
    store, clock = MemoryStore(cluster.tree), _Machine(instance, cluster.clock)
    pace = cluster.clock.now_ms
    return AgreedClock(store, "/ledger-reaper", "model", clock=clock, monotonic_ns=lambda: pace() * 1_000_000)


class Cluster:
    """Pulsar, the deletion topics, two instances of the service, and everything that can be observed of them."""

    def __init__(self, brokers: Callable[[ObservedTree], Pulsar] = Pulsar) -> None:
        self.clock = ManualClock(NOW_MS)
        self.tree = ObservedTree(self.clock)
        put(self.tree, EPOCH)
        put(self.tree, ROOT)
        self.pulsar = brokers(self.tree)
        self.tree.on_removal = self._observe
        self.pulsar.on_leak = lambda ledger_id: self.publish(self.pulsar.ledgers[ledger_id].request)
        self.journaled: list[JournalEntry] = []
        self.queue: dict[int, Message] = {}
        self.requests: list[PendingDelete] = []
        self.deletions: list[Deletion] = []
        self.finals: list[Final] = []
        self.replays: list[tuple[frozenset[str], frozenset[str]]] = []
        self.allowances: dict[int, int] = {}
        self.unreadable: set[str] = set()
        self.read_certificates: defaultdict[str, set[str]] = defaultdict(set)
        self.certificates: list[tuple[str, str]] = []
        self.instances = [Instance(self), Instance(self)]
        self._cached: frozenset[str] = frozenset()
        self._sweeping: list[tuple[Instance, int]] = []

    def references(self) -> dict[int, frozenset[str]]:
        """Return the current references to each ledger."""
        return self.pulsar.references()

    def accepted(self) -> frozenset[int]:
        """Return all messages that were ever published."""
        return frozenset(range(len(self.requests)))

    def waiting(self) -> Sequence[int]:
        """Return the messages that will be delivered again."""
        return list(self.queue)

    def mistaken_certificates(self) -> list[tuple[str, str]]:
        """Return key and certificate of each receipt whose certificate was never read for this key's owner."""
        return [(key, text) for key, text in self.certificates if text and text not in self.read_certificates[key]]

    def publish(self, request: PendingDelete, properties: Mapping[str, str | None] | None = None) -> None:
        """Add a request."""
        number = len(self.requests)
        self.requests.append(request)
        self.queue[number] = Message(number, request, self.clock.now_ms(), properties=dict(properties or {}))

    def due(self) -> list[Message]:
        """Return the messages that are due."""
        return [message for message in self.queue.values() if message.due_ms <= self.clock.now_ms()]

    def sweep(self, number: int, batch: Sequence[Message], options: SweepOptions = UNDISTURBED) -> None:
        """Let an instance process a batch; a failed batch is not committed, and its messages stay."""
        instance = self.instances[number]
        instance.store.unreadable = set(self.unreadable)
        instance.store.hidden = frozenset(_paths_of(self.pulsar.hidden) if self.pulsar.hidden else ())
        before = self._cached
        self._sweeping.append((instance, len(self.allowances)))
        self.allowances[len(self.allowances)] = options.allowance
        instance.store.faults._hooks[:] = [lambda operation, _paths: options.hook(operation)]
        try:
            keys = [key_of(message.request) for message in batch]
            cached = instance.cache.references(keys) if options.uses_cache else {}
            # an absent or unreadable owner has no version to compare: its state must be read again
            self._cached = frozenset(
                key for key, cached_reference in cached.items() if cached_reference.presence is Presence.PRESENT
            )
            limiter = Capped(Pace(0), options.allowance)
            self.tree.deaf = options.is_lied_to
            swept = instance.sweeper.sweep([_job(message) for message in batch], cached, limiter=limiter)
        except UnavailableError:
            return
        except (FencedError, CrashError):
            self.instances[number] = Instance(self)
            return
        finally:
            self._sweeping.pop()
            self._cached = before
            self.tree.deaf = False
            instance.store.faults._hooks.clear()
        if options.commits and instance.epoch_version == self.tree.read(EPOCH).version:
            self._commit(instance, batch, swept)

    def take_over(self, number: int) -> None:
        """Start a new process in place of an instance, and make the other instance a zombie."""
        self.instances[number] = Instance(self)

    def fork(self) -> "Cluster":
        """Return a copy of the cluster for a hypothetical sweep; its brokers do not act."""
        other = Cluster.__new__(Cluster)
        other.__dict__.update(self.__dict__)
        other.tree = self.tree.fork()
        other.tree.on_removal = lambda _removal: None
        other.journaled = []
        other.allowances = {}
        other.instances = [Instance(other)]
        return other

    def _commit(self, instance: Instance, batch: Sequence[Message], swept: Sequence[Swept]) -> None:
        stale = []
        for message, result in zip(batch, swept, strict=True):
            if message.number not in self.queue:
                continue  # committed by another batch of this run while this batch was processed
            disposition = dispose(result.verdict, attempt=message.attempt, max_retry_delete_count=MAX_RETRIES)
            key = key_of(message.request)
            self.certificates.append((key, result.sources))
            if result.refreshed:
                stale.append(key)
            if disposition.outcome is not Outcome.RETRY:
                ledger_id = message.request.ledger_id
                is_absent = not exists(self.tree, path_of(ledger_id))
                self.finals.append(Final(message.number, ledger_id, disposition.outcome, is_absent))
                del self.queue[message.number]
                continue
            message.attempt = disposition.attempt
            message.due_ms = self.clock.now_ms() + delay_ms(
                result.verdict, DELAYS, attempt=disposition.attempt, seed=""
            )
            message.properties.pop(OWNER_ABSENT_SINCE, None)
            if result.absent_since_ms is not None:
                message.properties[OWNER_ABSENT_SINCE] = signed(
                    SECRET, subject_of(message.request), result.absent_since_ms
                )
        instance.cache.forget(stale)

    def _observe(self, removal: Removal) -> None:
        instance, sweep = self._sweeping[-1]
        ledger_id = next(i for i in self.pulsar.ledgers if path_of(i) == removal.path)
        key = key_of(self.pulsar.ledgers[ledger_id].request)
        requested_keys = frozenset(key_of(request) for request in self.requests if request.ledger_id == ledger_id)
        self.deletions.append(
            Deletion(
                ledger_id=ledger_id,
                owner=key,
                referred_by=self.references().get(ledger_id, frozenset()),
                requested_keys=requested_keys,
                unknown=self._unknown(removal.path, key),
                journaled=self._is_journaled(removal),
                is_current=instance.epoch_version == self.tree.read(EPOCH).version,
                sweep=sweep,
            )
        )

    def _unknown(self, path: str, key: str) -> tuple[str, ...]:
        """Return the facts about a ledger that were unreadable at the start of this sweep and still are."""
        hidden = [path] if path in self.unreadable else []
        if key in self._cached:
            return tuple(hidden)
        owner = owner_of(key)
        layout = layout_of(owner)
        hidden += [path for path in (*_paths_of(owner), layout) if path in self.unreadable]
        # a schema's broker is asked only if there is no locator
        is_asked = owner.kind != "schema" or not exists(self.tree, schema_path(owner.name))
        hidden += [owner.name] if is_asked and owner.name in self.pulsar.silent else []
        return tuple(hidden)

    def _is_journaled(self, removal: Removal) -> bool:
        removed = (removal.path, removal.znode.data, removal.znode.version)
        return any((entry.path, entry.data, entry.version) == removed for entry in self.journaled)


def _job(message: Message) -> Job:
    subject = subject_of(message.request)
    return Job(message.request, absent_since_ms(SECRET, subject, message.properties))


def _paths_of(owner: KeyOwner) -> list[str]:
    if owner.kind == "schema":
        return [schema_path(owner.name)]
    if owner.kind == "cursor":
        return [cursor_path(owner.name, owner.cursor)]
    return [managed_ledger_path(owner.name)]


def references_of(cluster: Cluster, requests: Sequence[PendingDelete]) -> dict[str, Reference]:
    """Return the references that a sweep of these requests would read."""
    loader = InUseLoader(MemoryStore(cluster.tree), cluster.pulsar, cluster.clock)
    return loader.load([key_of(request) for request in requests])
