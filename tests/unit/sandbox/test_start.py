"""A part that ends while it starts is started again only where that can help."""

from pathlib import Path

import pytest

from streaming.errors import ReaperError
from streaming.sandbox import launch
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Home, Part, Spec, pick_ports

EXPIRED = "KeeperErrorCode = NoNode for /namespace/pulsar/sandbox/127.0.0.1:1/0x00000000_0xffffffff\n"
LEADER = "Failed to start Pulsar service: KeeperErrorCode = NoNode for /loadbalance/leader\n"


class Starts:
    """Counts starts; each ends at once, with `says` in its log, until the last."""

    def __init__(self, cluster: Cluster, says: list[str]) -> None:
        self.cluster = cluster
        self.says = says
        self.count = 0

    def start(self, home: Home, part: Part, *_: object) -> None:
        log = home.log(part)
        log.write_text(self.says[self.count] if self.count < len(self.says) else "")
        self.count += 1

    def is_ready(self, *_: object) -> bool:
        return self.count > len(self.says)


def starts(root: Path, monkeypatch: pytest.MonkeyPatch, says: list[str]) -> Starts:
    home = Home(root)
    home.make_folders()
    home.save(Spec(pick_ports({})))
    made = Starts(Cluster(home), says)
    monkeypatch.setattr(Cluster, "pulsar", root)
    monkeypatch.setattr(launch, "start", made.start)
    monkeypatch.setattr(launch, "is_ready", made.is_ready)
    return made


def test_a_broker_that_met_the_expiring_session_of_a_killed_one_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = starts(tmp_path, monkeypatch, [EXPIRED, LEADER])
    made.cluster.start(Part.BROKER)
    assert made.count == 3


@pytest.mark.parametrize(("part", "says"), [(Part.BROKER, "no port\n"), (Part.BOOKIE, EXPIRED)])
def test_what_ends_for_another_reason_is_said_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: Part, says: str
) -> None:
    made = starts(tmp_path, monkeypatch, [says])
    with pytest.raises(ReaperError, match="ended before it served"):
        made.cluster.start(part)
    assert made.count == 1
