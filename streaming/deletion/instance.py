"""Makes this process the one instance that may delete, and holds its identity and its questions to ZooKeeper."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from streaming.check.questions import require_writable
from streaming.clients import Clients
from streaming.config.policies import policy_of
from streaming.config.settings import Settings
from streaming.coordination import identity, own_znodes, plans
from streaming.coordination.agreed_clock import AgreedClock
from streaming.coordination.epoch import Epoch
from streaming.coordination.exclusive import require_declared_buckets, require_exclusive_bookkeeper
from streaming.coordination.live_store import await_broker, migration, require_live_store
from streaming.coordination.lock import InstanceLock
from streaming.coordination.overwriting import require_no_overwriting
from streaming.coordination.ownership import Ownership
from streaming.coordination.pause import Pause
from streaming.errors import SafetyError, StopRequestedError, UnavailableError
from streaming.ports import MetadataStore, TopicAdmin
from streaming.queries.checkpoints import root_of
from streaming.state.filesystem import shown
from streaming.sweep.jobs import SweepRules

log = logging.getLogger("ledger-reaper")


@dataclass(slots=True, kw_only=True)
class Instance:
    """The one instance that may delete: its epoch, and the clients that act for it."""

    clients: Clients
    admin: TopicAdmin
    epoch: Epoch
    pause: Pause
    rules: SweepRules
    ownership: Ownership
    pulsar_cluster: str  # the names of the clusters that Pulsar knows, separated by commas


@dataclass(frozen=True, slots=True)
class Identity:
    """This instance's rules on this cluster, and the numbers of partitions of the target topics."""

    rules: SweepRules  # with the epoch that proves that this instance may delete
    retry_partitions: int
    dead_letter_partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordination:
    """Questions to ZooKeeper around each chunk; each raises UnavailableError when ZooKeeper does not answer."""

    still_mine: Callable[[], bool]  # whether this instance still has the epoch
    paused: Callable[[], str]  # why an operator has paused all instances; "" if not paused
    migration: Callable[[], str]  # why the cluster leaves ZooKeeper or has left it; "" if no migration has started
    await_broker: Callable[[], None]  # raises UnavailableError while no broker has a session in ZooKeeper
    published: Callable[[], str]  # the text that mark_published wrote last (an outbox.Mark)
    mark_published: Callable[[str], None]
    agreed_ms: Callable[[], int]  # the time by which ages are judged
    later_ms: Callable[[], int]  # the later of the two clocks, which dates undo data
    start_plan: Callable[[], str]  # creates the znode by which a bounded sweep's tasks detect that they run again


def coordination_of(settings: Settings, instance: Instance, agreed: AgreedClock) -> Coordination:
    """Return an instance's questions to ZooKeeper."""
    store, root, name = instance.clients.store, settings.zookeeper.own_root, settings.service.name
    mark = f"{root}/instances/{name}/published"
    store.create(mark, b"", parents=True)

    def published() -> str:
        node = own_znodes.read_own(store, mark)
        return node.data.decode("utf-8", "replace") if node is not None else ""

    def mark_published(text: str) -> None:
        store.set_data(mark, text.encode())

    def paused() -> str:
        if ended := instance.pause.ended(agreed.now_ms):
            log.warning("the pause has expired: %s", ended.text)
        return instance.pause.reason()

    return Coordination(
        still_mine=instance.epoch.still_mine,
        paused=paused,
        migration=partial(migration, store),
        await_broker=partial(await_broker, store),
        published=published,
        mark_published=mark_published,
        agreed_ms=agreed.now_ms,
        later_ms=agreed.later_ms,
        start_plan=lambda: plans.start_plan(store, root, name),
    )


@contextlib.contextmanager
def begin_instance(
    settings: Settings, clients: Clients, admin: TopicAdmin, stop: threading.Event, config: str = ""
) -> Iterator[Instance]:
    """Become the one instance of this name until the block ends. Raises SafetyError, ConfigError, UnavailableError.

    config: the configuration file, for the log.
    """
    # a ledger's metadata does not name its cluster, so only the operator knows who else uses BookKeeper (decision 4)
    require_exclusive_bookkeeper(settings)
    require_declared_buckets(settings)
    store, root, name = clients.store, settings.zookeeper.own_root, settings.service.name
    require_live_store(store, admin.metadata_stores, sleep=stop.wait)
    cluster = identity.read_identity(store, settings.zookeeper.ledgers_root, ",".join(sorted(admin.clusters())), name)
    for directory in (root_of(settings), settings.state_dir):
        require_writable(directory)
    _require_own_root(store, root, settings.state_dir)
    with _alone(store, root, name, stop):
        require_no_overwriting(settings)
        for directory in (root_of(settings), settings.state_dir):
            identity.hold(cluster, directory)
        if opened := own_znodes.close(store, root):
            log.warning("closed znodes that other clients could have changed until now: %s", ", ".join(opened))
        ownership = Ownership(store, root, name)
        # before the epoch: a service of another name passes lock and epoch, and would process each request again
        # (decision 18)
        ownership.claim(settings.topics.claims)
        # the version is in every delete's transaction: an instance that stalled before this deletes nothing any more
        epoch = Epoch.bump(store, root, name)
        log.info(
            "ledger-reaper %s, configuration %s: instance %s, epoch %s, Pulsar cluster %s, BookKeeper %s",
            version("ledger-reaper"),
            config or "from the defaults",
            name,
            epoch.version,
            cluster.pulsar_cluster,
            cluster.instance_id,
        )
        rules = SweepRules(
            layout=identity.read_layout(store, settings.zookeeper.ledgers_root),
            ledgers_root=settings.zookeeper.ledgers_root,
            epoch=(epoch.path, epoch.version),
            policy=policy_of(settings),
        )
        own_znodes.create_key(store, root)
        yield Instance(
            clients=clients,
            admin=admin,
            epoch=epoch,
            pause=Pause(store, root),
            rules=rules,
            ownership=ownership,
            pulsar_cluster=cluster.pulsar_cluster,
        )


def _require_own_root(store: MetadataStore, root: str, state_dir: str) -> None:
    """Raise SafetyError if our znodes are gone although a service has used the state directory."""
    # without them nothing is paused or held, whatever an operator or a limit had stopped
    if own_znodes.read_own(store, root) is None and identity.known(state_dir) is not None:
        raise SafetyError(
            f"{root} is gone although {shown(state_dir)} has been used: pauses, limits that were reached and held "
            "tenants are lost with it, unless zookeeper.own_root or the chroot was another. If it is lost, run "
            "`ledger-reaper pause --why ...`, start again, look at `ledger-reaper status`, and then `ledger-reaper "
            "resume`"
        )


@contextlib.contextmanager
def _alone(store: MetadataStore, root: str, name: str, stop: threading.Event) -> Iterator[None]:
    """Hold the instance's lock. If its ZooKeeper session ends, set stop, and raise UnavailableError after the block.

    A session that ends after stop was set is no failure. The block's own exception takes precedence, except
    StopRequestedError.
    """
    lost: list[UnavailableError] = []

    def end() -> None:
        if not stop.is_set():
            lost.append(UnavailableError("the ZooKeeper session that holds the lock has ended; start again"))
            log.error("stopping: %s", lost[0])
            stop.set()

    try:
        with InstanceLock(store, root, name, on_lost=end, stop=stop):
            yield
    except StopRequestedError:
        if not lost:
            raise
    if lost:
        raise lost[0]
