"""The folder that holds everything of one RocketMQ: its store, its logs, and what is remembered between starts."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

CLUSTER_NAME = "sandbox"
BROKER_NAME = "broker-a"


class Part(StrEnum):
    """A process, in the order in which they start."""

    NAME_SERVER = "nameserver"
    BROKER = "broker"


class StoreMode(StrEnum):
    """Where the broker keeps consume queues and offsets: in files, in both (it reads files), or in RocksDB."""

    FILE = "file"
    BOTH = "both"
    ROCKSDB = "rocksdb"


PORTS = ("nameserver", "broker", "broker_fast", "broker_ha")


@dataclass(frozen=True, slots=True)
class Spec:
    """What a home remembers between starts.

    version: of the jars. address: where both parts listen. ports by name. mode and settings: the broker's, as of its
    last start.
    """

    version: str
    address: str
    ports: Mapping[str, int]
    mode: StoreMode = StoreMode.FILE
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def name_server(self) -> str:
        """What clients are given."""
        return f"{self.address}:{self.ports['nameserver']}"

    @property
    def broker(self) -> str:
        """Where the name server sends clients to."""
        return f"{self.address}:{self.ports['broker']}"


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below `root` (absolute)."""

    root: Path

    @property
    def store(self) -> Path:
        """The broker's storePathRootDir."""
        return self.root / "store"

    @property
    def spec_file(self) -> Path:
        """The file that holds the Spec. If it exists, a RocketMQ was made here."""
        return self.root / "rocketmq.json"

    @property
    def network(self) -> Path:
        """The record of the process that holds the network namespace."""
        return self.root / "run" / "network.json"

    @property
    def logs(self) -> Path:
        """What the processes print; RocketMQ's own logs lie below user/logs."""
        return self.root / "logs"

    @property
    def user(self) -> Path:
        """The home directory that both processes are told to have."""
        return self.root / "user"

    def log(self, part: Part) -> Path:
        """What the part prints."""
        return self.logs / f"{part}.log"

    def own_log(self, name: str) -> Path:
        """A log that RocketMQ writes itself, such as broker.log."""
        return self.user / "logs" / "rocketmqlogs" / name

    def conf(self, part: Part) -> Path:
        """The part's configuration, which each start writes again."""
        return self.root / "conf" / f"{part}.conf"

    def record(self, part: Part) -> Path:
        """The record of the part's process."""
        return self.root / "run" / f"{part}.json"

    def make_folders(self) -> None:
        """Create what is missing, but for the store, which is the broker's."""
        for folder in (self.logs, self.user, self.root / "conf", self.root / "run"):
            folder.mkdir(parents=True, exist_ok=True)

    def load(self) -> Spec | None:
        """The Spec, or None if no RocketMQ was made here."""
        if not self.spec_file.is_file():
            return None
        known = json.loads(self.spec_file.read_text(encoding="utf-8"))
        return Spec(**(known | {"mode": StoreMode(known["mode"])}))

    def save(self, spec: Spec) -> None:
        """Write the Spec, atomically."""
        partial = self.spec_file.with_suffix(".part")
        partial.write_text(json.dumps(asdict(spec), indent=2), encoding="utf-8")
        partial.replace(self.spec_file)
