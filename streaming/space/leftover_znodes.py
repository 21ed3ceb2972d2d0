"""Finds znodes of deleted tenants, namespaces, topics and ledgers. Removes none.

Only a znode that two searches found is a leftover, because brokers and bookies create and delete such znodes in several
steps.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from streaming.coordination.live_store import require_no_migration
from streaming.ports import MetadataStore, Unreadable
from streaming.space.output.space_texts import shell_word
from streaming.sweep.jobs import Limiter
from udfs.paths import (
    MANAGED_LEDGERS_ROOT,
    SCALABLE_TOPICS_ROOT,
    SCHEMAS_ROOT,
    SEGMENT_DOMAIN,
    checked_schema_id,
    decode_name,
    schema_id_of,
)

_POLICIES = "/admin/policies"
_PARTITIONED = "/admin/partitioned-topics"
_DOMAIN = "persistent"
_DOMAINS = (_DOMAIN, "non-persistent")
# roots and domains of the znodes whose children are the topics of a namespace
_TOPICS = ((MANAGED_LEDGERS_ROOT, _DOMAIN), *((_PARTITIONED, domain) for domain in _DOMAINS))
# the same of its scalable topics, whose names have no partitions
_SCALABLE = (f"{MANAGED_LEDGERS_ROOT}/{{namespace}}/{SEGMENT_DOMAIN}", f"{SCALABLE_TOPICS_ROOT}/{{namespace}}")
# The brokers' own health checks are in namespaces without policies, such as pulsar/HOST:PORT.
_OF_BROKERS = frozenset({"pulsar", "sla-monitor"})
_TOP_FOLDER = re.compile(r"[0-9]{2,3}")
_FOLDER = re.compile(r"[0-9]{4}")
_FOLDERS_PER_READ = 64  # a folder may have 10,000 names


class LeftoverKind(StrEnum):
    """The kinds of leftovers. Programs read the values."""

    TENANT = "tenant"  # an empty znode of a tenant without policies
    NAMESPACE = "namespace"  # the topics, or an empty znode, of a namespace without policies
    SCHEMA = "schema"  # of a topic that does not exist
    LEDGER_FOLDER = "ledger_folder"  # a folder of BookKeeper's metadata without a ledger
    UNREADABLE = "unreadable"  # no leftover: nothing is known at and below this path


@dataclass(frozen=True, slots=True)
class Leftover:
    """A znode, and the command that removes it."""

    kind: LeftoverKind
    path: str
    command: str  # "" for UNREADABLE; repairs a namespace that has topics, removes anything else
    detail: str


def leftovers_of(
    store: MetadataStore, ledgers_root: str, pace: Limiter, between: Callable[[], None], *, zookeeper: str
) -> list[Leftover]:
    """Return all leftovers by path, a child before its parent.

    Raises SafetyError if the cluster leaves ZooKeeper, UnavailableError.

    Args:
        store: the metadata store.
        ledgers_root: the root of BookKeeper's metadata.
        pace: the rate at which znodes are listed.
        between: waits between the two searches, as long as a broker needs to create or delete a namespace or a topic.
        zookeeper: ZooKeeper's hosts, for the commands.
    """
    require_no_migration(store)
    first = _Search(store, ledgers_root, pace, zookeeper).run()
    between()
    second = _Search(store, ledgers_root, pace, zookeeper).run()
    require_no_migration(store)
    unreadable = {
        path: leftover for path, leftover in (first | second).items() if leftover.kind is LeftoverKind.UNREADABLE
    }
    twice = {
        path: leftover
        for path, leftover in second.items()
        if path in first and first[path].kind is leftover.kind and path not in unreadable
    }
    # by depth: `delete` refuses a znode that has children
    return sorted((twice | unreadable).values(), key=lambda found: (-found.path.count("/"), found.path))


class _Search:
    """One search."""

    def __init__(self, store: MetadataStore, ledgers_root: str, pace: Limiter, zookeeper: str) -> None:
        self._store = store
        self._ledgers_root = ledgers_root
        self._pace = pace
        self._zookeeper = zookeeper
        self._found: dict[str, Leftover] = {}
        self._unread: list[str] = []

    def run(self) -> dict[str, Leftover]:
        """Return path -> leftover. Raises UnavailableError."""
        policies = self._namespaces_with_policies()
        if policies is not None:
            with_topics = self._managed_ledgers(policies)
            self._schemas(policies, with_topics)
        self._ledger_folders()
        return self._found

    def _namespaces_with_policies(self) -> frozenset[str] | None:
        """Return tenants, `tenant/ns` and `tenant/cluster/ns` that have policies; None: they can't be known."""
        tenants = self._children([_POLICIES])[0]
        if tenants:
            second = self._below([f"{_POLICIES}/{tenant}" for tenant in tenants])
            names = {path.removeprefix(f"{_POLICIES}/") for path in (*second, *self._below(second))}
            if self._unread:
                return None  # a listing below failed
            if names:
                return frozenset({*tenants, *names})
        if tenants is not None:
            # with configurationMetadataStoreUrl, policies and partitioned topics are in another ZooKeeper
            self._unreadable(_POLICIES, "no namespace has policies in this ZooKeeper; they may be in another store")
        return None

    def _managed_ledgers(self, policies: frozenset[str]) -> frozenset[str]:
        """Find namespaces and tenants without policies; return all namespaces that have topics."""
        with_topics = set()
        tenants = self._below([MANAGED_LEDGERS_ROOT])
        for tenant, namespaces in zip(tenants, self._children(tenants, missing=None), strict=True):
            if namespaces == []:
                self._empty_of_tenant(tenant, policies)
            folders = [f"{tenant}/{name}" for name in sorted(namespaces or ())]
            for folder, domains in self._namespaces_below(folders, policies):
                if self._namespace(folder, domains, policies):
                    with_topics.add(folder.removeprefix(f"{MANAGED_LEDGERS_ROOT}/"))
        return frozenset(with_topics)

    def _namespaces_below(self, paths: Sequence[str], policies: frozenset[str]) -> Iterator[tuple[str, list[str]]]:
        """Yield each namespace's znode with its children. V1 names have the cluster between tenant and namespace."""
        for path, children in zip(paths, self._children(paths, missing=None), strict=True):
            if children is None:
                continue
            # a namespace with a V1 name may be called `segment` as well
            v1_namespace = f"{path}/{SEGMENT_DOMAIN}".removeprefix(f"{MANAGED_LEDGERS_ROOT}/")
            known = _DOMAINS if v1_namespace in policies else (*_DOMAINS, SEGMENT_DOMAIN)
            domains = [name for name in children if name in known]
            if domains or not children:
                yield path, domains
            of_cluster = [f"{path}/{name}" for name in sorted(children) if name not in known]
            for below, names in zip(of_cluster, self._children(of_cluster, missing=None), strict=True):
                if names is not None:
                    yield below, names

    def _namespace(self, path: str, domains: Sequence[str], policies: frozenset[str]) -> bool:
        """Note a namespace without policies; return whether it may have topics."""
        namespace = path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/")
        folders = [f"{path}/{domain}" for domain in sorted(domains)]
        if namespace in policies or namespace.partition("/")[0] in _OF_BROKERS:
            return bool(domains)
        listed = self._children(folders)
        if None in listed:
            return True
        topics = sum(len(names or ()) for names in listed)
        if not topics:
            for folder in (*folders, path):
                self._note(
                    LeftoverKind.NAMESPACE, folder, self._delete(folder), f"{namespace} has no policies and no topics"
                )
            return False
        detail = (
            f"{namespace} has no policies, but {topics} topics with their data. If only its policies were deleted by "
            "mistake, the command repairs the namespace. If the namespace was deleted, create it and then delete it "
            "with `pulsar-admin namespaces delete --force`, which deletes the data and needs "
            "forceDeleteNamespaceAllowed=true in broker.conf"
        )
        self._note(LeftoverKind.NAMESPACE, path, " && ".join(_creating(namespace, policies)), detail)
        return True

    def _empty_of_tenant(self, path: str, policies: frozenset[str]) -> None:
        tenant = path.rpartition("/")[2]
        if tenant not in policies and tenant not in _OF_BROKERS:
            self._note(LeftoverKind.TENANT, path, self._delete(path), f"tenant {tenant} does not exist")

    def _schemas(self, policies: frozenset[str], with_topics: frozenset[str]) -> None:
        # a schema's id does not contain the cluster of V1 names
        known: dict[str, set[str]] = {}
        for namespace in (*with_topics, *(name for name in policies if "/" in name)):
            known.setdefault(_without_cluster(namespace), set()).add(namespace)
        tenants = self._below([SCHEMAS_ROOT])
        for tenant, namespaces in zip(tenants, self._children(tenants, missing=None), strict=True):
            if namespaces == []:
                self._empty_of_tenant(tenant, policies)
            for name in sorted(namespaces or ()):
                path = f"{tenant}/{name}"
                namespace = path.removeprefix(f"{SCHEMAS_ROOT}/")
                self._schemas_of(path, {namespace, *known.get(namespace, ())}, policies, with_topics)

    def _schemas_of(
        self, path: str, namespaces: AbstractSet[str], policies: frozenset[str], with_topics: frozenset[str]
    ) -> None:
        """Note schemas of topics that do not exist; namespaces: those in which their topics may be."""
        if self._is_unread(path.removeprefix(SCHEMAS_ROOT).rpartition("/")[0]):
            return  # a namespace with a V1 name may have these topics
        names = self._children([path], missing=None)[0]
        exists = not policies.isdisjoint(namespaces)
        if not exists and not with_topics.isdisjoint(namespaces):
            return  # the commands for its schemas would delete the namespace, whose own command repairs it
        namespace = path.removeprefix(f"{SCHEMAS_ROOT}/")
        if not exists and namespace.partition("/")[0] in _OF_BROKERS:
            return
        if names == [] and not exists:
            self._note(LeftoverKind.NAMESPACE, path, self._delete(path), f"{namespace} has no policies and no schemas")
        topics = self._topics_in(sorted(namespaces)) if names else None
        if topics is not None:
            for encoded in sorted(names or ()):
                self._schema(f"{path}/{encoded}", topics, exists=exists, policies=policies)

    def _is_unread(self, tenant: str) -> bool:
        """Whether a listing below a tenant's topics (or of all tenants) failed; tenant: with its slash."""
        folder = f"{MANAGED_LEDGERS_ROOT}{tenant}/"
        return any(folder.startswith(f"{path}/") or path.startswith(folder) for path in self._unread)

    def _schema(self, path: str, topics: frozenset[str], *, exists: bool, policies: frozenset[str]) -> None:
        try:
            schema_id = checked_schema_id(path.removeprefix(f"{SCHEMAS_ROOT}/"))
        except ValueError as error:
            self._unreadable(path, str(error))
            return
        if schema_id in topics:
            return
        namespace, _, encoded = schema_id.rpartition("/")
        delete = f"pulsar-admin schemas delete -f {shell_word(f'persistent://{namespace}/{decode_name(encoded)}')}"
        detail = (
            "ZooKeeper has no topic of this name. Check first that no non-persistent topic has it: the command deletes "
            "all versions of the schema, with their ledgers"
        )
        if exists:
            self._note(LeftoverKind.SCHEMA, path, delete, detail)
            return
        detail += (
            ". It creates the namespace, which has no policies, and then deletes the namespace (and the tenant, if it "
            "does not exist either) with what is left of their empty znodes"
        )
        commands = (*_creating(namespace, policies), delete, *_deleting(namespace, policies))
        self._note(LeftoverKind.SCHEMA, path, " && ".join(commands), detail)

    def _topics_in(self, namespaces: Sequence[str]) -> frozenset[str] | None:
        """Return the schema ids of all topics of the namespaces; None if that is not known."""
        topics = set()
        for namespace, (root, domain) in product(namespaces, _TOPICS):
            folder = f"{root}/{namespace}/{domain}"
            names = self._children([folder])[0]  # one at a time, because one may hold a million topics
            for name in names or ():
                try:
                    topics.add(schema_id_of(f"{namespace}/{_DOMAIN}/{name}"))
                except ValueError as error:
                    self._unreadable(f"{folder}/{name}", str(error))
                    return None
            if names is None:
                return None
        for namespace, folder in product(namespaces, _SCALABLE):
            names = self._children([folder.format(namespace=namespace)])[0]
            if names is None:
                return None
            topics.update(f"{namespace}/{name}" for name in names)
        return frozenset(topics)

    def _ledger_folders(self) -> None:
        tops = self._children([self._ledgers_root])[0] or []
        level = [f"{self._ledgers_root}/{name}" for name in sorted(tops) if _TOP_FOLDER.fullmatch(name)]
        while level:
            deeper: list[str] = []
            for start in range(0, len(level), _FOLDERS_PER_READ):
                chunk = level[start : start + _FOLDERS_PER_READ]
                for folder, names in zip(chunk, self._children(chunk, missing=None), strict=True):
                    if names == []:
                        self._note(LeftoverKind.LEDGER_FOLDER, folder, self._delete(folder), "contains no ledger")
                    deeper += [f"{folder}/{name}" for name in names or () if _FOLDER.fullmatch(name)]
            level = sorted(deeper)

    def _below(self, folders: Sequence[str]) -> list[str]:
        listed = zip(folders, self._children(folders), strict=True)
        return [f"{folder}/{name}" for folder, names in listed for name in sorted(names or ())]

    def _children(self, paths: Sequence[str], *, missing: Sequence[str] | None = ()) -> list[list[str] | None]:
        """Return the children of each path; None: they can't be read, which is noted.

        Args:
            paths: of znodes.
            missing: the answer for a path that does not exist.
        """
        self._pace.wait_for(len(paths))
        answers: list[list[str] | None] = []
        for path, children in zip(paths, self._store.children_many(paths), strict=True):
            if isinstance(children, Unreadable):
                self._unreadable(path, children.detail)
                answers.append(None)
            elif children is None:
                answers.append(None if missing is None else [*missing])
            else:
                answers.append(children)
        return answers

    def _delete(self, path: str) -> str:
        # `delete` refuses a znode that has children by then
        return f"bin/pulsar zookeeper-shell -server {shell_word(self._zookeeper)} delete {shell_word(path)}"

    def _note(self, kind: LeftoverKind, path: str, command: str, detail: str) -> None:
        self._found[path] = Leftover(kind, path, command, detail)

    def _unreadable(self, path: str, detail: str) -> None:
        self._unread.append(path)
        self._found[path] = Leftover(LeftoverKind.UNREADABLE, path, "", detail)


def _creating(namespace: str, policies: frozenset[str]) -> Iterator[str]:
    """Yield the commands without which brokers refuse to delete what is left of a namespace."""
    tenant = namespace.partition("/")[0]
    if tenant not in policies:
        yield f"pulsar-admin tenants create {shell_word(tenant)}"
    yield f"pulsar-admin namespaces create {shell_word(namespace)}"


def _deleting(namespace: str, policies: frozenset[str]) -> Iterator[str]:
    """Yield the commands that undo _creating."""
    yield f"pulsar-admin namespaces delete {shell_word(namespace)}"
    tenant = namespace.partition("/")[0]
    if tenant not in policies:
        yield f"pulsar-admin tenants delete {shell_word(tenant)}"


def _without_cluster(namespace: str) -> str:
    parts = namespace.split("/")
    return f"{parts[0]}/{parts[-1]}"
