"""Preflight: checks everything that the service needs before a start, with advice for each problem.

The checks leave no trace. An ephemeral znode below our own root shows our right to create znodes, and ZooKeeper's time;
an object below state.dir on S3 shows whether the store refuses to overwrite objects. The checks delete both at once.
They do not create our own root or a directory; they only report that these don't exist yet.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from streaming.check import questions
from streaming.check.request_lanes import request_lanes
from streaming.clients import CommandClients
from streaming.clock import Clock, SystemClock
from streaming.config.settings import Settings
from streaming.config.stores import is_on_s3
from streaming.coordination import identity
from streaming.coordination.exclusive import SUPERUSER, require_brokers_store, require_exclusive_bookkeeper
from streaming.coordination.overwriting import require_no_overwriting
from streaming.coordination.ownership import Ownership
from streaming.coordination.pause import Pause
from streaming.errors import ConfigError, ReaperError, RefusedError, SafetyError, UnavailableError
from streaming.limits.breaker import Breaker, breaker_path
from streaming.limits.tenants import TenantHolds, tenant_holds_path
from streaming.ports import MetadataStore, SweepStore, TopicAdmin
from streaming.queries.checkpoints import changes_of, left_behind, refuse_changes, refuse_other_writer, root_of
from streaming.queries.names import further_query, queries_of
from streaming.reconcile.accounting import reconcile
from streaming.state.filesystem import shown
from streaming.terminal import count_of
from streaming.topics.existing import matching_topics, require_listed
from streaming.topics.setup import faults_of, watch_topic
from udfs.paths import managed_ledger_name, tenant_of
from udfs.records import Presence
from udfs.requests.lanes import Lanes, fair_by_tenant

_MOST_MATCHING = 20  # topics; each takes several requests to brokers


class Status(StrEnum):
    """The status of a line."""

    OK = "OK"
    NOTE = "NOTE"  # works, but the operator should know
    PROBLEM = "PROBLEM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The result of a check."""

    what: str
    status: Status
    says: str
    do: str = ""  # advice
    exit_code: int = 0  # of the command, if this were the only line


def check(settings: Settings, clients: CommandClients, clock: Clock | None = None) -> Iterator[Line]:
    """Check everything, line by line. Raises ConfigError only for settings from which no client can be created."""
    clock = clock or SystemClock()
    store, pulsar = clients.store, clients.pulsar
    answered = True
    for line in chain(_metadata_store(settings, store, clock), _brokers(settings, store, pulsar.admin)):
        answered &= line.exit_code != UnavailableError.exit_code
        yield line
    yield from _directories(settings, store if answered else None, pulsar.admin)
    if answered:
        yield from _together(settings, clients, clock)
    if answered and settings.topics.lanes is not Lanes.ONE:
        yield _line(
            "lanes",
            lambda: request_lanes(store, settings),
            "the next request completes a lane that lacks the subscription. Delete a lane that is not partitioned: a "
            "broker created it for a producer that came before the lane; the next request creates the lane",
        )
    yield _line(
        "parked topics",
        lambda: questions.lanes(settings),
        "see the log, and check the topic's producers; the service retries by itself, and reads the other topics. If "
        "the program was replaced while the service ran, restart the service",
    )
    yield _line(
        "watcher",
        lambda: questions.watcher(settings, clock.now_ms()),
        "see the log of the service, or of `ledger-reaper watch`: it shows what the watcher waits for",
    )
    yield from _buckets(settings)
    if settings.notify.webhook_file:
        yield _line("webhook", lambda: questions.webhook(settings.notify), "see [notify] in conf/default.toml")
    yield from _here(settings)


def check_without_files(settings: Settings, missing: dict[str, str]) -> Iterator[Line]:
    """Yield a problem for each file that can't be read, and run the checks that need no client and thus no file."""
    for key, fault in missing.items():
        yield Line(
            what=key,
            status=Status.PROBLEM,
            says=fault,
            do="name a file that exists and that this user may read",
            exit_code=ConfigError.exit_code,
        )
    yield Line(
        what="ZooKeeper, Pulsar and buckets",
        status=Status.NOTE,
        says=f"not checked: {', '.join(missing)} can't be read",
    )
    for name, directory in (("state", settings.state.dir), ("checkpoints", settings.checkpoints.dir)):
        if not is_on_s3(directory):
            yield _directory(name, directory)
    yield from _here(settings)


def _together(settings: Settings, clients: CommandClients, clock: Clock) -> Iterator[Line]:
    """Run the checks that need answers from ZooKeeper and from the brokers."""
    pulsar = clients.pulsar
    yield from _witnesses(settings, clients)
    yield _line(
        "checkpoints as configured",
        lambda: _checkpoints(settings, pulsar.admin),
        "see the error, and checkpoints/README.md",
    )
    yield _line(
        "no topic left behind",
        lambda: _left_behind(settings, clients),
        "name the topics again, or retire their checkpoints (checkpoints/README.md)",
    )
    yield _line(
        "no other service on these topics",
        lambda: questions.owned_topics(
            clients.store, settings, (*settings.topics.claims, *matching_topics(clients.store, settings))
        ),
        "no two services may read the same topic: docs/move-topics.md",
    )
    yield _line(
        "accounts",
        lambda: _accounts(settings, clients, clock),
        "stop the service, keep state.dir, checkpoints.dir and the topics as they are, and report it; you can send a "
        "lost request again at any time (`ledger-reaper audit --publish` does this); then "
        "`ledger-reaper accept --gaps` ends the alarm for ledgers that vanished",
    )


def _witnesses(settings: Settings, clients: CommandClients) -> Iterator[Line]:
    """Check the brokers as witnesses. After a problem, the brokers would not answer the next question either."""
    questions_in_order = (
        (
            "brokers' sessions",
            lambda: questions.broker_sessions(clients.store, clients.pulsar.admin),
            "docs/holds.md, `A cluster that leaves ZooKeeper`",
        ),
        ("loaded topics", lambda: _loaded(clients), SUPERUSER),
        (
            "the brokers' metadata store",
            lambda: _brokers_store(settings, clients),
            "see zookeeper.hosts (chroot?) and pulsar.admin_url: both must be of one cluster",
        ),
    )
    for what, question, do in questions_in_order:
        line = _line(what, question, do)
        yield line
        if line.status is Status.PROBLEM:
            return


def worst(lines: list[Line]) -> int:
    """Return the exit code for all lines: the highest exit code of a line."""
    return max((line.exit_code for line in lines), default=0)


def _metadata_store(settings: Settings, store: MetadataStore, clock: Clock) -> Iterator[Line]:
    zookeeper = settings.zookeeper
    layout = _line(
        "ZooKeeper and ledger layout",
        lambda: f"{zookeeper.hosts}: {identity.read_layout(store, zookeeper.ledgers_root)}",
        "see zookeeper.hosts (chroot?), ledgers_root and the credentials; only hierarchical and long-hierarchical "
        "layouts are supported",
    )
    yield layout
    if layout.status is Status.PROBLEM:
        return
    yield _line(
        "still the brokers' metadata store",
        lambda: questions.no_migration(store),
        "docs/holds.md, `A cluster that leaves ZooKeeper`",
    )
    yield _line(
        "whose BookKeeper it is",
        lambda: _exclusive(settings),
        "ask the operators of other Pulsar clusters whether they use this BookKeeper; see conf/default.toml",
    )
    yield _line(
        "right to delete ledgers",
        lambda: questions.delete_right(store, zookeeper.ledgers_root, questions.identities(settings)),
        "give the identity of zookeeper.digest_file (or SASL) the DELETE right on the ledgers' parent znodes",
    )
    yield _line(
        "own root writable, clocks agree",
        lambda: questions.own_root_and_clock(store, settings, clock),
        f"let this service create znodes below {zookeeper.own_root}; let NTP set the clocks",
    )
    yield _line(
        "own znodes",
        lambda: questions.own_znodes(store, zookeeper.own_root),
        "the service's next start restricts their ACLs; until then check the effects of `accept`, `pause` and `resume`",
    )
    yield _line("instance", lambda: questions.instance(store, settings), "see the error")
    yield _line(
        "pause", lambda: _paused(store, settings), "`ledger-reaper resume`, if the operator who paused it agrees"
    )
    yield _line(
        "blast radius",
        lambda: _tripped(store, settings),
        "check `ledger-reaper receipts` and the senders of the requests; then `ledger-reaper resume --limit` or, for a "
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
        raise SafetyError(f"TENANTS HELD, nothing of these tenants is deleted: {tenants}")
    return "within the limits"


def _brokers(settings: Settings, store: SweepStore, admin: TopicAdmin) -> Iterator[Line]:
    pulsar = settings.pulsar

    def healthy() -> str:
        admin.check_health()
        return f"{pulsar.admin_url}: clusters {', '.join(sorted(admin.clusters()))}"

    answers = _line("Pulsar admin", healthy, "see admin_url, tls_trust_certs_file and the credentials in [pulsar]")
    yield answers
    if answers.status is Status.PROBLEM:
        return
    topics = (*settings.topics.requests, settings.topics.retry, settings.topics.dead_letter)
    further: list[str] = []

    def find() -> str:
        further.extend(watch_topic(admin, settings))
        if admin.partitions(settings.topics.requests[0]):
            require_listed(store, settings)
        pattern, matching = settings.topics.requests_pattern, fair_by_tenant(matching_topics(store, settings))
        further.extend(matching[:_MOST_MATCHING])
        if not pattern:
            return "only topics.watch is read in addition to topics.requests"
        some = f"; {_MOST_MATCHING} of them are checked" if len(matching) > _MOST_MATCHING else ""
        return f"{count_of(len(matching), 'topic matches', 'topics match')} {pattern}{some}"

    yield _line(
        "further topics",
        find,
        "permit this service to look up topics.watch, and to read the names of topics in ZooKeeper",
    )
    watch = (settings.topics.watch,) if settings.watch.enabled else ()
    topics = tuple(dict.fromkeys((*topics, *watch, *further)))
    for topic in topics:
        yield _line(
            f"topic {topic}",
            lambda topic=topic: _topic(settings, admin, topic),  # type: ignore[misc]
            "change these policies of the topic (bin/pulsar-admin topicPolicies), or name another topic in [topics]",
        )
    yield _line(
        "Pulsar service",
        lambda: questions.service_url(settings, admin, topics),
        "see service_url and the credentials in [pulsar], and their right to consume from and produce to the topics",
    )


def _exclusive(settings: Settings) -> str:
    require_exclusive_bookkeeper(settings)
    return "safety.exclusive_bookkeeper: only this cluster uses it"


def _loaded(clients: CommandClients) -> str:
    return f"{count_of(clients.broker.require_answers(), 'broker')} asked: each reports its loaded topics"


def _brokers_store(settings: Settings, clients: CommandClients) -> str:
    if not clients.pulsar.admin.partitions(settings.topics.retry):
        raise questions.Notice(
            "stores not compared: the retry topic does not exist yet; the first start compares them", do=""
        )
    partition = f"{settings.topics.retry}-partition-0"
    (view,) = clients.broker.views([managed_ledger_name(partition)])
    if view.presence is Presence.PRESENT and not view.is_loaded:
        raise questions.Notice(
            "stores not compared: no broker has our retry topic loaded; the next start compares them", do=""
        )
    return require_brokers_store(clients.store, clients.broker, partition)


def _topic(settings: Settings, admin: TopicAdmin, topic: str) -> str:
    faults = faults_of(admin, settings, topic)
    if faults is None:
        raise questions.Notice("does not exist yet; the first start creates it with its subscription", do="")
    if faults:
        raise ConfigError("; ".join(faults))
    tenant = tenant_of(topic)
    is_bound = settings.topics.takes(topic) and tenant not in settings.topics.trusted_tenants
    speaks_for = f", accepted for tenant {tenant} only (topics.trusted_tenants)" if is_bound else ""
    partitions, subscription = admin.partitions(topic), settings.topics.subscription
    return f"{partitions} partitions, subscription {subscription}, policies as needed{speaks_for}"


def _directories(settings: Settings, store: MetadataStore | None, admin: TopicAdmin) -> Iterator[Line]:
    """Check the directories.

    store: None if a server does not answer; then it is not checked to which cluster the directories belong.
    """
    if is_on_s3(settings.state.dir):
        yield _line(
            "state on S3",
            lambda: require_no_overwriting(settings),
            "check the bucket, the section [s3], and the rights in checkpoints/README.md",
        )
    for name, directory in (("state", settings.state_dir), ("checkpoints", root_of(settings))):
        yield _directory(name, directory)
        if store is not None:
            yield _line(
                f"{name} of this cluster",
                lambda directory=directory: _of_cluster(settings, store, admin, directory),  # type: ignore[misc]
                f"set {name}.dir to this cluster's directory, or the addresses of ZooKeeper and Pulsar to those of the "
                "directory's cluster",
            )
    if store is not None:
        yield _own_state(settings, store)


def _own_state(settings: Settings, store: MetadataStore) -> Line:
    return _line(
        "state of this service",
        lambda: questions.own_state(store, settings),
        "nothing is wrong with the service: run this command where it runs, with its configuration",
    )


def _directory(name: str, directory: str) -> Line:
    return _line(
        f"{name} directory",
        lambda: questions.directory(directory),
        f"let this user create and remove files in {shown(directory)}, and provide free space",
    )


def _of_cluster(settings: Settings, store: MetadataStore, admin: TopicAdmin, directory: str) -> str:
    is_in_use = identity.compare(identity.of_cluster(settings, store, admin), directory)
    return "used by this cluster since its first start" if is_in_use else "not used yet"


def _checkpoints(settings: Settings, admin: TopicAdmin) -> str:
    refuse_other_writer(settings)
    refuse_changes(settings, admin.partitions)
    watch = map(further_query, watch_topic(admin, settings))
    if faults := [fault for query in watch for fault in changes_of(settings, query, admin.partitions)]:
        raise ConfigError("; ".join(faults))
    return "compatible with this configuration"


def _left_behind(settings: Settings, clients: CommandClients) -> str:
    admin = clients.pulsar.admin
    queries = queries_of(settings, watch_topic(admin, settings))
    owned = Ownership(clients.store, settings.zookeeper.own_root, settings.service.name).owned()
    messages = left_behind(settings, queries, admin.partitions, matching_topics(clients.store, settings), owned)
    if messages:
        raise questions.Notice("; ".join(messages))
    return "each topic that was read is still read"


def _accounts(settings: Settings, clients: CommandClients, clock: Clock) -> str:
    try:
        questions.own_state(clients.store, settings)
    except SafetyError:
        raise questions.Notice(
            "not checked: state.dir is not this service's", do="name the directory of this service in state.dir"
        ) from None
    pulsar = clients.pulsar
    accounts = reconcile(settings, pulsar, clock.now_ms(), unlisted=watch_topic(pulsar.admin, settings))
    if accounts.gaps:
        raise SafetyError("; ".join([*accounts.gaps, *filter(None, [accounts.doubt])]))
    if accounts.doubt:
        raise (RefusedError if accounts.is_refused else UnavailableError)(accounts.doubt)
    if parked := questions.parked_topics(settings):
        raise questions.Notice(f"{accounts.text}; parked topics have unread messages too: {', '.join(parked)}", do="")
    return accounts.text


def _buckets(settings: Settings) -> Iterator[Line]:
    for bucket in settings.tiered_storage.allowed:
        yield _line(
            f"who offloads to bucket {bucket.bucket}",
            lambda bucket=bucket: questions.who_offloads(bucket),  # type: ignore[misc]
            "ask the operators of the other Pulsar clusters that offload there; see conf/default.toml",
        )
        yield _line(
            f"bucket {bucket.bucket}",
            lambda bucket=bucket: questions.bucket(settings, bucket),  # type: ignore[misc]
            "see tiered_storage.allowed and credentials_file; rights needed: list, get, delete, abort uploads",
        )


def _here(settings: Settings) -> Iterator[Line]:
    yield _line("Java", questions.java_version, "install Java 17; put it on PATH or set JAVA_HOME")
    yield _line(
        "jars",
        lambda: questions.jars(settings),
        "`ledger-reaper jars --config F` fetches them; on a machine without network, copy them",
    )


def _line(what: str, question: Callable[[], str], do: str) -> Line:
    try:
        return Line(what=what, status=Status.OK, says=question())
    except questions.Notice as notice:
        advice = do if notice.do is None else notice.do
        return Line(what=what, status=Status.NOTE, says=str(notice), do=advice)
    except RefusedError as error:
        # the operator has to grant the missing right
        return Line(what=what, status=Status.PROBLEM, says=str(error), do=do, exit_code=ConfigError.exit_code)
    except ReaperError as error:
        # this command never exits with 1; an operator has to check an error that has no exit code of its own
        code = SafetyError.exit_code if error.exit_code == ReaperError.exit_code else error.exit_code
        return Line(what=what, status=Status.PROBLEM, says=str(error), do=do, exit_code=code)
