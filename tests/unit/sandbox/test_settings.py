import socket
from pathlib import Path

import pytest

from streaming.config.load import load
from streaming.errors import UnavailableError
from streaming.sandbox import cluster
from streaming.sandbox.home import BUCKET, HOST, Home, Part, Spec, addresses, is_free, pick_ports
from streaming.sandbox.local_config import write_local_files
from streaming.sandbox.settings import loopback_interface, render, settings

PULSAR = Path("/pulsar")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.make_folders()
    return made


@pytest.fixture
def spec() -> Spec:
    return Spec(pick_ports({}))


def test_every_listener_has_a_port_of_its_own(spec: Spec) -> None:
    assert sorted(spec.ports) == ["bookie", "bookie_http", "broker", "broker_http", "s3", "zookeeper"]
    assert len(set(spec.ports.values())) == len(spec.ports)


def test_a_known_port_is_kept_while_it_is_free_and_replaced_when_it_is_taken(spec: Spec) -> None:
    with socket.create_server((HOST, spec.ports["s3"])):
        again = pick_ports(spec.ports)

    assert again["s3"] != spec.ports["s3"]
    assert {name: port for name, port in again.items() if name != "s3"} == {
        name: port for name, port in spec.ports.items() if name != "s3"
    }


def test_a_port_is_free_only_while_nobody_listens() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_what_a_home_remembers_comes_back(home: Home, spec: Spec) -> None:
    assert home.load() is None

    home.save(Spec(spec.ports, {"transactionCoordinatorEnabled": "true"}))

    assert home.load() == Spec(spec.ports, {"transactionCoordinatorEnabled": "true"})


@pytest.mark.parametrize(
    ("part", "key"),
    [
        pytest.param(Part.ZOOKEEPER, "clientPortAddress", id="ZooKeeper"),
        pytest.param(Part.BOOKIE, "httpServerHost", id="bookie's admin"),
        pytest.param(Part.BROKER, "bindAddress", id="broker"),
        pytest.param(Part.BROKER, "advertisedAddress", id="broker as told to clients"),
    ],
)
def test_no_part_listens_beyond_this_machine(home: Home, spec: Spec, part: Part, key: str) -> None:
    assert settings(home, part, spec, PULSAR)[key] == HOST


def test_the_bookie_listens_on_the_loopback_interface(home: Home, spec: Spec) -> None:
    assert settings(home, Part.BOOKIE, spec, PULSAR)["listeningInterface"] == loopback_interface()


def test_all_that_parts_write_lies_in_the_home(home: Home, spec: Spec) -> None:
    paths = [value for part in Part for value in settings(home, part, spec, PULSAR).values() if isinstance(value, Path)]

    assert paths
    assert all(path.is_relative_to(home.root) or path.is_relative_to(PULSAR) for path in paths)


def test_asked_for_settings_of_the_broker_win(home: Home, spec: Spec) -> None:
    asked = Spec(spec.ports, {"managedLedgerMaxEntriesPerLedger": "3"})

    assert settings(home, Part.BROKER, asked, PULSAR)["managedLedgerMaxEntriesPerLedger"] == "3"


def test_properties_are_written_as_java_reads_them() -> None:
    assert render({"a": True, "b": 1, "c": Path("/d")}) == "a=true\nb=1\nc=/d\n"


def test_the_service_takes_the_configuration_that_the_sandbox_writes(home: Home, spec: Spec) -> None:
    write_local_files(home, spec)

    loaded = load(home.config)

    where = addresses(spec)
    assert loaded.pulsar.service_url == where.pulsar
    assert loaded.pulsar.admin_url == where.admin
    assert loaded.zookeeper.hosts == where.zookeeper
    assert [(bucket.endpoint, bucket.bucket) for bucket in loaded.tiered_storage.allowed] == [(where.s3, BUCKET)]
    assert loaded.safety.min_age_seconds == 5


def test_a_folder_without_cluster_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="sandbox up"):
        cluster.attach(tmp_path)


def test_stopping_what_never_ran_stops_nothing(tmp_path: Path) -> None:
    assert not cluster.down(tmp_path)
