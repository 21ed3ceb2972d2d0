import json
import socket
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from streaming.config.load import load
from streaming.errors import ConfigError, UnavailableError
from streaming.sandbox import cluster
from streaming.sandbox.home import BUCKET, HOST, Further, Home, Part, Spec, addresses, is_free, pick_ports
from streaming.sandbox.local_config import write_local_files
from streaming.sandbox.parts.part_settings import interface_of, render, settings

PULSAR = Path("/pulsar")
OTHER = "127.0.0.2"


@pytest.fixture(autouse=True)
def _every_address_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"lo": [SimpleNamespace(family=socket.AF_INET, address=address) for address in (HOST, OTHER)]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: held)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.make_folders()
    return made


@pytest.fixture
def spec() -> Spec:
    return Spec(pick_ports({}))


def test_every_listener_has_its_own_port(spec: Spec) -> None:
    assert sorted(spec.ports) == ["bookie", "bookie_http", "broker", "broker_http", "s3", "zookeeper"]
    assert len(set(spec.ports.values())) == len(spec.ports)


def test_a_known_port_is_kept_while_it_is_free_and_replaced_if_it_is_taken(spec: Spec) -> None:
    with socket.create_server((HOST, spec.ports["s3"])):
        again = pick_ports(spec.ports)

    assert again["s3"] != spec.ports["s3"]
    assert {name: port for name, port in again.items() if name != "s3"} == {
        name: port for name, port in spec.ports.items() if name != "s3"
    }


def test_a_port_is_free_only_without_a_listener() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_a_saved_spec_is_loaded(home: Home, spec: Spec) -> None:
    assert home.load() is None

    home.save(Spec(spec.ports, {"transactionCoordinatorEnabled": "true"}))

    assert home.load() == Spec(spec.ports, {"transactionCoordinatorEnabled": "true"})


def test_a_spec_of_an_older_version_listens_on_loopback(home: Home, spec: Spec) -> None:
    home.spec_file.write_text(json.dumps({"ports": spec.ports, "broker_settings": {}}))

    assert home.load() == spec
    assert spec.listen == HOST


LISTENERS = pytest.mark.parametrize(
    ("part", "key"),
    [
        pytest.param(Part.ZOOKEEPER, "clientPortAddress", id="ZooKeeper"),
        pytest.param(Part.BOOKIE, "httpServerHost", id="bookie's admin"),
        pytest.param(Part.BROKER, "bindAddress", id="broker"),
        pytest.param(Part.BROKER, "advertisedAddress", id="advertised broker"),
        pytest.param(Part.BOOKIE, "advertisedAddress", id="advertised bookie"),
    ],
)


@LISTENERS
def test_no_part_listens_beyond_this_machine(home: Home, spec: Spec, part: Part, key: str) -> None:
    assert settings(home, part, spec, PULSAR)[key] == HOST


@LISTENERS
def test_every_part_listens_on_the_given_address(home: Home, spec: Spec, part: Part, key: str) -> None:
    assert settings(home, part, replace(spec, listen=OTHER), PULSAR)[key] == OTHER


def test_all_addresses_are_those_of_the_parts(spec: Spec) -> None:
    told = asdict(addresses(replace(spec, listen=OTHER)))

    assert [name for name, address in told.items() if OTHER not in address or HOST in address] == []


def test_no_part_uses_loopback_if_another_address_is_given(home: Home, spec: Spec) -> None:
    elsewhere = replace(spec, listen=OTHER)

    assert [part for part in Part if HOST in render(settings(home, part, elsewhere, PULSAR))] == []


def test_the_bookie_listens_on_the_loopback_interface(home: Home, spec: Spec) -> None:
    assert settings(home, Part.BOOKIE, spec, PULSAR)["listeningInterface"] == interface_of(HOST)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        interface_of("192.0.2.1")


def test_parts_write_only_into_the_home(home: Home, spec: Spec) -> None:
    paths = [value for part in Part for value in settings(home, part, spec, PULSAR).values() if isinstance(value, Path)]

    assert paths
    assert all(path.is_relative_to(home.root) or path.is_relative_to(PULSAR) for path in paths)


def test_given_settings_of_the_broker_take_precedence(home: Home, spec: Spec) -> None:
    asked = Spec(spec.ports, {"managedLedgerMaxEntriesPerLedger": "3"})

    assert settings(home, Part.BROKER, asked, PULSAR)["managedLedgerMaxEntriesPerLedger"] == "3"


def test_a_bookie_collects_garbage_as_often_as_its_cluster_says_and_compacts_less_often(home: Home, spec: Spec) -> None:
    for seconds in (spec.gc_wait_seconds, 900):
        found = settings(home, Part.BOOKIE, replace(spec, gc_wait_seconds=seconds), PULSAR)
        # the bookie refuses to start with shorter intervals of compaction
        assert found["gcWaitTime"] == seconds * 1000
        assert [found[f"{kind}CompactionInterval"] for kind in ("minor", "major")] == [2 * seconds, 4 * seconds]


def test_properties_have_the_format_of_java() -> None:
    assert render({"a": True, "b": 1, "c": Path("/d")}) == "a=true\nb=1\nc=/d\n"


def test_the_service_accepts_the_configuration_of_the_sandbox(home: Home, spec: Spec) -> None:
    write_local_files(home, spec)

    loaded = load(home.config)

    where = addresses(spec)
    assert loaded.pulsar.service_url == where.pulsar
    assert loaded.pulsar.admin_url == where.admin
    assert loaded.zookeeper.hosts == where.zookeeper
    assert [(bucket.endpoint, bucket.bucket) for bucket in loaded.tiered_storage.allowed] == [(where.s3, BUCKET)]
    assert loaded.safety.min_age_seconds == 5


def test_a_folder_without_a_cluster_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="sandbox up"):
        cluster.attach(tmp_path)


def test_stopping_a_cluster_that_never_ran_does_nothing(tmp_path: Path) -> None:
    assert not cluster.down(tmp_path)


COUNTS = {"zookeeper": 3, "broker": 2, "bookie": 3}


@pytest.fixture
def grown() -> Spec:
    return Spec(pick_ports({}, counts=COUNTS), counts=COUNTS)


def test_the_first_part_has_the_name_of_its_kind_and_others_have_numbers(grown: Spec) -> None:
    names = ["s3", "zookeeper", "zookeeper-2", "zookeeper-3", "bookie", "bookie-2", "bookie-3", "broker", "broker-2"]

    assert [str(part) for part in grown.parts] == names
    assert [str(part) for part in Spec({}).parts] == [str(part) for part in Part]
    assert grown.all_of(Part.BROKER) == (Part.BROKER, Further(Part.BROKER, 2))


def test_no_two_parts_share_a_port_a_folder_or_a_file(home: Home, grown: Spec) -> None:
    assert len(set(grown.ports.values())) == len(grown.ports) == 1 + 3 * 3 + 3 * 2 + 2 * 2
    for place in (home.log, home.data, home.conf, home.scratch, home.record):
        assert len({place(part) for part in grown.parts}) == len(grown.parts)


def test_several_zookeepers_form_an_ensemble_and_a_single_one_does_not(home: Home, spec: Spec, grown: Spec) -> None:
    def members(of: Spec) -> list[dict[str, object]]:
        files = [settings(home, part, of, PULSAR) for part in of.all_of(Part.ZOOKEEPER)]
        return [{key: value for key, value in file.items() if key.startswith("server.")} for file in files]

    first, second, third = members(grown)
    assert first == second == third
    assert set(first) == {"server.1", "server.2", "server.3"}
    assert first["server.2"] == f"{HOST}:{grown.ports['zookeeper_quorum-2']}:{grown.ports['zookeeper_election-2']}"
    assert members(spec) == [{}]


def test_the_addresses_include_every_part(home: Home, grown: Spec) -> None:
    where, ports = addresses(grown), grown.ports

    assert where.pulsar == f"pulsar://{HOST}:{ports['broker']},{HOST}:{ports['broker-2']}"
    assert where.admin == f"http://{HOST}:{ports['broker_http']},{HOST}:{ports['broker_http-2']}"
    servers = [f"{HOST}:{ports[name]}" for name in ("zookeeper", "zookeeper-2", "zookeeper-3")]
    assert where.zookeeper == ",".join(servers)
    broker = settings(home, Further(Part.BROKER, 2), grown, PULSAR)
    assert broker["metadataStoreUrl"] == f"zk:{where.zookeeper}"
    assert broker["webServicePort"] == ports["broker_http-2"]
    bookie = settings(home, Further(Part.BOOKIE, 2), grown, PULSAR)
    assert bookie["metadataServiceUri"] == f"zk+hierarchical://{';'.join(servers)}/ledgers"
    assert bookie["bookieId"] == "bookie-1"


def test_several_bookies_keep_two_copies_and_replace_lost_ones(home: Home, spec: Spec, grown: Spec) -> None:
    def copies(of: Spec) -> object:
        return settings(home, Part.BROKER, of, PULSAR)["managedLedgerDefaultAckQuorum"]

    assert (copies(spec), copies(grown)) == (1, 2)
    recovers = [settings(home, Part.BOOKIE, of, PULSAR)["autoRecoveryDaemonEnabled"] for of in (spec, grown)]
    assert recovers == [False, True]


def test_the_service_accepts_the_configuration_of_a_grown_cluster(home: Home, grown: Spec) -> None:
    write_local_files(home, grown)

    loaded = load(home.config)

    where = addresses(grown)
    assert (loaded.pulsar.admin_url, loaded.zookeeper.hosts) == (where.admin, where.zookeeper)


def test_the_spec_of_a_grown_cluster_is_loaded(home: Home, grown: Spec) -> None:
    home.save(grown)

    assert home.load() == grown
