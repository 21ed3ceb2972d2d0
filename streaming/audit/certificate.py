"""How complete an audit was: what was listed, as of which ZooKeeper transactions, and what could not be read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streaming.audit.options import FindingFilters
from streaming.audit.walk.listing import Problem
from udfs.paths import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT

MAX_PROBLEMS = 10_000  # more than that is no longer a list of exceptions: then nothing is believed
_TREES = (f"{MANAGED_LEDGERS_ROOT}/", f"{SCHEMAS_ROOT}/")


@dataclass(frozen=True, slots=True)
class Certificate:
    """zxids: nothing that was written before zxid_start was missed; what came after zxid_end is not in the audit.

    listed: how many of each source. errors: why the audit as a whole can't be believed; unreadable: single paths.
    """

    zxid_start: int
    zxid_end: int
    listed: Mapping[str, int]
    unreadable: tuple[Problem, ...]
    errors: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether everything could be read."""
        return not self.unreadable and not self.errors

    def as_json(self) -> dict[str, Any]:
        """For summary.json; zxids as ZooKeeper prints them."""
        return asdict(self) | {
            "complete": self.is_complete,
            "unreadable": [{"path": path, "detail": detail} for path, detail in self.unreadable],
            "zxid_start": hex(self.zxid_start),
            "zxid_end": hex(self.zxid_end),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Certificate":
        """Undo as_json."""
        return cls(
            int(fields["zxid_start"], 16),
            int(fields["zxid_end"], 16),
            fields["listed"],
            tuple((each["path"], each["detail"]) for each in fields["unreadable"]),
            tuple(fields["errors"]),
        )

    def faults_within(self, filters: FindingFilters) -> tuple[str, ...]:
        """What could not be read of what the filters choose; a path outside topics and schemas concerns all."""
        wanted = filters.namespace or filters.tenant
        paths = [f"{path}: {detail}" for path, detail in self.unreadable if _concerns(path, wanted)]
        return (*self.errors, *paths)


def _concerns(path: str, wanted: str) -> bool:
    """Whether the path lies at, above or below the tenant or namespace; "" is everything."""
    root = next((root for root in _TREES if path.startswith(root)), None)
    if root is None or not wanted:
        return True
    below = f"{path.removeprefix(root)}/"
    return below.startswith(f"{wanted}/") or f"{wanted}/".startswith(below)


def blocked_paths(problems: Sequence[Problem], errors: Sequence[str]) -> tuple[str, ...]:
    """Paths at or below which nothing is believed; "/" is all."""
    if errors or len(problems) > MAX_PROBLEMS:
        return ("/",)
    return tuple(sorted({path for path, _detail in problems}))


def whole_errors(listed: Mapping[str, int], claimed: int) -> tuple[str, ...]:
    """Faults that make a whole audit worthless. claimed: unreferenced ledgers that name an owner.

    No owner at all beside ledgers that name owners is how a wrong chroot looks, or a wrong cluster.
    """
    if claimed and not listed.get("owners", 0):
        return (
            f"{claimed} ledgers name Pulsar topics as owners, but there is not one topic below /managed-ledgers: "
            "check zookeeper.hosts (chroot?) and that Pulsar's metadata lives in this ZooKeeper",
        )
    return ()
