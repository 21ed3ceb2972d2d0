"""Nothing is deleted before somebody has said whose BookKeeper it is, nor by lists that no broker writes."""

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


def told(bench: Bench) -> str:
    return require_brokers_store(bench.store, bench.broker, PARTITION, pause_s=0)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.owner(managed_ledger_path(TOPIC), list_znode(8, 9))
    bench.broker.topics[TOPIC] = view(8, 9)
    return bench


def test_by_default_nobody_has_said_whose_bookkeeper_it_is(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("")
    with pytest.raises(ConfigError, match=r"safety\.exclusive_bookkeeper"):
        require_exclusive_bookkeeper(load(config))
    config.write_text("[safety]\nexclusive_bookkeeper = true\n")
    require_exclusive_bookkeeper(load(config))


@pytest.mark.parametrize(
    ("declared", "is_enough"),
    [
        pytest.param("", False, id="as before there was a declaration"),
        pytest.param(", exclusive = false", False, id="others offload there, and their names are not declared"),
        pytest.param(", exclusive = true", True, id="this cluster's alone"),
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
    nothing: Any = None  # neither gets far enough to need it
    config.write_text('[safety]\nexclusive_bookkeeper = true\n[tiered_storage]\nallowed = [{ bucket = "offload" }]\n')
    settings = load(config)
    with pytest.raises(ConfigError, match="who else offloads to offload"):
        begin_instance(settings, nothing, nothing, threading.Event()).__enter__()
    with pytest.raises(ConfigError, match="who else offloads to offload"):
        audit(settings, AuditRequest(nothing, "", publish=True))
    with pytest.raises(ConfigError, match="who else offloads to offload"):
        who_offloads(settings.tiered_storage.allowed[0])


def test_where_names_repeat_the_bucket_is_kept_whole(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[tiered_storage]\nallowed = [{ bucket = "offload", cluster_names_are_unique = false }]\n')
    settings = load(config)
    (bucket,) = allowed_buckets(settings)
    assert (bucket.exclusive, bucket.cluster_names_are_unique) == (False, False)
    with pytest.raises(Notice, match="nothing in it is deleted"):
        who_offloads(settings.tiered_storage.allowed[0])


def test_the_ledger_that_the_broker_writes_to_stands_in_the_list(bench: Bench) -> None:
    assert "ledger 9 of persistent://" in told(bench)


def test_lists_that_are_left_over_are_refused(bench: Bench) -> None:
    bench.broker.topics[TOPIC] = view(8, 9, 12)
    with pytest.raises(SafetyError, match="does not name it"):
        told(bench)


def test_another_clusters_lists_are_refused(bench: Bench) -> None:
    bench.tree.remove(managed_ledger_path(TOPIC))
    with pytest.raises(SafetyError, match="does not exist"):
        told(bench)


def test_a_broker_that_knows_no_such_topic_proves_nothing(bench: Bench) -> None:
    bench.broker.topics.clear()
    with pytest.raises(SafetyError):
        told(bench)


def test_a_ledger_that_was_made_a_moment_ago_is_looked_for_again(bench: Bench) -> None:
    bench.broker.topics[TOPIC] = view(8, 9, 12)
    looks: list[int] = []

    def write_the_list(_name: str, _paths: object) -> None:
        looks.append(1)
        if len(looks) == 2:
            bench.owner(managed_ledger_path(TOPIC), list_znode(8, 9, 12))

    bench.store.faults.before(write_the_list)
    assert "ledger 12" in told(bench)


def test_a_broker_that_does_not_answer_is_waited_for_by_starting_again(bench: Bench) -> None:
    bench.broker.topics[TOPIC] = view(presence=Presence.UNREADABLE)
    with pytest.raises(UnavailableError, match="503"):
        told(bench)


def test_a_start_without_a_superusers_rights_ends_with_advice_and_one_beside_a_silent_broker_goes_on() -> None:
    broker = MemoryBroker()
    broker.faults.away = True
    require_superuser(broker)
    broker.is_refused = True
    with pytest.raises(ConfigError, match=r"give the role of pulsar\.token_file the rights of a superuser"):
        require_superuser(broker)
