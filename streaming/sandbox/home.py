"""The folder that contains all files of a cluster, so that several clusters can run side by side."""

import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from streaming.sandbox.parts.distribution import PULSAR_VERSION

HOST = "127.0.0.1"
CLUSTER_NAME = "sandbox"
BUCKET = "ledger-reaper-sandbox"
REGION = "us-east-1"
GC_WAIT_SECONDS = 3  # how often a bookie collects garbage, unless the operator chooses another interval
ACCESS_KEY = "sandbox"
LEDGERS_ROOT = "/ledgers"


class Part(StrEnum):
    """The kinds of processes, in the order in which they start. Each also stands for the first process of its kind."""

    S3 = "s3"
    ZOOKEEPER = "zookeeper"
    BOOKIE = "bookie"
    BROKER = "broker"

    @property
    def kind(self) -> "Part":
        """Itself."""
        return self

    @property
    def number(self) -> int:
        """1, because this is the first process of its kind."""
        return 1


@dataclass(frozen=True, slots=True)
class Further:
    """The second or a later process of a kind."""

    kind: Part
    number: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.number}"


Instance = Part | Further  # one process of the cluster; str() gives its name

_PORTS: Mapping[Part, tuple[str, ...]] = {
    Part.S3: ("s3",),
    Part.ZOOKEEPER: ("zookeeper",),
    Part.BOOKIE: ("bookie", "bookie_http"),
    Part.BROKER: ("broker", "broker_http"),
}
_PORTS_OF_AN_ENSEMBLE = ("zookeeper", "zookeeper_quorum", "zookeeper_election")


@dataclass(frozen=True, slots=True)
class Spec:
    """The properties of a cluster that are saved between starts."""

    ports: Mapping[str, int]  # by name
    broker_settings: Mapping[str, str] = field(default_factory=dict)  # additional settings of the brokers
    listen: str = HOST  # the address that every part listens on and advertises
    counts: Mapping[str, int] = field(default_factory=dict)  # processes of each kind; 1 for kinds that are not named
    gc_wait_seconds: int = GC_WAIT_SECONDS  # between two garbage collections of a bookie
    pulsar: str = PULSAR_VERSION  # the version that wrote last to the cluster's data

    @property
    def parts(self) -> tuple[Instance, ...]:
        """Every process, in the order in which they start."""
        return parts_of(self.counts)

    def all_of(self, kind: Part) -> tuple[Instance, ...]:
        """Every process of a kind."""
        return tuple(part for part in self.parts if part.kind is kind)

    @property
    def is_ensemble(self) -> bool:
        """Whether there are several ZooKeepers, which elect a leader."""
        return len(self.all_of(Part.ZOOKEEPER)) > 1

    def port(self, part: Instance, name: str) -> int:
        """Return a port of the part by its name, which is the same for all parts of a kind."""
        return self.ports[_numbered(name, part.number)]


def parts_of(counts: Mapping[str, int]) -> tuple[Instance, ...]:
    """Return every process for these counts of each kind."""
    numbered = [(kind, number) for kind in Part for number in range(1, counts.get(kind, 1) + 1)]
    return tuple(kind if number == 1 else Further(kind, number) for kind, number in numbered)


def port_names(part: Instance, counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names of the ports that the part listens on."""
    is_of_an_ensemble = part.kind is Part.ZOOKEEPER and counts.get(Part.ZOOKEEPER, 1) > 1
    names = _PORTS_OF_AN_ENSEMBLE if is_of_an_ensemble else _PORTS[part.kind]
    return tuple(_numbered(name, part.number) for name in names)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


@dataclass(frozen=True, slots=True)
class Home:
    """Paths and addresses of the cluster under `root` (absolute)."""

    root: Path

    @property
    def logs(self) -> Path:
        """The folder of the parts' logs."""
        return self.root / "logs"

    @property
    def config(self) -> Path:
        """The configuration for the service."""
        return self.root / "local.toml"

    @property
    def spec_file(self) -> Path:
        """The file with the Spec. It exists once a cluster was created."""
        return self.root / "cluster.json"

    def log(self, part: Instance) -> Path:
        """Return the part's log file."""
        return self.logs / f"{part}.log"

    def data(self, part: Instance) -> Path:
        """Return the folder of the part's durable state."""
        return self.root / "data" / str(part)

    def conf(self, part: Instance) -> Path:
        """Return the part's configuration file, which each start writes again."""
        return self.root / "conf" / f"{part}.conf"

    def scratch(self, part: Instance) -> Path:
        """Return the folder of the part's temporary files (native libraries), which each start empties."""
        return self.root / "tmp" / str(part)

    def record(self, part: Instance) -> Path:
        """Return the record file of the part's process."""
        return self.root / "run" / f"{part}.json"

    def make_folders(self, parts: Iterable[Instance] = Part) -> None:
        """Create the folders that are missing."""
        for folder in (self.logs, self.root / "conf", self.root / "run", *(self.data(part) for part in parts)):
            folder.mkdir(parents=True, exist_ok=True)

    def load(self) -> Spec | None:
        """Read the Spec; None if no cluster was created here."""
        if not self.spec_file.is_file():
            return None
        return Spec(**json.loads(self.spec_file.read_text(encoding="utf-8")))

    def save(self, spec: Spec) -> None:
        """Write the Spec atomically."""
        partial = self.spec_file.with_suffix(".part")
        partial.write_text(json.dumps(asdict(spec), indent=2), encoding="utf-8")
        partial.replace(self.spec_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The addresses of the parts for clients. Several parts of a kind are separated by commas."""

    pulsar: str
    admin: str
    zookeeper: str
    s3: str
    bookie_http: str


def addresses(spec: Spec, parts: Iterable[Instance] | None = None) -> Addresses:
    """Return the addresses of these parts, by default of all parts."""
    chosen = spec.parts if parts is None else tuple(parts)

    def of(kind: Part, name: str) -> str:
        return ",".join(f"{spec.listen}:{spec.port(part, name)}" for part in chosen if part.kind is kind)

    return Addresses(
        pulsar=f"pulsar://{of(Part.BROKER, 'broker')}",
        admin=f"http://{of(Part.BROKER, 'broker_http')}",
        zookeeper=of(Part.ZOOKEEPER, "zookeeper"),
        s3=f"http://{of(Part.S3, 's3')}",
        bookie_http=f"http://{of(Part.BOOKIE, 'bookie_http')}",
    )


def pick_ports(known: Mapping[str, int], listen: str = HOST, counts: Mapping[str, int] | None = None) -> dict[str, int]:
    """Choose a free port for each name of these parts: the known port if it is free, otherwise a new one."""
    counts = counts or {}
    return pick([name for part in parts_of(counts) for name in port_names(part, counts)], known, listen)


def pick(names: Sequence[str], known: Mapping[str, int], listen: str = HOST) -> dict[str, int]:
    """Choose a free port of the address for each name: the known port if it is free, otherwise a new one."""
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
    """Whether this process could listen on the port now; another process may take it first."""
    try:
        socket.create_server((listen, port)).close()
    except OSError:
        return False
    return True
