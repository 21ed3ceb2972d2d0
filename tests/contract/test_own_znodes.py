"""Our znodes where ZooKeeper knows us: nobody else may write or read them, not even those that were open before."""

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
from streaming.adapters.zookeeper.store import ZooKeeperSettings, ZooKeeperStore
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

Sessions = Callable[[str], MetadataStore]


@pytest.fixture(params=["memory", "zookeeper"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sessions]:
    """Makes sessions on one and the same store, as a user or ("") as nobody that is known."""
    opened: list[MetadataStore] = []
    tree = MemoryTree(SystemClock())
    hosts = request.getfixturevalue("zookeeper_server").hosts if request.param == "zookeeper" else ""

    def make(user: str) -> MetadataStore:
        if not hosts:
            return MemoryStore(tree, identities=frozenset({("digest", f"{user}:x")} if user else ()))
        settings = ZooKeeperSettings(hosts)
        if user:
            (tmp_path / user).write_text(f"{user}:s3cret\n")
            settings = replace(settings, digest_file=str(tmp_path / user))
        return ZooKeeperStore(settings)

    def opening(user: str) -> MetadataStore:
        opened.append(make(user))
        return opened[-1]

    yield opening
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


def _old(store: MetadataStore, root: str) -> list[str]:
    """What a service without credentials left behind; parents first."""
    paths = [f"{root}/{name}" for name in ("instances", "instances/main", "instances/main/breaker", "pause", "secret")]
    for path in (root, *paths):
        store.create(path, b"")
    return [root, *paths]


def _world(store: MetadataStore, path: str) -> bool:
    acl = store.acl_of(path)
    return acl is None or any(entry.scheme == "world" for entry in acl_entries(acl))


def test_what_we_create_nobody_else_may_read_or_change(ours: MetadataStore, stranger: MetadataStore, root: str) -> None:
    path = breaker_path(root, "main")
    Breaker(ours, path).trip("too many deletes")
    Pause(ours, root).set("a look")

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


def test_a_given_acl_is_kept_whoever_we_are(ours: MetadataStore, root: str) -> None:
    wanted = acl_bytes([AclEntry(ALL, "world", "anyone")])
    ours.create(f"{root}/0001/L0002", b"", acl=wanted, parents=True)
    assert [ours.acl_of(f"{root}{each}") for each in ("", "/0001", "/0001/L0002")] == [wanted] * 3


def test_an_acl_is_closed_and_says_whether_there_was_a_znode(
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


def test_what_was_open_is_closed_at_a_start_and_the_key_is_made_anew(
    ours: MetadataStore, stranger: MetadataStore, root: str
) -> None:
    paths = _old(stranger, root)
    assert own_znodes.open_to_all(ours, root) == paths
    assert all(_world(stranger, path) for path in paths)

    assert own_znodes.close(ours, root) == paths

    assert ours.read_many([f"{root}/secret"]) == [None]
    assert not any(_world(ours, path) for path in paths[:-1])
    assert own_znodes.close(ours, root) == []


def test_a_right_to_read_is_let_be_but_not_for_the_key(ours: MetadataStore, root: str) -> None:
    ours.create(root, b"")
    readable = [*acl_entries(ours.acl_of(root) or b""), AclEntry(READ, "world", "anyone")]
    for name in ("instances", "pause", "secret"):
        ours.create(f"{root}/{name}", b"", acl=acl_bytes(readable))
    assert own_znodes.open_to_all(ours, root) == [f"{root}/secret"]


def test_a_root_shared_with_others_is_refused_and_theirs_is_not_touched(
    ours: MetadataStore, stranger: MetadataStore, root: str
) -> None:
    _old(stranger, root)
    stranger.create(f"{root}/theirs", b"")

    with pytest.raises(ConfigError, match=r"theirs.*zookeeper\.own_root"):
        own_znodes.close(ours, root)
    assert _world(stranger, root)
    assert _world(stranger, f"{root}/theirs")

    ours.close_to_others(root)
    own_znodes.close(ours, root)
    assert _world(stranger, f"{root}/theirs")
    assert not _world(ours, f"{root}/pause")


def test_what_can_not_be_closed_stops_the_start_and_says_what_to_do(
    ours: MetadataStore, stranger: MetadataStore, root: str
) -> None:
    stranger.create(root, b"", acl=acl_bytes([AclEntry(ALL & ~16, "world", "anyone")]))
    with pytest.raises(ConfigError, match=f"setAcl -R {root} auth::cdrwa"):
        own_znodes.close(ours, root)


def test_anothers_znodes_are_said_to_be_so(session: Sessions, ours: MetadataStore, root: str) -> None:
    session("other").create(f"{root}/pause", b"", parents=True)
    with pytest.raises(ConfigError, match=f"setAcl -R {root} auth::cdrwa"):
        own_znodes.close(ours, root)
    with pytest.raises(UnavailableError):
        Pause(ours, root).reason()


def test_a_lock_held_while_open_is_still_held_when_it_is_closed(
    ours: MetadataStore, stranger: MetadataStore, session: Sessions, root: str
) -> None:
    with InstanceLock(stranger, root, "main", on_lost=lambda: None) as lock:
        assert lock.path in own_znodes.close(ours, root)
        with pytest.raises(SafetyError, match="already runs"):
            InstanceLock(session("reaper"), root, "main", on_lost=lambda: None).__enter__()
        ours.delete(lock.path)  # the stranger may not any more


def test_a_start_closes_what_is_open_before_anything_is_done(
    ours: MetadataStore, stranger: MetadataStore, root: str, tmp_path: Path
) -> None:
    ledgers = f"{root}-ledgers"
    stranger.create(ledgers, b"")
    stranger.create(f"{ledgers}/LAYOUT", b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
    stranger.create(f"{ledgers}/INSTANCEID", b"i")
    _old(stranger, root)
    stranger.set_data(f"{root}/secret", b"known to everybody")
    file = tmp_path / "config.toml"
    file.write_text(
        f'[zookeeper]\nown_root = "{root}"\nledgers_root = "{ledgers}"\n[service]\nname = "main"\n'
        "[safety]\nexclusive_bookkeeper = true\n"
        f'[state]\ndir = "{tmp_path}/state"\n[checkpoints]\ndir = "{tmp_path}/checkpoints"\n'
    )
    clients = Clients(ours, MemoryBroker())

    with contextlib.ExitStack() as stack:
        begun = stack.enter_context(begin_instance(load(file), clients, MemoryPulsar(), threading.Event()))
        key = own_znodes.signing_key(ours, root)
        assert key != b"known to everybody"
        assert key not in dumps((begun.rules, load(file)))  # what tasks get of it
        assert own_znodes.open_to_all(ours, root) == []


@pytest.mark.parametrize("key", [None, b""])
def test_where_there_is_no_key_no_sighting_is_signed(ours: MetadataStore, root: str, key: bytes | None) -> None:
    if key is not None:
        ours.create(f"{root}/secret", key, parents=True)
    with pytest.raises(UnavailableError, match="start the service again"):
        own_znodes.signing_key(ours, root)


def test_the_preflight_tells_what_is_open_and_changes_nothing(
    ours: MetadataStore, stranger: MetadataStore, root: str
) -> None:
    assert "closed" in own_znodes_question(ours, root)
    paths = _old(stranger, root)
    with pytest.raises(Notice, match=f"{len(paths)} .*{root}"):
        own_znodes_question(ours, root)
    assert own_znodes.open_to_all(ours, root) == paths
    assert "no credentials" in own_znodes_question(stranger, root)
