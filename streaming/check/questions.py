"""The questions of `check`. Each returns a message if all is well, or raises Notice or an error."""

import contextlib
import os
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from hashlib import sha1
from pathlib import Path
from uuid import uuid4

import pyarrow.fs as pafs
from pydantic import BaseModel

from streaming.adapters.pulsar.readers.read import check_connection, check_service
from streaming.adapters.s3.calls import S3Settings
from streaming.adapters.s3.objects import S3Objects
from streaming.adapters.webhook import Webhook
from streaming.clock import Clock
from streaming.config.sections import BucketSettings, NotifySettings, path_keys
from streaming.config.settings import Settings
from streaming.config.stores import is_on_s3
from streaming.coordination import identity
from streaming.coordination.exclusive import undeclared
from streaming.coordination.live_store import migration, require_live_store, require_no_migration
from streaming.coordination.lock import holder_of, lock_path
from streaming.coordination.own_znodes import CHECK, open_to_all
from streaming.coordination.ownership import Ownership
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.ports import MetadataStore, TopicAdmin, Unreadable, Znode
from streaming.queries.checkpoints import root_of
from streaming.spark import ivy
from streaming.spark import jars as artifacts
from streaming.state.delta.delta_tables import opened
from streaming.state.filesystem import open_filesystem, shown
from streaming.state.notes import watcher_note
from streaming.state.notes.parked_queries import noted
from streaming.terminal import count_of
from streaming.topics.sizes import require_room_for_copies
from udfs.formats.acl import DELETE, acl_entries
from udfs.requests.lanes import ALL_LANES

_FREE_BYTES = 1 << 30
_WATCHER_LATE = 15  # missed scans; generous, because the pause after a slow scan is longer
_WHERE_IT_WAS = "if the service has run before, its configuration named another directory: name that directory"
_SKEW_MS = 5_000  # NTP keeps clocks within milliseconds; the rest allows for slow answers
_DEEPEST = 6  # levels of the long-hierarchical layout, plus the root


class Notice(Exception):  # noqa: N818  not an error: all is well, but the operator should know something
    """A message for the operator although nothing is wrong."""

    def __init__(self, text: str, *, do: str | None = None) -> None:
        """Create the notice; `do` replaces the advice for the question ("": no advice)."""
        super().__init__(text)
        self.do = do


def missing_files(settings: Settings) -> dict[str, str]:
    """Return key -> why the file can't be read, for the files of tokens, certificates and credentials."""
    faults = {}
    for name, section in settings:
        for key in path_keys(type(section)) if isinstance(section, BaseModel) else ():
            file = getattr(section, key)
            if not key.endswith("_file") or not file:
                continue
            try:
                Path(file).read_bytes()
            except OSError as error:
                faults[f"{name}.{key}"] = f"{file} can't be read: {error.strerror}"
    return faults


def identities(settings: Settings) -> set[tuple[str, str]]:
    """Return our identities in ZooKeeper's ACLs: (scheme, id)."""
    ours = {("world", "anyone")}
    if settings.zookeeper.sasl_mechanism == "GSSAPI":
        return ours | {("sasl", settings.zookeeper.kerberos_principal)}
    name = settings.zookeeper.digest_file
    if name:
        try:
            credentials = Path(name).read_text().strip()
        except OSError as error:
            raise ConfigError(f"zookeeper.digest_file {name} can't be read: {error.strerror}") from error
        user = credentials.partition(":")[0]
        hashed = b64encode(sha1(credentials.encode(), usedforsecurity=False).digest()).decode()
        ours |= {("sasl", user)} if settings.zookeeper.sasl_mechanism else {("digest", f"{user}:{hashed}")}
    return ours


def delete_right(store: MetadataStore, ledgers_root: str, ours: set[tuple[str, str]]) -> str:
    """Check that the ACL of a ledger's parent lets us delete; BookKeeper uses the same ACL for all parents."""
    parent = _parent_of_a_ledger(store, ledgers_root)
    if parent is None:
        raise Notice(f"no ledger below {ledgers_root} yet, so no right to check")
    acl = store.acl_of(parent)
    if acl is None:
        raise Notice(f"{parent} has just been deleted; run the check again")
    entries = acl_entries(acl)
    if any(entry.perms & DELETE and (entry.scheme, entry.id) in ours for entry in entries):
        return f"granted by the ACL of {parent}"
    others = sorted({entry.scheme for entry in entries if entry.perms & DELETE} - {"world", "digest"})
    if others:
        raise Notice(f"the ACL of {parent} grants it by {', '.join(others)}, which can't be compared from here")
    raise RefusedError(f"the ACL of {parent} does not let us delete: every delete would be STORE_REFUSED")


def _parent_of_a_ledger(store: MetadataStore, path: str) -> str | None:
    for _level in range(_DEEPEST):
        children = store.children_many([path])[0]
        if isinstance(children, Unreadable):
            raise RefusedError(f"{path} can't be listed: {children.detail}")
        names = sorted(children or ())
        if any(name.startswith("L") and name[1:].isdigit() for name in names):
            return path
        below = [name for name in names if name.isdigit()]
        if not below:
            return None
        path = f"{path}/{below[0]}"
    return None


def no_migration(store: MetadataStore) -> str:
    """Check that the cluster is not leaving ZooKeeper for another metadata store."""
    require_no_migration(store)
    return "no migration to another metadata store has started"


def broker_sessions(store: MetadataStore, admin: TopicAdmin) -> str:
    """Check that brokers have sessions in this ZooKeeper, so that it is their metadata store."""
    if migration(store):
        raise Notice("not checked during or after a migration", do="")
    found = require_live_store(store, admin.metadata_stores, patience_s=0)
    return f"{count_of(found, 'broker has', 'brokers have')} a session in this ZooKeeper"


def own_root_and_clock(store: MetadataStore, settings: Settings, clock: Clock) -> str:
    """Check the right to create znodes, and ZooKeeper's time, by an ephemeral znode; creates no parent for it."""
    root = settings.zookeeper.own_root
    if store.read_many([root])[0] is None:
        raise Notice(
            f"{root} does not exist yet; the first start creates it. The right to create znodes there, and the clocks, "
            "can't be checked before",
            do="if the service has run before, zookeeper.hosts (chroot?) or own_root was different then",
        )
    path = f"{root}/{CHECK}{uuid4().hex}"
    before_ms = clock.now_ms()
    store.create(path, b"", ephemeral=True)
    try:
        node = store.read_many([path])[0]
    finally:
        store.delete(path)
    if not isinstance(node, Znode):
        raise UnavailableError(f"{path} could not be read back")
    fast_ms = before_ms - node.ctime_ms
    slow_ms = node.ctime_ms - clock.now_ms()
    return judged_clock(max(fast_ms, 0) or -max(slow_ms, 0), settings.safety.min_age_seconds * 1000)


def own_znodes(store: MetadataStore, root: str) -> str:
    """Check that only we may change our znodes."""
    if not store.is_identified:
        return "no credentials are configured: every client of ZooKeeper may change them"
    if opened := open_to_all(store, root):
        raise Notice(f"anyone can change {len(opened)} znodes, or read the key there: {', '.join(opened[:3])}")
    return "closed to others"


def judged_clock(ahead_ms: int, min_age_ms: int) -> str:
    """Judge this machine's clock. ahead_ms: how far it is ahead of ZooKeeper's clock; negative if it is behind."""
    if ahead_ms >= min_age_ms:
        raise SafetyError(
            f"this machine's clock is {ahead_ms / 1000:g} s ahead of ZooKeeper's: young ledgers would seem older than "
            "safety.min_age_seconds"
        )
    if abs(ahead_ms) > _SKEW_MS:
        raise ConfigError(f"this machine's clock and ZooKeeper's differ by {abs(ahead_ms) / 1000:g} s")
    return f"znodes can be created; clocks differ by less than {_SKEW_MS // 1000} s"


def instance(store: MetadataStore, settings: Settings) -> str:
    """Return whether the service runs; neither answer is a problem."""
    holder = holder_of(store, lock_path(settings.zookeeper.own_root, settings.service.name))
    if holder is None:
        return f"no instance {settings.service.name} runs"
    return f"runs: {holder.text}"


def owned_topics(store: MetadataStore, settings: Settings, topics: Collection[str]) -> str:
    """Check that no other service reads these topics."""
    ownership = Ownership(store, settings.zookeeper.own_root, settings.service.name)
    ownership.refuse_foreign(topics)
    owned = set(ownership.owned()) & {*topics}
    return f"{len(owned)} of {len({*topics})} are recorded as this service's, and none as another's"


def own_state(store: MetadataStore, settings: Settings) -> str:
    """Check that state.dir is the directory that the service of this name uses."""
    table = opened(settings.state_dir, "receipts")
    receipts_id = None if table is None else str(table.metadata().id)
    ownership = Ownership(store, settings.zookeeper.own_root, settings.service.name)
    if fault := ownership.state_fault(receipts_id):
        raise SafetyError(fault)
    if receipts_id is not None:
        identity.compare_state(receipts_id, root_of(settings))
    return f"the directory that service {settings.service.name} uses" if receipts_id else "not used yet"


def service_url(settings: Settings, admin: TopicAdmin, topics: Sequence[str]) -> str:
    """Check the binary protocol, with a reader on the first topic that exists."""
    for topic in topics:
        if admin.partitions(topic):
            partition = next(iter(admin.last_positions(topic)))
            check_service(settings.pulsar, partition)
            largest = require_room_for_copies(settings.pulsar, partition)
            return (
                f"{settings.pulsar.service_url}: a reader on {partition} could be opened; the broker accepts messages "
                f"of at most {largest} bytes"
            )
    check_connection(settings.pulsar)
    return (
        f"{settings.pulsar.service_url}: connected; the right to read and publish is not checked before a topic exists"
    )


def lanes(settings: Settings) -> str:
    """Check that each query reads its topic, according to the service's last note."""
    parked = noted(settings.state_dir)
    if not parked:
        return "no topic is parked"
    shown = "; ".join(query.shown(_utc(query.since_ms)) for query in parked.values())
    if not all(query.is_read for query in parked.values()):
        raise UnavailableError(f"tried again after growing pauses: {shown}")
    unread = any(query.topic == ALL_LANES for query in parked.values())
    raise Notice(shown, do="other tenants' requests are processed; have the tenant repair its lane" if unread else "")


def watcher(settings: Settings, now_ms: int) -> str:
    """Return the watcher's counts at its last complete scan, unless that is long ago."""
    scan = watcher_note.noted(settings.state_dir)
    if scan is None:
        if settings.watch.enabled:
            raise Notice("watch.enabled: no scan yet; the watcher starts with the service", do="")
        return "not in use (watch.enabled)"
    waiting = count_of(scan.waiting, "request")
    counts = f"last scan {_utc(scan.at_ms)} UTC: {scan.znodes} znodes known, {waiting} not sent yet"
    if now_ms - scan.at_ms > _WATCHER_LATE * settings.watch.poll_seconds * 1000:
        raise Notice(f"{counts}. That is long ago: the watcher's next scan will find the names that vanish until then")
    if scan.unwatched:
        names = ", ".join(scan.unwatched_names)
        counts = f"{counts}; {scan.unwatched} names can't be watched ({names}): the audit reports what they leak"
    if scan.unreadable:
        raise Notice(f"{counts}; {scan.unreadable} znodes can't be read, and the names in them count as present")
    if scan.unwatched:
        raise Notice(counts, do="")
    return counts


def _utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def parked_topics(settings: Settings) -> list[str]:
    """Return the parked topics that the fallback does not read either, according to the last note."""
    return [query.topic for query in noted(settings.state_dir).values() if not query.is_read]


def who_offloads(configured: BucketSettings) -> str:
    """Return the operator's declaration about a bucket. Raises ConfigError, and Notice if nothing in it is deleted."""
    if missing := undeclared([] if configured.is_declared else [configured]):
        raise ConfigError(missing)
    if configured.exclusive:
        return "exclusive: only this cluster uses it"
    if configured.cluster_names_are_unique:
        return "cluster_names_are_unique: the clusters that use it have different names"
    raise Notice("cluster_names_are_unique = false: nothing in it is deleted, and the audit reports no orphans", do="")


def bucket(settings: Settings, configured: BucketSettings) -> str:
    """Check that the bucket accepts our credentials."""
    s3 = S3Settings(
        endpoint=configured.endpoint,
        bucket=configured.bucket,
        region=configured.region,
        credentials_file=settings.tiered_storage.credentials_file,
        timeout_seconds=10,
        patience_seconds=10,
    )
    objects = S3Objects(s3)
    try:
        first = next(iter(objects.list_keys()), None)
    finally:
        objects.close()
    # no delete is tried, because it changes a bucket with versions
    content = "it is empty" if first is None else "objects can be listed"
    return f"{configured.endpoint or 'AWS'}: {content} (the right to delete was not tried)"


def directory(location: str) -> str:
    """Check the right to write, and free space. Creates nothing: the first start creates a missing directory."""
    filesystem, root = open_filesystem(location)
    try:
        if isinstance(filesystem, pafs.LocalFileSystem):
            return _local_directory(Path(root))
        bucket, folder = filesystem.get_file_info([root.partition("/")[0] or "/", root])
    except OSError as error:
        raise ConfigError(f"{shown(location)} can't be checked: {error}") from error
    if bucket.type is pafs.FileType.NotFound:
        raise ConfigError(f"{shown(location)}: there is no bucket {bucket.path}, and the service creates none")
    if folder.type is pafs.FileType.NotFound:
        raise Notice(f"{shown(location)} does not exist yet; the first start creates it", do=_WHERE_IT_WAS)
    return f"{shown(location)} exists (the right to write there was not tried)"


def require_writable(location: str) -> None:
    """Raise ConfigError unless a local directory can be written, or created."""
    filesystem, root = open_filesystem(location)
    if isinstance(filesystem, pafs.LocalFileSystem):
        with contextlib.suppress(Notice):
            _local_directory(Path(root))


def _local_directory(path: Path) -> str:
    if not path.exists():
        above = next(parent for parent in path.parents if parent.exists())
        if not _is_writable(above):
            raise ConfigError(f"{path} does not exist yet, and the first start can't create it: no right in {above}")
        raise Notice(f"{path} does not exist yet; the first start creates it. {above} can be written", do=_WHERE_IT_WAS)
    if not _is_writable(path):
        raise ConfigError(f"{path} can't be written")
    free = shutil.disk_usage(path).free
    if free < _FREE_BYTES:
        raise Notice(f"{path} can be written, but has only {free >> 20} MiB left")
    return f"{path} can be written"


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def webhook(notify: NotifySettings) -> str:
    """Check the files of [notify], as a start does."""
    Webhook.of(notify).check()
    return "notify.webhook_file contains a URL (no message was sent)"


def java_version() -> str:
    """Return the version of Java that Spark would use."""
    command = ivy.java()
    done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30, check=False)
    first = (done.stderr or done.stdout).strip().partition("\n")[0]
    if done.returncode or '"17.' not in first:
        raise Notice(f"{command}: {first or 'does not run'}; only Java 17 is tested")
    return first


def jars(settings: Settings) -> str:
    """Check that the connector and, for checkpoints on S3, S3A exist, as far as needed, without fetching them."""
    needed = [*artifacts.connector(), *(artifacts.s3a() if is_on_s3(settings.checkpoints.dir) else ())]
    if not needed:
        return "none are needed"
    if folder := artifacts.folder():
        artifacts.found(needed)
        return f"{len(needed)} in {folder}"
    folder = ivy.default_cache()
    missing = [jar for jar in needed if not (folder / jar.file_name).is_file()]
    if missing:
        names = ", ".join(jar.file_name for jar in missing)
        size = sum(jar.size_bytes for jar in missing) >> 20
        raise Notice(f"{names} ({size} MiB) will be fetched into {folder} at the first start")
    return f"{len(needed)} in {folder}"
