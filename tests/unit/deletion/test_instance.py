"""A session that ends under the service ends it with an error; a session that ends after a stop does not."""

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.memory.store import MemoryBroker, MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.clients import Clients
from streaming.config.load import load
from streaming.coordination.pause import Pause
from streaming.deletion.instance import Instance, _alone, begin_instance
from streaming.errors import ConfigError, SafetyError, StopRequestedError, UnavailableError
from tests.builders import ROOT, put
from udfs.formats.store_migration import MIGRATION_PATH
from udfs.paths import BROKERS
from udfs.requests.lanes import ALL_LANES


def _hold(store: MemoryStore, work: Callable[[threading.Event], None]) -> None:
    stop = threading.Event()
    with _alone(store, "/reaper", "main", stop):
        work(stop)


def test_a_session_that_ends_under_the_service_is_reported_at_once_and_is_no_clean_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    told: list[str] = []

    def work(stop: threading.Event) -> None:
        store.expire_session()
        assert stop.is_set()
        told.append(caplog.text)

    with pytest.raises(UnavailableError, match="session that holds the lock has ended; start again"):
        _hold(store, work)
    assert "session that holds the lock has ended" in told[0]


@pytest.mark.parametrize("ending", [MemoryStore.expire_session, MemoryStore.close])
def test_a_session_that_ends_after_a_stop_was_asked_for_is_a_clean_stop(ending: Callable[[MemoryStore], None]) -> None:
    store = MemoryStore()

    def work(stop: threading.Event) -> None:
        stop.set()
        ending(store)

    _hold(store, work)


@pytest.mark.parametrize(
    ("ends", "raised", "told"),
    [
        pytest.param(False, StopRequestedError(), StopRequestedError, id="a stop before everything was started"),
        pytest.param(True, StopRequestedError(), UnavailableError, id="a stop because the session ended"),
        pytest.param(True, SafetyError("look"), SafetyError, id="errors for an operator come first"),
    ],
)
def test_an_error_of_the_work_comes_first_unless_the_work_was_only_stopped(
    ends: bool, raised: Exception, told: type[Exception]
) -> None:
    store = MemoryStore()

    def work(_stop: threading.Event) -> None:
        if ends:
            store.expire_session()
        raise raised

    with pytest.raises(told):
        _hold(store, work)


BROKER = f"{BROKERS}/broker-1:8080"


def _tree() -> MemoryTree:
    """Return a cluster's ZooKeeper, in which a broker has a session."""
    tree = MemoryTree()
    put(tree, f"{ROOT}/LAYOUT", b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
    put(tree, f"{ROOT}/INSTANCEID", b"id")
    put(tree, BROKERS)
    MemoryStore(tree).create(BROKER, b"{}", ephemeral=True)
    return tree


class Stopped(threading.Event):
    """Is set at the first wait."""

    def wait(self, _timeout: float | None = None) -> bool:
        self.set()
        return True


def _started(
    tree: MemoryTree, tmp_path: Path, name: str, stop: threading.Event | None = None, topics: str = ""
) -> AbstractContextManager[Instance]:
    file = tmp_path / f"{name}.toml"
    file.write_text(
        f'[service]\nname = "{name}"\n[zookeeper]\nledgers_root = "{ROOT}"\n[safety]\nexclusive_bookkeeper = true\n'
        f'[state]\ndir = "{tmp_path}/{name}/state"\n[checkpoints]\ndir = "{tmp_path}/{name}/checkpoints"\n{topics}'
    )
    clients = Clients(MemoryStore(tree), MemoryBroker())
    return begin_instance(load(file), clients, MemoryPulsar(), stop or threading.Event())


def test_a_start_owns_its_topics_and_a_second_service_on_one_of_them_is_refused(tmp_path: Path) -> None:
    tree = _tree()

    with _started(tree, tmp_path, "main") as instance:
        assert instance.ownership.owned() == sorted(load(tmp_path / "main.toml").topics.owned)
    with pytest.raises(SafetyError, match="is read by service 'main'"), _started(tree, tmp_path, "third"):
        pass
    assert not [path for path in tree.paths() if path.endswith("/third/epoch")], "it was not the one that may delete"
    with _started(tree, tmp_path, "main"):
        pass


def test_only_one_service_of_a_cluster_reads_lanes(tmp_path: Path) -> None:
    tree = _tree()

    def topics(name: str, lanes: str) -> str:
        return f'[topics]\nrequests = ["persistent://pulsar/system/{name}"]\nlanes = "{lanes}"\n'

    with _started(tree, tmp_path, "main", topics=topics("main", "tenant")) as instance:
        assert ALL_LANES in instance.ownership.owned()
    with _started(tree, tmp_path, "without", topics=topics("without", "one")) as instance:
        assert ALL_LANES not in instance.ownership.owned()
    for lanes in ("tenant", "namespace"):
        started = _started(tree, tmp_path, "second", topics=topics("second", lanes))
        with pytest.raises(SafetyError, match="is read by service 'main'"), started:
            pass


def test_a_start_refuses_lost_znodes_of_its_own_until_an_operator_has_paused(tmp_path: Path) -> None:
    tree = _tree()
    with _started(tree, tmp_path, "main"):
        pass
    root = load(None).zookeeper.own_root
    for path in sorted((path for path in tree.paths() if f"{path}/".startswith(f"{root}/")), reverse=True):
        tree.remove(path)
    for _ in range(2):
        with pytest.raises(SafetyError, match="held tenants are lost") as refused, _started(tree, tmp_path, "main"):
            pass
    assert refused.value.exit_code == 4
    assert not [path for path in tree.paths() if path.startswith(root)], "a refused start creates none"
    Pause(MemoryStore(tree), root).set("own_root was lost")
    with _started(tree, tmp_path, "main") as instance:
        assert instance.pause.reason().startswith("own_root was lost")


def test_a_start_refuses_a_cluster_that_leaves_zookeeper_before_it_writes_anything(tmp_path: Path) -> None:
    tree = _tree()
    put(tree, MIGRATION_PATH, b'{"phase":"COMPLETED","targetUrl":"oxia://oxia1:6648/default"}')
    before = tree.paths()
    with pytest.raises(SafetyError, match="has phase COMPLETED") as ended, _started(tree, tmp_path, "main"):
        pass
    assert ended.value.exit_code == 4
    assert tree.paths() == before
    assert not (tmp_path / "main").exists()


def test_a_start_refuses_a_store_in_which_no_broker_has_a_session(tmp_path: Path) -> None:
    """The admin API answers, so this is a copy of the cluster's store. The start waits 30 s for a broker."""
    tree = _tree()
    tree.remove(BROKER)
    before = tree.paths()
    with pytest.raises(StopRequestedError), _started(tree, tmp_path, "main", Stopped()):
        pass
    assert tree.paths() == before


def test_a_directory_that_can_not_be_written_is_refused_before_anything_else_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "main" / "state").mkdir(parents=True)
    tree = _tree()
    before = tree.paths()
    # tests may run as root, who may write everywhere but on a file system that is mounted read-only
    monkeypatch.setattr(os, "access", lambda path, _mode: not str(path).endswith("state"))
    with pytest.raises(ConfigError, match="state can't be written") as ended, _started(tree, tmp_path, "main"):
        pass
    assert ended.value.exit_code == 2
    assert tree.paths() == before
