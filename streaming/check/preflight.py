"""Preflight: look at everything the service needs before it needs it, and say what to do about what is wrong.

It makes nothing that stays: one ephemeral znode below our own root shows that we may make znodes there, and ZooKeeper's
time; it goes again at once. So does one object below state.dir on S3, which shows whether the store refuses to
overwrite. Where our own root or a directory does not exist yet, it says so and leaves it at that.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from streaming.check import questions
from streaming.clients import CommandClients
from streaming.clock import Clock, SystemClock
from streaming.config.settings import Settings
from streaming.config.stores import is_on_s3
from streaming.coordination import identity
from streaming.coordination.exclusive import SUPERUSER, require_brokers_store, require_exclusive_bookkeeper
from streaming.coordination.overwriting import require_no_overwriting
from streaming.coordination.pause import Pause
from streaming.errors import ConfigError, ReaperError, RefusedError, SafetyError, UnavailableError
from streaming.limits.breaker import Breaker, breaker_path
from streaming.limits.tenants import TenantHolds, tenant_holds_path
from streaming.ports import MetadataStore, TopicAdmin
from streaming.queries.checkpoints import changes_of, left_behind, refuse_changes, root_of
from streaming.queries.names import FURTHER, queries_of
from streaming.reconcile.messages import reconcile
from streaming.state.filesystem import shown
from streaming.terminal import count_of
from streaming.topics.matching import matched_topics
from streaming.topics.setup import faults_of
from udfs.paths import managed_ledger_name, tenant_of
from udfs.records import Presence


class Status(StrEnum):
    """How a line counts."""

    OK = "OK"
    NOTE = "NOTE"  # works, but somebody should know
    PROBLEM = "PROBLEM"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing we looked at. do: what to do about it. exit_code: what the command would end with for this alone."""

    what: str
    status: Status
    says: str
    do: str = ""
    exit_code: int = 0


def check(settings: Settings, clients: CommandClients, clock: Clock | None = None) -> Iterator[Line]:
    """Look at everything, one line after the other. Raises ConfigError only for settings no client can be made of."""
    clock = clock or SystemClock()
    store, pulsar = clients.store, clients.pulsar
    answered = True
    for line in chain(_metadata_store(settings, store, clock), _brokers(settings, pulsar.admin)):
        answered &= line.exit_code != UnavailableError.exit_code
        yield line
    yield from _directories(settings, store if answered else None, pulsar.admin)
    if answered:
        yield from _together(settings, clients, clock)
    yield _look(
        "lanes",
        lambda: questions.lanes(settings),
        "see the log and what publishes to the topic; the service tries again by itself, and the other topics go on",
    )
    yield _look(
        "watcher",
        lambda: questions.watcher(settings, clock.now_ms()),
        "see the log of the service, or of `ledger-reaper watch`: it says what the watcher waits for",
    )
    yield from _buckets(settings)
    yield from _here(settings)


def check_without_files(settings: Settings, missing: dict[str, str]) -> Iterator[Line]:
    """One problem for each file that can't be read, and what can be checked without these files.

    Clients can't be made without them, and what they would say is no fault of its own.
    """
    for key, fault in missing.items():
        yield Line(
            key, Status.PROBLEM, fault, "name a file that exists and that this user may read", ConfigError.exit_code
        )
    yield Line("ZooKeeper, Pulsar and buckets", Status.NOTE, f"not checked: {', '.join(missing)} can't be read")
    for name, directory in (("state", settings.state.dir), ("checkpoints", settings.checkpoints.dir)):
        if not is_on_s3(directory):
            yield _directory(name, directory)
    yield from _here(settings)


def _together(settings: Settings, clients: CommandClients, clock: Clock) -> Iterator[Line]:
    """What takes an answer of ZooKeeper and of the brokers."""
    pulsar = clients.pulsar
    loaded = _look("loaded topics", lambda: _loaded(clients), SUPERUSER)
    yield loaded
    if loaded.status is not Status.PROBLEM:  # else the brokers would not answer the next question either
        yield _look(
            "the brokers' metadata store",
            lambda: _brokers_store(settings, clients),
            "see zookeeper.hosts (chroot?) and pulsar.admin_url: both must be of one cluster",
        )
    yield _look(
        "checkpoints as configured",
        lambda: _checkpoints(settings, pulsar.admin),
        "name the topics as before, or retire the checkpoint (checkpoints/README.md)",
    )
    yield _look(
        "no topic left behind",
        lambda: _left_behind(settings, pulsar.admin),
        "name the topics again, or retire their checkpoints (checkpoints/README.md)",
    )
    yield _look(
        "no other service on these topics",
        lambda: questions.owned_topics(
            clients.store, settings, (*settings.topics.owned, *matched_topics(pulsar.admin, settings))
        ),
        "two services never read one topic: docs/operating.md, `Move a topic to another service`",
    )
    yield _look(
        "accounts",
        lambda: _accounts(settings, clients, clock),
        "stop the service, keep state.dir, checkpoints.dir and the topics as they are, and report it; you can send a "
        "request that was lost again at any time (`ledger-reaper audit --publish` does); then "
        "`ledger-reaper accept --gaps` ends the alarm for ledgers that vanished",
    )


def worst(lines: list[Line]) -> int:
    """Exit code of the whole: 4 before 3 before 2."""
    return max((line.exit_code for line in lines), default=0)


def _metadata_store(settings: Settings, store: MetadataStore, clock: Clock) -> Iterator[Line]:
    zookeeper = settings.zookeeper
    layout = _look(
        "ZooKeeper and ledger layout",
        lambda: f"{zookeeper.hosts}: {identity.read_layout(store, zookeeper.ledgers_root)}",
        "see zookeeper.hosts (chroot?), ledgers_root and the credentials; other layouts than these are not supported",
    )
    yield layout
    if layout.status is Status.PROBLEM:
        return
    yield _look(
        "whose BookKeeper it is",
        lambda: _exclusive(settings),
        "ask who runs the other Pulsar clusters here; see conf/default.toml",
    )
    yield _look(
        "right to delete ledgers",
        lambda: questions.delete_right(store, zookeeper.ledgers_root, questions.identities(settings)),
        "give the identity of zookeeper.digest_file (or SASL) the DELETE right on the ledgers' parent znodes",
    )
    yield _look(
        "own root writable, clocks agree",
        lambda: questions.own_root_and_clock(store, settings, clock),
        f"let this service create znodes below {zookeeper.own_root}; let NTP set the clocks",
    )
    yield _look(
        "own znodes",
        lambda: questions.own_znodes(store, zookeeper.own_root),
        "the service's next start closes them; look at what `accept`, `pause` and `resume` have set until then",
    )
    yield _look("instance", lambda: questions.instance(store, settings), "see the error")
    yield _look("pause", lambda: _paused(store, settings), "`ledger-reaper resume` when whoever paused it agrees")
    yield _look(
        "blast radius",
        lambda: _tripped(store, settings),
        "look at `ledger-reaper receipts` and at who sends the requests; then `ledger-reaper resume --limit` or, for a "
        "tenant, `resume --tenant T`",
    )


def _paused(store: MetadataStore, settings: Settings) -> str:
    why = Pause(store, settings.zookeeper.own_root).reason()
    if why:
        raise questions.Notice(f"paused: {why}")
    return "not paused"


def _tripped(store: MetadataStore, settings: Settings) -> str:
    why = Breaker(store, breaker_path(settings.zookeeper.own_root, settings.service.name)).reason()
    if why:
        raise SafetyError(f"LIMIT REACHED, nothing more is deleted: {why}")
    held = TenantHolds(store, tenant_holds_path(settings.zookeeper.own_root, settings.service.name)).read()
    if held:
        tenants = "; ".join(f"{tenant}: {reason}" for tenant, reason in sorted(held.items()))
        raise SafetyError(f"TENANTS HELD, nothing of them is deleted: {tenants}")
    return "within the limits"


def _brokers(settings: Settings, admin: TopicAdmin) -> Iterator[Line]:
    pulsar = settings.pulsar

    def healthy() -> str:
        admin.check_health()
        return f"{pulsar.admin_url}: clusters {', '.join(sorted(admin.clusters()))}"

    answers = _look("Pulsar admin", healthy, "see pulsar.admin_url, token_file and tls_trust_certs_file")
    yield answers
    if answers.status is Status.PROBLEM:
        return
    topics = (*settings.topics.requests, settings.topics.retry, settings.topics.dead_letter)
    matched: list[str] = []

    def look_up() -> str:
        matched.extend(matched_topics(admin, settings))
        pattern, found = settings.topics.requests_pattern, {*matched} - {settings.topics.watch}
        return (
            f"{count_of(len(found), 'topic matches', 'topics match')} {pattern}"
            if pattern
            else "none but topics.watch is read beside topics.requests"
        )

    yield _look(
        "further topics",
        look_up,
        "let this service look up topics.watch, and list what topics.requests_pattern may match",
    )
    watch = (settings.topics.watch,) if settings.watch.enabled else ()
    topics = tuple(dict.fromkeys((*topics, *watch, *matched)))
    for topic in topics:
        yield _look(
            f"topic {topic}",
            lambda topic=topic: _topic(settings, admin, topic),  # type: ignore[misc]
            "change the topic's policies as said (bin/pulsar-admin topicPolicies), or name another topic in [topics]",
        )
    yield _look(
        "Pulsar service",
        lambda: questions.service_url(settings, admin, topics),
        "see pulsar.service_url, token_file, and the role's right to consume from and produce to the topics",
    )


def _exclusive(settings: Settings) -> str:
    require_exclusive_bookkeeper(settings)
    return "safety.exclusive_bookkeeper: this cluster's alone"


def _loaded(clients: CommandClients) -> str:
    return f"{count_of(clients.broker.require_answers(), 'broker')} asked: each says which topics it has loaded"


def _brokers_store(settings: Settings, clients: CommandClients) -> str:
    if not clients.pulsar.admin.partitions(settings.topics.retry):
        raise questions.Notice("not compared: there is no topic of ours yet; the first start compares", do="")
    partition = f"{settings.topics.retry}-partition-0"
    (view,) = clients.broker.views([managed_ledger_name(partition)])
    if view.presence is Presence.PRESENT and not view.is_loaded:
        raise questions.Notice("not compared: no broker has our retry topic loaded; the next start compares", do="")
    return require_brokers_store(clients.store, clients.broker, partition)


def _topic(settings: Settings, admin: TopicAdmin, topic: str) -> str:
    faults = faults_of(admin, settings, topic)
    if faults is None:
        raise questions.Notice("does not exist yet; the first start makes it, and its subscription with it", do="")
    if faults:
        raise ConfigError("; ".join(faults))
    tenant = tenant_of(topic)
    is_bound = settings.topics.takes(topic) and tenant not in settings.topics.trusted_tenants
    speaks_for = f", speaks for tenant {tenant} only (topics.trusted_tenants)" if is_bound else ""
    partitions, subscription = admin.partitions(topic), settings.topics.subscription
    return f"{partitions} partitions, subscription {subscription}, policies as needed{speaks_for}"


def _directories(settings: Settings, store: MetadataStore | None, admin: TopicAdmin) -> Iterator[Line]:
    """store None: while a service does not answer, nobody can tell which cluster the directories belong to."""
    if is_on_s3(settings.state.dir):
        yield _look(
            "state on S3",
            lambda: require_no_overwriting(settings),
            "see to the bucket, the section [s3], and the rights in checkpoints/README.md",
        )
    for name, directory in (("state", settings.state_dir), ("checkpoints", root_of(settings))):
        yield _directory(name, directory)
        if store is not None:
            yield _look(
                f"{name} of this cluster",
                lambda directory=directory: _of_cluster(settings, store, admin, directory),  # type: ignore[misc]
                f"point {name}.dir at this cluster's directory, or the addresses at the directory's cluster",
            )
    if store is not None:
        yield _own_state(settings, store)


def _own_state(settings: Settings, store: MetadataStore) -> Line:
    return _look(
        "state of this service",
        lambda: questions.own_state(store, settings),
        "nothing is wrong with the service: run this command where it runs, with its configuration",
    )


def _directory(name: str, directory: str) -> Line:
    return _look(
        f"{name} directory",
        lambda: questions.directory(directory),
        f"let this user create and remove files in {shown(directory)}, and see that there is room",
    )


def _of_cluster(settings: Settings, store: MetadataStore, admin: TopicAdmin, directory: str) -> str:
    is_known = identity.compare(identity.of_cluster(settings, store, admin), directory)
    return "the cluster it was begun with" if is_known else "not used yet"


def _checkpoints(settings: Settings, admin: TopicAdmin) -> str:
    refuse_changes(settings, admin.partitions)
    matched = [each for each in queries_of(settings, matched_topics(admin, settings)) if each.name.startswith(FURTHER)]
    if faults := [fault for query in matched for fault in changes_of(settings, query, admin.partitions)]:
        raise ConfigError("; ".join(faults))
    return "they can be gone on with"


def _left_behind(settings: Settings, admin: TopicAdmin) -> str:
    said = left_behind(settings, queries_of(settings, matched_topics(admin, settings)), admin.partitions)
    if said:
        raise questions.Notice("; ".join(said))
    return "each topic that was read is read"


def _accounts(settings: Settings, clients: CommandClients, clock: Clock) -> str:
    try:
        questions.own_state(clients.store, settings)
    except SafetyError:
        raise questions.Notice(
            "not looked at: state.dir is not this service's", do="name the directory of this service in state.dir"
        ) from None
    pulsar = clients.pulsar
    accounts = reconcile(settings, pulsar, clock.now_ms(), matched=matched_topics(pulsar.admin, settings))
    if accounts.gaps:
        raise SafetyError("; ".join([*accounts.gaps, *filter(None, [accounts.doubt])]))
    if accounts.doubt:
        raise (RefusedError if accounts.is_refused else UnavailableError)(accounts.doubt)
    if parked := questions.parked_topics(settings):
        raise questions.Notice(f"{accounts.text}; unread too is what waits in parked lanes: {', '.join(parked)}", do="")
    return accounts.text


def _buckets(settings: Settings) -> Iterator[Line]:
    for bucket in settings.tiered_storage.allowed:
        yield _look(
            f"who offloads to bucket {bucket.bucket}",
            lambda bucket=bucket: questions.who_offloads(bucket),  # type: ignore[misc]
            "ask who runs the other Pulsar clusters that offload there; see conf/default.toml",
        )
        yield _look(
            f"bucket {bucket.bucket}",
            lambda bucket=bucket: questions.bucket(settings, bucket),  # type: ignore[misc]
            "see tiered_storage.allowed and credentials_file; rights needed: list, get, delete, abort uploads",
        )


def _here(settings: Settings) -> Iterator[Line]:
    yield _look("Java", questions.java_version, "install Java 17; put it on PATH or set JAVA_HOME")
    yield _look(
        "jars",
        lambda: questions.jars(settings),
        "`ledger-reaper jars --config F` fetches them; on a machine without network copy them",
    )


def _look(what: str, question: Callable[[], str], do: str) -> Line:
    try:
        return Line(what, Status.OK, question())
    except questions.Notice as notice:
        return Line(what, Status.NOTE, str(notice), do if notice.do is None else notice.do)
    except RefusedError as error:
        # not a fault of the program: whoever configures the service has to ask for rights
        return Line(what, Status.PROBLEM, str(error), do, ConfigError.exit_code)
    except ReaperError as error:
        # 1 is no exit code of this command: a person must look at what has no code of its own
        code = SafetyError.exit_code if error.exit_code == ReaperError.exit_code else error.exit_code
        return Line(what, Status.PROBLEM, str(error), do, code)
