"""The folder of a RocketMQ: its store, its logs, and the settings that are kept between starts."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

CLUSTER_NAME = "sandbox"
BROKER_NAME = "broker-a"


class RocketPart(StrEnum):
    """The processes, in the order of their start."""

    NAME_SERVER = "nameserver"
    BROKER = "broker"


class StoreMode(StrEnum):
    """Where the broker keeps consume queues and offsets: in files, in both (it reads the files), or in RocksDB."""

    FILE = "file"
    BOTH = "both"
    ROCKSDB = "rocksdb"


PORTS = ("nameserver", "broker", "broker_fast", "broker_ha")


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketSpec:
    """The settings that a home keeps between starts."""

    version: str  # of the jars
    address: str  # both parts listen on it
    ports: Mapping[str, int]  # by name
    mode: StoreMode = StoreMode.FILE  # of the broker's last start
    settings: Mapping[str, str] = field(default_factory=dict)  # of the broker's last start

    @property
    def name_server(self) -> str:
        """The address that clients get."""
        return f"{self.address}:{self.ports['nameserver']}"

    @property
    def broker(self) -> str:
        """The address to which the name server sends clients."""
        return f"{self.address}:{self.ports['broker']}"


@dataclass(frozen=True, slots=True)
class RocketHome:
    """Paths below `root` (absolute)."""

    root: Path

    @property
    def store(self) -> Path:
        """The broker's storePathRootDir."""
        return self.root / "store"

    @property
    def spec_file(self) -> Path:
        """The file of the RocketSpec. It exists if a RocketMQ was created here."""
        return self.root / "rocketmq.json"

    @property
    def network(self) -> Path:
        """The record of the process that keeps the network namespace open."""
        return self.root / "run" / "network.json"

    @property
    def logs(self) -> Path:
        """The output of the processes; RocketMQ's own logs are below user/logs."""
        return self.root / "logs"

    @property
    def user(self) -> Path:
        """The home directory of both processes."""
        return self.root / "user"

    def log(self, part: RocketPart) -> Path:
        """The part's output."""
        return self.logs / f"{part}.log"

    def own_log(self, name: str) -> Path:
        """Return the path of a log that RocketMQ itself writes, such as broker.log."""
        return self.user / "logs" / "rocketmqlogs" / name

    def conf(self, part: RocketPart) -> Path:
        """The part's configuration, which each start replaces."""
        return self.root / "conf" / f"{part}.conf"

    def record(self, part: RocketPart) -> Path:
        """The record of the part's process."""
        return self.root / "run" / f"{part}.json"

    def make_folders(self) -> None:
        """Create missing folders, except the store, which the broker creates."""
        for folder in (self.logs, self.user, self.root / "conf", self.root / "run"):
            folder.mkdir(parents=True, exist_ok=True)

    def load(self) -> RocketSpec | None:
        """Read the RocketSpec; None if no RocketMQ was created here."""
        if not self.spec_file.is_file():
            return None
        fields = json.loads(self.spec_file.read_text(encoding="utf-8"))
        return RocketSpec(**(fields | {"mode": StoreMode(fields["mode"])}))

    def save(self, spec: RocketSpec) -> None:
        """Write the RocketSpec, atomically."""
        partial = self.spec_file.with_suffix(".part")
        partial.write_text(json.dumps(asdict(spec), indent=2), encoding="utf-8")
        partial.replace(self.spec_file)
