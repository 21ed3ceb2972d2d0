"""A part that ends during its start is started again only if that may help."""

import socket
from pathlib import Path

import pytest

from streaming.errors import ConfigError, ReaperError
from streaming.sandbox import cluster as sandbox
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import HOST, Further, Home, Instance, Part, Spec, is_free, pick_ports
from streaming.sandbox.parts import launch

EXPIRED = "KeeperErrorCode = NoNode for /namespace/pulsar/sandbox/127.0.0.1:1/0x00000000_0xffffffff\n"
LEADER = "Failed to start Pulsar service: KeeperErrorCode = NoNode for /loadbalance/leader\n"


class Starts:
    """Counts starts; each ends at once, with `says` in its log, until the last."""

    def __init__(self, cluster: Cluster, says: list[str]) -> None:
        self.cluster = cluster
        self.says = says
        self.count = 0

    def start(self, home: Home, part: Instance, *_: object) -> None:
        log = home.log(part)
        log.write_text(self.says[self.count] if self.count < len(self.says) else "")
        self.count += 1

    def is_ready(self, *_: object) -> bool:
        return self.count > len(self.says)


def starts(
    root: Path, monkeypatch: pytest.MonkeyPatch, says: list[str], counts: dict[str, int] | None = None
) -> Starts:
    home = Home(root)
    home.make_folders()
    home.save(Spec(pick_ports({}, counts=counts), counts=counts or {}))
    made = Starts(Cluster(home), says)
    monkeypatch.setattr(Cluster, "pulsar", root)
    monkeypatch.setattr(launch, "start", made.start)
    monkeypatch.setattr(launch, "is_ready", made.is_ready)
    return made


def test_a_broker_that_failed_on_an_expiring_session_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = starts(tmp_path, monkeypatch, [EXPIRED, LEADER])
    made.cluster.start(Part.BROKER)
    assert made.count == 3


def test_a_part_that_ended_without_a_word_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = starts(tmp_path, monkeypatch, ["\n"])
    made.cluster.start(Part.BOOKIE)
    assert made.count == 2


@pytest.mark.parametrize(("part", "says"), [(Part.BROKER, "no port\n"), (Part.BOOKIE, EXPIRED)])
def test_a_part_that_ends_for_another_reason_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: Part, says: str
) -> None:
    made = starts(tmp_path, monkeypatch, [says])
    with pytest.raises(ReaperError, match="ended before it served"):
        made.cluster.start(part)
    assert made.count == 1


def test_a_further_part_of_a_kind_starts_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = starts(tmp_path, monkeypatch, [EXPIRED], {"broker": 2})
    made.cluster.start(Further(Part.BROKER, 2))
    assert made.count == 2
    assert (tmp_path / "logs" / "broker-2.log").is_file()
    assert not (tmp_path / "logs" / "broker.log").exists()


def test_a_member_of_a_running_ensemble_keeps_its_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = starts(tmp_path, monkeypatch, [], {"zookeeper": 3})
    quorum = made.cluster.spec.ports["zookeeper_quorum-2"]
    with socket.create_server((HOST, quorum)):
        monkeypatch.setattr(Cluster, "process", lambda _self, part: object() if part is Part.ZOOKEEPER else None)
        with pytest.raises(ReaperError, match="took a port of zookeeper-2"):
            made.cluster.start(Further(Part.ZOOKEEPER, 2))

        monkeypatch.setattr(Cluster, "process", lambda *_: None)
        made.cluster.start(*made.cluster.spec.all_of(Part.ZOOKEEPER))

    moved = made.cluster.spec.ports["zookeeper_quorum-2"]
    assert moved != quorum
    assert is_free(moved)


@pytest.mark.parametrize(
    ("counts", "listen", "message"),
    [
        pytest.param({Part.BOOKIE: 3}, None, "created with 1 of bookie, not 3", id="another number of bookies"),
        pytest.param({}, "192.0.2.1", "192.0.2.1", id="an address of another machine"),
    ],
)
def test_the_number_of_parts_can_not_change(
    tmp_path: Path, counts: dict[Part, int], listen: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        sandbox._settle(Spec(pick_ports({})), listen, counts, is_running=False)


def test_a_cluster_moves_to_another_address_only_while_it_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "interface_of", str)
    known = Spec(pick_ports({}))
    with pytest.raises(ConfigError, match="sandbox down"):
        sandbox._settle(known, "127.0.0.2", {}, is_running=True)
    assert sandbox._settle(known, "127.0.0.2", {}, is_running=False).listen == "127.0.0.2"
    assert sandbox._settle(known, None, {}, is_running=True) == known


def test_requests_go_to_parts_that_are_not_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = starts(tmp_path, monkeypatch, [], {"broker": 2})
    awake: set[object] = {Further(Part.BROKER, 2)}
    monkeypatch.setattr(Cluster, "_is_awake", lambda _self, part: part in awake)
    ports = made.cluster.spec.ports

    assert made.cluster.serving.admin == f"http://{HOST}:{ports['broker_http-2']}"
    assert made.cluster.serving.zookeeper == made.cluster.addresses.zookeeper  # none is awake: all are told
