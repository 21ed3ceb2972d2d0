"""Nothing is deleted before the operator declares the BookKeeper exclusive, or by lists that no broker writes."""

import threading
from pathlib import Path
from typing import Any

import pytest

from streaming.adapters.memory.store import MemoryBroker
from streaming.audit.command import AuditRequest, audit
from streaming.check.questions import Notice, who_offloads
from streaming.config.load import load
from streaming.config.policies import allowed_buckets
from streaming.coordination.exclusive import (
    require_brokers_store,
    require_declared_buckets,
    require_exclusive_bookkeeper,
    require_superuser,
)
from streaming.deletion.instance import begin_instance
from streaming.errors import ConfigError, SafetyError, UnavailableError
from tests.builders import TOPIC, list_znode, view
from tests.world import Bench
from udfs.paths import managed_ledger_path, topic_of
from udfs.records import Presence

PARTITION = topic_of(TOPIC)


def checked(bench: Bench) -> str:
    return require_brokers_store(bench.store, bench.broker, PARTITION, pause_s=0)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.owner(managed_ledger_path(TOPIC), list_znode(8, 9))
    bench.broker.topics[TOPIC] = view(8, 9)
    return bench


def test_by_default_the_bookkeeper_is_not_declared_exclusive(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("")
    with pytest.raises(ConfigError, match=r"safety\.exclusive_bookkeeper"):
        require_exclusive_bookkeeper(load(config))
    config.write_text("[safety]\nexclusive_bookkeeper = true\n")
    require_exclusive_bookkeeper(load(config))


@pytest.mark.parametrize(
    ("declared", "is_enough"),
    [
        pytest.param("", False, id="no declaration"),
        pytest.param(", exclusive = false", False, id="others offload there, with undeclared names"),
        pytest.param(", exclusive = true", True, id="exclusive"),
        pytest.param(", cluster_names_are_unique = true", True, id="names are unique"),
        pytest.param(", cluster_names_are_unique = false", True, id="names repeat: nothing is deleted"),
    ],
)
def test_each_bucket_needs_a_declaration(tmp_path: Path, declared: str, is_enough: bool) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[tiered_storage]\nallowed = [{{ bucket = "offload"{declared} }}]\n')
    if is_enough:
        require_declared_buckets(load(config))
        return
    with pytest.raises(ConfigError, match=r"offload.*exclusive = true.*cluster_names_are_unique = true"):
        require_declared_buckets(load(config))


def test_without_the_declaration_no_service_starts_and_no_audit_publishes(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    nothing: Any = None  # both are refused before they use it
    config.write_text('[safety]\nexclusive_bookkeeper = true\n[tiered_storage]\nallowed = [{ bucket = "offload" }]\n')
    settings = load(config)
    with pytest.raises(ConfigError, match="who else offloads to offload"):
        begin_instance(settings, nothing, nothing, threading.Event()).__enter__()
    with pytest.raises(ConfigError, match="who else offloads to offload"):
        audit(settings, AuditRequest(options=nothing, config="", publish=True))
    with pytest.raises(ConfigError, match="who else offloads to offload"):
        who_offloads(settings.tiered_storage.allowed[0])


def test_a_bucket_with_repeated_cluster_names_is_never_deleted_from(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[tiered_storage]\nallowed = [{ bucket = "offload", cluster_names_are_unique = false }]\n')
    settings = load(config)
    (bucket,) = allowed_buckets(settings)
    assert (bucket.exclusive, bucket.cluster_names_are_unique) == (False, False)
    with pytest.raises(Notice, match="nothing in it is deleted"):
        who_offloads(settings.tiered_storage.allowed[0])


def test_the_list_names_the_ledger_that_the_broker_writes_to(bench: Bench) -> None:
    assert "ledger 9 of persistent://" in checked(bench)


def test_lists_that_no_broker_writes_are_refused(bench: Bench) -> None:
    bench.broker.topics[TOPIC] = view(8, 9, 12)
    with pytest.raises(SafetyError, match="does not name it"):
        checked(bench)


def test_another_clusters_lists_are_refused(bench: Bench) -> None:
    bench.tree.remove(managed_ledger_path(TOPIC))
    with pytest.raises(SafetyError, match="does not exist"):
        checked(bench)


def test_a_broker_without_the_topic_proves_nothing(bench: Bench) -> None:
    bench.broker.topics.clear()
    with pytest.raises(SafetyError):
        checked(bench)


def test_a_new_ledger_may_be_missing_from_the_first_read_of_the_list(bench: Bench) -> None:
    bench.broker.topics[TOPIC] = view(8, 9, 12)
    reads: list[int] = []

    def write_the_list(_name: str, _paths: object) -> None:
        reads.append(1)
        if len(reads) == 2:
            bench.owner(managed_ledger_path(TOPIC), list_znode(8, 9, 12))

    bench.store.faults.before(write_the_list)
    assert "ledger 12" in checked(bench)


def test_a_broker_that_does_not_answer_is_unavailable(bench: Bench) -> None:
    bench.broker.topics[TOPIC] = view(presence=Presence.UNREADABLE)
    with pytest.raises(UnavailableError, match="503"):
        checked(bench)


def test_a_start_needs_a_superusers_rights_but_not_every_brokers_answer() -> None:
    broker = MemoryBroker()
    broker.faults.away = True
    require_superuser(broker)
    broker.is_refused = True
    with pytest.raises(ConfigError, match=r"give this service's role the rights of a superuser"):
        require_superuser(broker)
