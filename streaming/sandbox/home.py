"""The folder that holds everything of one cluster, so that several clusters can run side by side."""

import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

HOST = "127.0.0.1"
CLUSTER_NAME = "sandbox"
BUCKET = "ledger-reaper-sandbox"
REGION = "us-east-1"
ACCESS_KEY = "sandbox"
LEDGERS_ROOT = "/ledgers"


class Part(StrEnum):
    """A process of the cluster, in the order in which they start."""

    S3 = "s3"
    ZOOKEEPER = "zookeeper"
    BOOKIE = "bookie"
    BROKER = "broker"


# The ports each part listens on.
PORTS: Mapping[Part, tuple[str, ...]] = {
    Part.S3: ("s3",),
    Part.ZOOKEEPER: ("zookeeper",),
    Part.BOOKIE: ("bookie", "bookie_http"),
    Part.BROKER: ("broker", "broker_http"),
}


@dataclass(frozen=True, slots=True)
class Spec:
    """What a home remembers between starts.

    Ports by name, additional settings of the broker, and the address that every part listens on and tells to others.
    """

    ports: Mapping[str, int]
    broker_settings: Mapping[str, str] = field(default_factory=dict)
    listen: str = HOST


@dataclass(frozen=True, slots=True)
class Home:
    """Paths and addresses of the cluster under `root` (absolute)."""

    root: Path

    @property
    def logs(self) -> Path:
        """One log per part."""
        return self.root / "logs"

    @property
    def config(self) -> Path:
        """The configuration written for the service."""
        return self.root / "local.toml"

    @property
    def spec_file(self) -> Path:
        """The file that holds the Spec. If it exists, a cluster was made here."""
        return self.root / "cluster.json"

    def log(self, part: Part) -> Path:
        """Where the part writes."""
        return self.logs / f"{part}.log"

    def data(self, part: Part) -> Path:
        """The part's durable state."""
        return self.root / "data" / part

    def conf(self, part: Part) -> Path:
        """The part's configuration, which each start writes again."""
        return self.root / "conf" / f"{part}.conf"

    def scratch(self, part: Part) -> Path:
        """Temporary files of the part (native libraries), which each start removes."""
        return self.root / "tmp" / part

    def record(self, part: Part) -> Path:
        """The record of the part's process."""
        return self.root / "run" / f"{part}.json"

    def make_folders(self) -> None:
        """Create what is missing."""
        for folder in (self.logs, self.root / "conf", self.root / "run", *(self.data(part) for part in Part)):
            folder.mkdir(parents=True, exist_ok=True)

    def load(self) -> Spec | None:
        """The Spec, or None if no cluster was made here."""
        if not self.spec_file.is_file():
            return None
        return Spec(**json.loads(self.spec_file.read_text(encoding="utf-8")))

    def save(self, spec: Spec) -> None:
        """Write the Spec, atomically."""
        partial = self.spec_file.with_suffix(".part")
        partial.write_text(json.dumps(asdict(spec), indent=2), encoding="utf-8")
        partial.replace(self.spec_file)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where clients reach the parts."""

    pulsar: str
    admin: str
    zookeeper: str
    s3: str
    bookie_http: str


def addresses(spec: Spec) -> Addresses:
    """Addresses for a spec's ports."""
    host, ports = spec.listen, spec.ports
    return Addresses(
        pulsar=f"pulsar://{host}:{ports['broker']}",
        admin=f"http://{host}:{ports['broker_http']}",
        zookeeper=f"{host}:{ports['zookeeper']}",
        s3=f"http://{host}:{ports['s3']}",
        bookie_http=f"http://{host}:{ports['bookie_http']}",
    )


def pick_ports(known: Mapping[str, int], listen: str = HOST) -> dict[str, int]:
    """A free port of the address for each name: the known one if nobody listens on it, else a new one."""
    names = [name for part in Part for name in PORTS[part]]
    chosen = {name: known[name] for name in names if name in known and is_free(known[name], listen)}
    held: list[socket.socket] = []
    try:
        for name in names:
            if name not in chosen:
                held.append(socket.create_server((listen, 0)))
                chosen[name] = held[-1].getsockname()[1]
    finally:
        for listener in held:
            listener.close()
    return chosen


def is_free(port: int, listen: str = HOST) -> bool:
    """Whether this process could listen on the address's port now; another may be quicker."""
    try:
        socket.create_server((listen, port)).close()
    except OSError:
        return False
    return True
