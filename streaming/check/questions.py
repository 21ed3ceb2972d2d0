"""The single questions of `check`. Each returns in words what is well, or raises Notice, or an error."""

import contextlib
import os
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from hashlib import sha1
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import pyarrow.fs as pafs
from pydantic import BaseModel

from streaming.adapters.pulsar.read import check_connection, check_service
from streaming.adapters.s3.calls import S3Settings
from streaming.adapters.s3.objects import S3Objects
from streaming.clock import Clock
from streaming.config.sections import BucketSettings, path_keys
from streaming.config.settings import Settings
from streaming.config.stores import is_on_s3
from streaming.coordination import identity
from streaming.coordination.exclusive import undeclared
from streaming.coordination.lock import holder_of, lock_path
from streaming.coordination.own_znodes import CHECK, open_to_all
from streaming.coordination.ownership import Ownership
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.ports import MetadataStore, TopicAdmin, Unreadable, Znode
from streaming.queries.checkpoints import root_of
from streaming.spark import ivy
from streaming.spark import jars as artifacts
from streaming.state import watcher_note
from streaming.state.filesystem import open_filesystem, shown
from streaming.state.parked_queries import noted
from streaming.state.tables import opened
from streaming.terminal import count_of
from streaming.topics.sizes import require_room_for_copies
from udfs.formats.acl import DELETE, acl_entries

_FREE_BYTES = 1 << 30
_WATCHER_LATE = 15  # looks that are missing; a look that takes long is followed by a longer pause
_WHERE_IT_WAS = "if the service has run before, the configuration named another directory then: name that one"
_SKEW_MS = 5_000  # NTP keeps clocks within milliseconds; the rest is what an answer takes
_DEEPEST = 6  # levels of the long-hierarchical layout, and one


class Notice(Exception):  # noqa: N818  not an error: the answer is yes, but somebody should know something
    """What the operator should know, though nothing is wrong. do: replaces the question's own advice ("": none)."""

    def __init__(self, text: str, *, do: str | None = None) -> None:
        super().__init__(text)
        self.do = do


def missing_files(settings: Settings) -> dict[str, str]:
    """Return why each file that the configuration names can't be read, by key: tokens, certificates, credentials."""
    found = {}
    for name, section in settings:
        for key in path_keys(type(section)) if isinstance(section, BaseModel) else ():
            file = getattr(section, key)
            if not key.endswith("_file") or not file:
                continue
            try:
                Path(file).read_bytes()
            except OSError as error:
                found[f"{name}.{key}"] = f"{file} can't be read: {error.strerror}"
    return found


def identities(settings: Settings) -> set[tuple[str, str]]:
    """As whom ZooKeeper may know us: (scheme, id)."""
    known = {("world", "anyone")}
    name = settings.zookeeper.digest_file
    if name:
        try:
            credentials = Path(name).read_text().strip()
        except OSError as error:
            raise ConfigError(f"zookeeper.digest_file {name} can't be read: {error.strerror}") from error
        user = credentials.partition(":")[0]
        hashed = b64encode(sha1(credentials.encode(), usedforsecurity=False).digest()).decode()
        known |= {("sasl", user)} if settings.zookeeper.sasl_mechanism else {("digest", f"{user}:{hashed}")}
    return known


def delete_right(store: MetadataStore, ledgers_root: str, known: set[tuple[str, str]]) -> str:
    """Whether the ACL of a ledger's parent lets us delete; BookKeeper gives all of them the cluster's one ACL."""
    parent = _parent_of_a_ledger(store, ledgers_root)
    if parent is None:
        raise Notice(f"no ledger below {ledgers_root} yet, so no right to look at")
    acl = store.acl_of(parent)
    if acl is None:
        raise Notice(f"{parent} has just gone; ask again")
    entries = acl_entries(acl)
    if any(entry.perms & DELETE and (entry.scheme, entry.id) in known for entry in entries):
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


def own_root_and_clock(store: MetadataStore, settings: Settings, clock: Clock) -> str:
    """Make an ephemeral znode of our own: that shows the right to, and ZooKeeper's time. No parent is made for it."""
    root = settings.zookeeper.own_root
    if store.read_many([root])[0] is None:
        raise Notice(
            f"{root} does not exist yet; the first start makes it. Whether we may make znodes there, and whether the "
            "clocks agree, can't be told before",
            do="if the service has run before, zookeeper.hosts (chroot?) or own_root named another place then",
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
    ahead_ms = before_ms - node.ctime_ms
    behind_ms = node.ctime_ms - clock.now_ms()
    return judged_clock(max(ahead_ms, 0) or -max(behind_ms, 0), settings.safety.min_age_seconds * 1000)


def own_znodes(store: MetadataStore, root: str) -> str:
    """Whether our znodes are ours alone."""
    if not store.is_identified:
        return "no credentials are configured: whoever reaches ZooKeeper may change them"
    if opened := open_to_all(store, root):
        raise Notice(f"{len(opened)} can be changed, or the key read, by anyone: {', '.join(opened[:3])}")
    return "closed to others"


def judged_clock(ahead_ms: int, min_age_ms: int) -> str:
    """Say what a clock so far ahead of ZooKeeper's (negative: behind) means."""
    if ahead_ms >= min_age_ms:
        raise SafetyError(
            f"this machine's clock is {ahead_ms / 1000:g} s ahead of ZooKeeper's: ledgers would look older than "
            "safety.min_age_seconds that are not"
        )
    if abs(ahead_ms) > _SKEW_MS:
        raise ConfigError(f"this machine's clock and ZooKeeper's differ by {abs(ahead_ms) / 1000:g} s")
    return f"znodes can be made; clocks differ by less than {_SKEW_MS // 1000} s"


def instance(store: MetadataStore, settings: Settings) -> str:
    """Whether the service runs. Both answers are well."""
    holder = holder_of(store, lock_path(settings.zookeeper.own_root, settings.service.name))
    if holder is None:
        return f"no instance {settings.service.name} runs"
    return f"runs: pid {holder.pid} on {holder.host} since {holder.since}"


def owned_topics(store: MetadataStore, settings: Settings, topics: Collection[str]) -> str:
    """Whether no other service reads these topics."""
    ownership = Ownership(store, settings.zookeeper.own_root, settings.service.name)
    ownership.refuse_foreign(topics)
    mine = set(ownership.owned()) & {*topics}
    return f"{len(mine)} of {len({*topics})} are recorded as this service's, and none as another's"


def own_state(store: MetadataStore, settings: Settings) -> str:
    """Whether state.dir is the one that the service of this name uses."""
    table = opened(settings.state_dir, "receipts")
    receipts_id = None if table is None else str(table.metadata().id)
    ownership = Ownership(store, settings.zookeeper.own_root, settings.service.name)
    if fault := ownership.state_fault(receipts_id):
        raise SafetyError(fault)
    if receipts_id is not None:
        identity.compare_state(receipts_id, root_of(settings))
    return f"the one that service {settings.service.name} uses" if receipts_id else "not used yet"


def service_url(settings: Settings, admin: TopicAdmin, topics: Sequence[str]) -> str:
    """Whether the binary protocol works, by opening a reader on the first topic there is."""
    for topic in topics:
        if admin.partitions(topic):
            partition = next(iter(admin.last_positions(topic)))
            check_service(settings.pulsar, partition)
            largest = require_room_for_copies(settings.pulsar, partition)
            return (
                f"{settings.pulsar.service_url}: a reader on {partition} could be opened; the broker takes messages of "
                f"{largest} bytes"
            )
    check_connection(settings.pulsar)
    return (
        f"{settings.pulsar.service_url}: connected; the right to read and publish is not checked before a topic exists"
    )


def lanes(settings: Settings) -> str:
    """Whether each query reads its topic, as the service has noted it last."""
    parked = noted(settings.state_dir)
    if not parked:
        return "no topic is parked"
    said = "; ".join(f"{lane.topic} since {_utc(lane.since_ms)} UTC: {lane.why}" for lane in parked.values())
    if all(lane.is_read for lane in parked.values()):
        raise Notice(f"the connector can't read these topics; they are read another way meanwhile: {said}", do="")
    raise UnavailableError(f"parked, and tried again after growing pauses: {said}")


def watcher(settings: Settings, now_ms: int) -> str:
    """What the watcher noted at its last whole look, and whether that is long ago."""
    found = watcher_note.noted(settings.state_dir)
    if found is None:
        if settings.watch.enabled:
            raise Notice("watch.enabled: it has not looked yet; it begins with the service", do="")
        return "not in use (watch.enabled)"
    waiting = count_of(found.waiting, "request")
    said = f"last look {_utc(found.at_ms)} UTC: {found.znodes} znodes known, {waiting} not sent yet"
    if now_ms - found.at_ms > _WATCHER_LATE * settings.watch.poll_seconds * 1000:
        raise Notice(f"{said}. That is long ago: what vanishes until it runs again is found by comparing then")
    if found.unwatched:
        names = ", ".join(found.unwatched_names)
        said = f"{said}; {found.unwatched} names can't be watched ({names}): the audit names what they leak"
    if found.unreadable:
        raise Notice(f"{said}; {found.unreadable} znodes can't be read, and what they named counts as named")
    if found.unwatched:
        raise Notice(said, do="")
    return said


def _utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def parked_topics(settings: Settings) -> list[str]:
    """Topics that are parked and not read another way either, as noted last."""
    return [lane.topic for lane in noted(settings.state_dir).values() if not lane.is_read]


def who_offloads(wanted: BucketSettings) -> str:
    """Return what the operator declared about the bucket. Raises ConfigError, and Notice where nothing is deleted."""
    if missing := undeclared([] if wanted.is_declared else [wanted]):
        raise ConfigError(missing)
    if wanted.exclusive:
        return "exclusive: this cluster's alone"
    if wanted.cluster_names_are_unique:
        return "cluster_names_are_unique: each cluster there has a name of its own"
    raise Notice("cluster_names_are_unique = false: nothing in it is deleted, and the audit reports no orphans", do="")


def bucket(settings: Settings, wanted: BucketSettings) -> str:
    """Whether the bucket answers our credentials. Deleting is not tried: it would change a bucket with versions."""
    reached = S3Settings(
        wanted.endpoint,
        wanted.bucket,
        wanted.region,
        settings.tiered_storage.credentials_file,
        timeout_seconds=10,
        patience_seconds=10,
    )
    objects = S3Objects(reached)
    try:
        first = next(iter(objects.list_keys()), None)
    finally:
        objects.close()
    found = "it is empty" if first is None else "objects can be listed"
    return f"{wanted.endpoint or 'AWS'}: {found} (the right to delete was not tried)"


def directory(location: str) -> str:
    """Whether we may write there, and whether there is room. Nothing is made: the first start makes what is missing."""
    filesystem, root = open_filesystem(location)
    try:
        if isinstance(filesystem, pafs.LocalFileSystem):
            return _local_directory(Path(root))
        bucket, found = filesystem.get_file_info([root.partition("/")[0] or "/", root])
    except OSError as error:
        raise ConfigError(f"{shown(location)} can't be looked at: {error}") from error
    if bucket.type is pafs.FileType.NotFound:
        raise ConfigError(f"{shown(location)}: there is no bucket {bucket.path}, and the service makes none")
    if found.type is pafs.FileType.NotFound:
        raise Notice(f"{shown(location)} does not exist yet; the first start makes it", do=_WHERE_IT_WAS)
    return f"{shown(location)} exists (the right to write there was not tried)"


def require_writable(location: str) -> None:
    """Raise ConfigError unless a local directory can be written, or created."""
    filesystem, root = open_filesystem(location)
    if isinstance(filesystem, pafs.LocalFileSystem):
        with contextlib.suppress(Notice):
            _local_directory(Path(root))


def _local_directory(path: Path) -> str:
    if not path.exists():
        above = next(each for each in path.parents if each.exists())
        if not _is_writable(above):
            raise ConfigError(f"{path} does not exist yet, and the first start can't make it: no right to in {above}")
        raise Notice(f"{path} does not exist yet; the first start makes it. {above} can be written", do=_WHERE_IT_WAS)
    if not _is_writable(path):
        raise ConfigError(f"{path} can't be written")
    free = shutil.disk_usage(path).free
    if free < _FREE_BYTES:
        raise Notice(f"{path} can be written, but has only {free >> 20} MiB left")
    return f"{path} can be written"


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def java_version() -> str:
    """Which Java Spark would run on."""
    command = ivy.java()
    done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30, check=False)
    first = (done.stderr or done.stdout).strip().partition("\n")[0]
    if done.returncode or '"17.' not in first:
        raise Notice(f"{command}: {first or 'does not run'}; Java 17 is what was tested")
    return first


def jars(settings: Settings) -> str:
    """Whether the connector and, for checkpoints on S3, S3A are there, without fetching them."""
    wanted = [artifacts.connector(version("pyspark"))]
    wanted += artifacts.S3A if is_on_s3(settings.checkpoints.dir) else ()
    if folder := artifacts.folder():
        artifacts.found(wanted)
        return f"{len(wanted)} in {folder}"
    folder = ivy.default_cache()
    missing = [each for each in wanted if not (folder / each.file_name).is_file()]
    if missing:
        names = ", ".join(each.file_name for each in missing)
        size = sum(each.size_bytes for each in missing) >> 20
        raise Notice(f"{names} ({size} MiB) will be fetched into {folder} at the first start")
    return f"{len(wanted)} in {folder}"
