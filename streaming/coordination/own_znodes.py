"""Reads and protects the service's own znodes: with write access, others could clear a limit or a pause.

With ZooKeeper credentials, create() closes new znodes to all others. This module finds and closes the znodes that were
created before there were credentials.
"""

from collections.abc import Iterator
from secrets import token_hex

from streaming.errors import ConfigError, RefusedError, UnavailableError
from streaming.ports import MetadataStore, Unreadable, Znode
from udfs.formats.acl import READ, acl_entries

INSTANCES, TOPICS, PAUSE, SECRET, HISTORY, CHECK = "instances", "topics", "pause", "secret", "history", "check-"


def read_own(store: MetadataStore, path: str) -> Znode | None:
    """Read one of our znodes; None if it does not exist. Raises UnavailableError if that is unknown."""
    (node,) = store.read_many([path])
    if isinstance(node, Unreadable):
        raise UnavailableError(f"can't read {path}: {node.detail}. Check the ACL of our znodes in ZooKeeper")
    return node


def write_own(store: MetadataStore, path: str, data: bytes) -> int | None:
    """Write one of our znodes and create it if necessary. Raises UnavailableError.

    Returns:
        Its new version; None if it was deleted between the two steps.
    """
    store.create(path, b"", parents=True)
    return store.set_data(path, data)


def create_key(store: MetadataStore, root: str) -> None:
    """Create the key that signs sightings (udfs.owners.sightings), once per cluster. Raises UnavailableError."""
    store.create(f"{root}/{SECRET}", token_hex(32).encode(), parents=True)


def signing_key(store: MetadataStore, root: str) -> bytes:
    """Read the key that signs sightings. Raises UnavailableError, also if there is no key."""
    # each worker reads it from ZooKeeper: inside a task it would be sent over Spark's network and written to its disks,
    # which Spark does not encrypt by default
    node = read_own(store, f"{root}/{SECRET}")
    if node is None or not node.data:  # anyone could forge signatures of an empty key
        raise UnavailableError(f"{root}/{SECRET} is gone: start the service again, which creates it")
    return node.data


def open_to_all(store: MetadataStore, root: str) -> list[str]:
    """Return our znodes that anyone may change, and the key if anyone may read it; parents first.

    Without credentials the list is empty. Raises ConfigError, UnavailableError.
    """
    return _with_advice(store, root, closes=False)


def close(store: MetadataStore, root: str) -> list[str]:
    """Close the znodes that open_to_all returns, and return them; a key that was open is deleted.

    Raises ConfigError with advice if ZooKeeper refuses or foreign znodes are among ours; UnavailableError.
    """
    return _with_advice(store, root, closes=True)


def _with_advice(store: MetadataStore, root: str, *, closes: bool) -> list[str]:
    if not store.is_identified:
        return []
    try:
        return list(_open_znodes(store, root, root, closes=closes))
    except RefusedError as error:
        raise ConfigError(
            f"{error}. Every znode below {root} must belong to this service alone. As a user with the right to do so "
            f"(addauth), run `setAcl -R {root} auth::cdrwa` in ZooKeeper's zkCli.sh, or name another zookeeper.own_root"
        ) from error


def _open_znodes(store: MetadataStore, root: str, path: str, *, closes: bool) -> Iterator[str]:
    acl = store.acl_of(path)
    if acl is None:
        return
    is_key = path == f"{root}/{SECRET}"
    rights = 0
    for entry in acl_entries(acl):
        rights |= entry.perms if entry.scheme == "world" else 0
    if rights & ~(0 if is_key else READ):
        others = [name for name in _children(store, path) if not _is_ours(name)] if path == root else []
        if others:
            raise RefusedError(f"{root} is open to everybody, and contains foreign znodes: {', '.join(others[:3])}")
        if closes:  # parents first, so that no znode can be created below a closed znode
            _close(store, path, is_key=is_key)
        yield path
    for name in _children(store, path):
        if path != root or _is_ours(name):
            yield from _open_znodes(store, root, f"{path}/{name}", closes=closes)


def _close(store: MetadataStore, path: str, *, is_key: bool) -> None:
    if is_key:
        store.delete(path)  # anyone may have read the key and could sign with it; create_key then creates another
    else:
        store.close_to_others(path)


def _children(store: MetadataStore, path: str) -> list[str]:
    (names,) = store.children_many([path])
    if isinstance(names, Unreadable):
        raise RefusedError(f"{path} can't be listed: {names.detail}")
    return sorted(names or ())


def _is_ours(name: str) -> bool:
    return name in (INSTANCES, TOPICS, PAUSE, SECRET, HISTORY) or name.startswith(CHECK)
