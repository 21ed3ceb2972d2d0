"""With credentials, only the service may write or read its znodes, including znodes that were open before."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from pickle import dumps
from uuid import uuid4

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.memory.store import MemoryBroker, MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.adapters.zookeeper.store import ZooKeeperClientSettings, ZooKeeperStore
from streaming.check.questions import Notice
from streaming.check.questions import own_znodes as own_znodes_question
from streaming.clients import Clients
from streaming.clock import SystemClock
from streaming.config.load import load
from streaming.coordination import own_znodes
from streaming.coordination.lock import InstanceLock
from streaming.coordination.pause import Pause
from streaming.deletion.instance import begin_instance
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.limits.breaker import Breaker, breaker_path
from streaming.ports import MetadataStore, Unreadable, Znode
from udfs.formats.acl import ALL, OPEN, READ, AclEntry, acl_bytes, acl_entries
from udfs.paths import BROKERS

Sessions = Callable[[str], MetadataStore]


@pytest.fixture(params=["memory", "zookeeper"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sessions]:
    """Opens sessions on one store, as a user or without credentials ("")."""
    opened: list[MetadataStore] = []
    tree = MemoryTree(SystemClock())
    hosts = request.getfixturevalue("zookeeper_server").hosts if request.param == "zookeeper" else ""

    def create(user: str) -> MetadataStore:
        if not hosts:
            return MemoryStore(tree, identities=frozenset({("digest", f"{user}:x")} if user else ()))
        settings = ZooKeeperClientSettings(hosts=hosts)
        if user:
            (tmp_path / user).write_text(f"{user}:s3cret\n")
            settings = replace(settings, digest_file=str(tmp_path / user))
        return ZooKeeperStore(settings)

    def open_session(user: str) -> MetadataStore:
        opened.append(create(user))
        return opened[-1]

    yield open_session
    for store in opened:
        store.close()


@pytest.fixture
def ours(session: Sessions) -> MetadataStore:
    return session("reaper")


@pytest.fixture
def stranger(session: Sessions) -> MetadataStore:
    return session("")


@pytest.fixture
def root() -> str:
    return f"/own-{uuid4().hex}"


def _create_open(store: MetadataStore, root: str) -> list[str]:
    """Create the znodes of a service without credentials; return their paths, parents first."""
    paths = [f"{root}/{name}" for name in ("instances", "instances/main", "instances/main/breaker", "pause", "secret")]
    for path in (root, *paths):
        store.create(path, b"")
    return [root, *paths]


def _world(store: MetadataStore, path: str) -> bool:
    acl = store.acl_of(path)
    return acl is None or any(entry.scheme == "world" for entry in acl_entries(acl))


def test_others_may_neither_read_nor_change_our_znodes(ours: MetadataStore, stranger: MetadataStore, root: str) -> None:
    path = breaker_path(root, "main")
    Breaker(ours, path).trip("too many deletes")
    Pause(ours, root).set("maintenance")

    for forbidden in (
        lambda: stranger.set_data(path, b""),
        lambda: stranger.delete(f"{root}/pause"),
        lambda: stranger.create(f"{root}/instances/main/accepted", b'{"*": 1}'),
        lambda: stranger.close_to_others(path),
        lambda: stranger.acl_of(path),
    ):
        with pytest.raises(RefusedError):
            forbidden()
    assert isinstance(stranger.read_many([path])[0], Unreadable)
    assert Breaker(ours, path).reason() == "too many deletes"
    pause = Pause(ours, root)
    present = pause.read()
    assert present is not None
    assert pause.end(present)


def test_without_credentials_znodes_are_open_and_stay_so(stranger: MetadataStore, root: str) -> None:
    stranger.create(root, b"")
    assert not stranger.is_identified
    assert own_znodes.close(stranger, root) == []
    assert stranger.acl_of(root) == acl_bytes(OPEN)


def test_a_given_acl_is_kept(ours: MetadataStore, root: str) -> None:
    acl = acl_bytes([AclEntry(ALL, "world", "anyone")])
    ours.create(f"{root}/0001/L0002", b"", acl=acl, parents=True)
    assert [ours.acl_of(f"{root}{path}") for path in ("", "/0001", "/0001/L0002")] == [acl] * 3


def test_close_to_others_reports_whether_the_znode_existed(
    ours: MetadataStore, stranger: MetadataStore, root: str
) -> None:
    stranger.create(root, b"kept")
    assert ours.close_to_others(root)
    assert not ours.close_to_others(f"{root}/nothing")
    (node,) = ours.read_many([root])
    assert isinstance(node, Znode)
    assert (node.data, node.version, node.acl_version) == (b"kept", 0, 1)
    assert isinstance(stranger.read_many([root])[0], Unreadable)
    with pytest.raises(SafetyError):
        ours.close_to_others("/ledgers/00/0001/L0002")


def test_open_znodes_are_closed_and_an_open_key_is_deleted(
    ours: MetadataStore, stranger: MetadataStore, root: str
) -> None:
    paths = _create_open(stranger, root)
    assert own_znodes.open_to_all(ours, root) == paths
    assert all(_world(stranger, path) for path in paths)

    assert own_znodes.close(ours, root) == paths

    assert ours.read_many([f"{root}/secret"]) == [None]
    assert not any(_world(ours, path) for path in paths[:-1])
    assert own_znodes.close(ours, root) == []


def test_others_may_read_our_znodes_but_not_the_key(ours: MetadataStore, root: str) -> None:
    ours.create(root, b"")
    readable = [*acl_entries(ours.acl_of(root) or b""), AclEntry(READ, "world", "anyone")]
    for name in ("instances", "pause", "secret"):
        ours.create(f"{root}/{name}", b"", acl=acl_bytes(readable))
    assert own_znodes.open_to_all(ours, root) == [f"{root}/secret"]


def test_an_open_root_with_foreign_znodes_is_refused_and_they_stay_open(
    ours: MetadataStore, stranger: MetadataStore, root: str
) -> None:
    _create_open(stranger, root)
    stranger.create(f"{root}/theirs", b"")

    with pytest.raises(ConfigError, match=r"theirs.*zookeeper\.own_root"):
        own_znodes.close(ours, root)
    assert _world(stranger, root)
    assert _world(stranger, f"{root}/theirs")

    ours.close_to_others(root)
    own_znodes.close(ours, root)
    assert _world(stranger, f"{root}/theirs")
    assert not _world(ours, f"{root}/pause")


def test_znodes_that_can_not_be_closed_stop_the_start_with_advice(
    ours: MetadataStore, stranger: MetadataStore, root: str
) -> None:
    stranger.create(root, b"", acl=acl_bytes([AclEntry(ALL & ~16, "world", "anyone")]))
    with pytest.raises(ConfigError, match=f"setAcl -R {root} auth::cdrwa"):
        own_znodes.close(ours, root)


def test_znodes_of_another_user_stop_the_start_with_advice(session: Sessions, ours: MetadataStore, root: str) -> None:
    session("other").create(f"{root}/pause", b"", parents=True)
    with pytest.raises(ConfigError, match=f"setAcl -R {root} auth::cdrwa"):
        own_znodes.close(ours, root)
    with pytest.raises(UnavailableError):
        Pause(ours, root).reason()


def test_closing_the_znode_of_a_lock_does_not_release_it(
    ours: MetadataStore, stranger: MetadataStore, session: Sessions, root: str
) -> None:
    with InstanceLock(stranger, root, "main", on_lost=lambda: None) as lock:
        assert lock.path in own_znodes.close(ours, root)
        with pytest.raises(SafetyError, match="already runs"):
            InstanceLock(session("reaper"), root, "main", on_lost=lambda: None).__enter__()
        ours.delete(lock.path)  # the stranger no longer may


def test_a_start_closes_open_znodes_first(
    ours: MetadataStore, stranger: MetadataStore, root: str, tmp_path: Path
) -> None:
    ledgers = f"{root}-ledgers"
    stranger.create(ledgers, b"")
    stranger.create(f"{ledgers}/LAYOUT", b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
    stranger.create(f"{ledgers}/INSTANCEID", b"i")
    stranger.create(f"{BROKERS}/broker-1:8080", b"{}", ephemeral=True, parents=True)
    _create_open(stranger, root)
    stranger.set_data(f"{root}/secret", b"known to everybody")
    file = tmp_path / "config.toml"
    file.write_text(
        f'[zookeeper]\nown_root = "{root}"\nledgers_root = "{ledgers}"\n[service]\nname = "main"\n'
        "[safety]\nexclusive_bookkeeper = true\n"
        f'[state]\ndir = "{tmp_path}/state"\n[checkpoints]\ndir = "{tmp_path}/checkpoints"\n'
    )
    clients = Clients(ours, MemoryBroker())

    with contextlib.ExitStack() as stack:
        instance = stack.enter_context(begin_instance(load(file), clients, MemoryPulsar(), threading.Event()))
        key = own_znodes.signing_key(ours, root)
        assert key != b"known to everybody"
        assert key not in dumps((instance.rules, load(file)))  # serialized for tasks
        assert own_znodes.open_to_all(ours, root) == []


@pytest.mark.parametrize("key", [None, b""])
def test_without_a_key_no_sighting_is_signed(ours: MetadataStore, root: str, key: bytes | None) -> None:
    if key is not None:
        ours.create(f"{root}/secret", key, parents=True)
    with pytest.raises(UnavailableError, match="start the service again"):
        own_znodes.signing_key(ours, root)


def test_the_preflight_reports_open_znodes_and_changes_nothing(
    ours: MetadataStore, stranger: MetadataStore, root: str
) -> None:
    assert "closed" in own_znodes_question(ours, root)
    paths = _create_open(stranger, root)
    with pytest.raises(Notice, match=f"{len(paths)} .*{root}"):
        own_znodes_question(ours, root)
    assert own_znodes.open_to_all(ours, root) == paths
    assert "no credentials" in own_znodes_question(stranger, root)
