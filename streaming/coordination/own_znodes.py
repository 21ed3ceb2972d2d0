"""The znodes of this service belong to it alone: else anyone could clear a limit or a pause, or sign sightings.

Where ZooKeeper knows us by credentials, create() closes what it makes to all others. Here we find and close what we
made before we had credentials. We close parents first, so that nobody plants a znode below one that we have closed.
"""

from collections.abc import Iterator
from secrets import token_hex

from streaming.errors import ConfigError, RefusedError, UnavailableError
from streaming.ports import MetadataStore, Unreadable, Znode
from udfs.formats.acl import READ, acl_entries

INSTANCES, TOPICS, PAUSE, SECRET, CHECK = "instances", "topics", "pause", "secret", "check-"


def read_own(store: MetadataStore, path: str) -> Znode | None:
    """A znode of ours; None where there is none. Raises UnavailableError: unknown is not "no"."""
    (node,) = store.read_many([path])
    if isinstance(node, Unreadable):
        raise UnavailableError(f"can't read {path}: {node.detail}. Check the ACL of our znodes in ZooKeeper")
    return node


def write_own(store: MetadataStore, path: str, data: bytes) -> int | None:
    """Write a znode of ours, which is made where there is none; returns its version, None if it went meanwhile.

    Raises UnavailableError.
    """
    store.create(path, b"", parents=True)
    return store.set_data(path, data)


def create_key(store: MetadataStore, root: str) -> None:
    """Create the key that signs sightings (udfs.sightings), once per cluster. Raises UnavailableError."""
    store.create(f"{root}/{SECRET}", token_hex(32).encode(), parents=True)


def signing_key(store: MetadataStore, root: str) -> bytes:
    """Read the key that signs sightings. Raises UnavailableError, also where there is none.

    Each worker reads it: in a task it would travel over Spark's network and lie on its disks, which Spark does not
    encrypt unless it is told to.
    """
    node = read_own(store, f"{root}/{SECRET}")
    if node is None or not node.data:  # an empty key would sign what anybody can
        raise UnavailableError(f"{root}/{SECRET} is gone: start the service again, which creates it")
    return node.data


def open_to_all(store: MetadataStore, root: str) -> list[str]:
    """Those of our znodes that anyone may change, or whose key anyone may read; parents first. Raises as close does."""
    return _with_advice(store, root, closes=False)


def close(store: MetadataStore, root: str) -> list[str]:
    """Close them, and return which they were; a key that was open goes altogether. Without credentials: none.

    Raises ConfigError, which says what to do, where that can't be done; UnavailableError.
    """
    return _with_advice(store, root, closes=True)


def _with_advice(store: MetadataStore, root: str, *, closes: bool) -> list[str]:
    if not store.is_identified:
        return []
    try:
        return list(_found(store, root, root, closes=closes))
    except RefusedError as error:
        raise ConfigError(
            f"{error}. What lies below {root} must be ours alone. As one who may (addauth), run `setAcl -R {root} "
            "auth::cdrwa` in ZooKeeper's zkCli.sh, or name another zookeeper.own_root"
        ) from error


def _found(store: MetadataStore, root: str, path: str, *, closes: bool) -> Iterator[str]:
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
            raise RefusedError(f"{root} is open to everybody, and holds what is not ours: {', '.join(others[:3])}")
        if closes:
            _close(store, path, is_key=is_key)
        yield path
    for name in _children(store, path):
        if path != root or _is_ours(name):
            yield from _found(store, root, f"{path}/{name}", closes=closes)


def _close(store: MetadataStore, path: str, *, is_key: bool) -> None:
    if is_key:
        store.delete(path)  # whoever has read it could go on signing; a new one is made when it is needed
    else:
        store.close_to_others(path)


def _children(store: MetadataStore, path: str) -> list[str]:
    (names,) = store.children_many([path])
    if isinstance(names, Unreadable):
        raise RefusedError(f"{path} can't be listed: {names.detail}")
    return sorted(names or ())


def _is_ours(name: str) -> bool:
    return name in (INSTANCES, TOPICS, PAUSE, SECRET) or name.startswith(CHECK)
