"""The completeness of an audit: what it listed, between which ZooKeeper transactions, and what it could not read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from streaming.audit.audit_options import FindingFilters
from streaming.audit.walk.listing import Problem
from udfs.paths import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT

MAX_PROBLEMS = 10_000  # with more unreadable paths than this, the audit believes none of what it read
MAX_NAMESPACES = 1_000  # with more namespaces whose suspects could not be judged, they are not named singly
_TREES = (f"{MANAGED_LEDGERS_ROOT}/", f"{SCHEMAS_ROOT}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The proof of an audit's completeness."""

    zxid_start: int  # the audit missed nothing that was written before this ZooKeeper transaction
    zxid_end: int  # the lists contain nothing that was written after this ZooKeeper transaction; the checks come later
    listed: Mapping[str, int]  # how many ledgers, owners, references, objects, … were read
    unreadable: tuple[Problem, ...]  # paths, each with the reason
    errors: tuple[str, ...] = ()  # why the whole audit can't be trusted

    @property
    def is_complete(self) -> bool:
        """Whether everything could be read."""
        return not self.unreadable and not self.errors

    def as_json(self) -> dict[str, Any]:
        """Return the fields for summary.json; zxids as ZooKeeper prints them."""
        return asdict(self) | {
            "complete": self.is_complete,
            "unreadable": [{"path": path, "detail": detail} for path, detail in self.unreadable],
            "zxid_start": hex(self.zxid_start),
            "zxid_end": hex(self.zxid_end),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Certificate":
        """Read what as_json returned."""
        return cls(
            zxid_start=int(fields["zxid_start"], 16),
            zxid_end=int(fields["zxid_end"], 16),
            listed=fields["listed"],
            unreadable=tuple((problem["path"], problem["detail"]) for problem in fields["unreadable"]),
            errors=tuple(fields["errors"]),
        )

    def faults_within(self, filters: FindingFilters) -> tuple[str, ...]:
        """Return the faults that may hide findings that the filters select.

        A path outside the trees of topics and schemas may hide findings of any tenant.
        """
        paths = [f"{path}: {detail}" for path, detail in self.unreadable if _concerns(path, filters.scope)]
        return (*self.errors, *paths)


@dataclass(slots=True)
class Completeness:
    """The facts that a running audit collects for its certificate. Problems may be added, but never removed."""

    listed: dict[str, int] = field(default_factory=lambda: {"ledgers": 0, "unreferenced": 0, "objects": 0})
    problems: list[Problem] = field(default_factory=list)
    errors: tuple[str, ...] = ()

    @property
    def blocked_paths(self) -> tuple[str, ...]:
        """Paths at or below which nothing counts as read; "/" is everything."""
        return blocked_paths(self.problems, self.errors)

    def certificate(self, zxid_start: int, zxid_end: int) -> Certificate:
        """Return the certificate of all that was collected so far."""
        return Certificate(
            zxid_start=zxid_start,
            zxid_end=zxid_end,
            listed=self.listed,
            unreadable=tuple(self.problems),
            errors=self.errors,
        )


def blocked_paths(problems: Sequence[Problem], errors: Sequence[str]) -> tuple[str, ...]:
    """Return the paths at or below which nothing counts as read; "/" is everything."""
    if errors or len(problems) > MAX_PROBLEMS:
        return ("/",)
    return tuple(sorted({path for path, _detail in problems}))


def unjudged(counts: Sequence[tuple[str, int, str]], problems: Sequence[Problem]) -> list[Problem]:
    """Return a problem for each namespace with suspects that could not be judged because brokers did not answer.

    Args:
        counts: (namespace, number of such suspects, why one of them could not be judged); if they are more than
            MAX_NAMESPACES, some may be left out.
        problems: what the walk could not read.
    """
    incomplete = [
        (f"{MANAGED_LEDGERS_ROOT}/{namespace}".rstrip("/"), f"{number} suspects could not be judged, such as: {detail}")
        for namespace, number, detail in counts
        # the walk's problems make some namespaces incomplete already
        if not any(_concerns(path, namespace) for path, _detail in problems)
    ]
    # too many to name: then the audit is incomplete, whatever the filters select
    if len(counts) <= MAX_NAMESPACES:
        return incomplete
    first = counts[0][0]
    return [(MANAGED_LEDGERS_ROOT, f"suspects of many namespaces could not be judged, such as those of {first}")]


def whole_errors(listed: Mapping[str, int], claimed: int) -> tuple[str, ...]:
    """Return the faults that make the whole audit useless.

    Args:
        listed: as in Certificate.
        claimed: how many unreferenced ledgers name an owner.
    """
    # ledgers name owners and no owner exists: the configuration points to a wrong chroot or cluster
    if claimed and not listed.get("owners", 0):
        return (
            f"{claimed} ledgers name Pulsar topics as owners, but there is not one topic below /managed-ledgers: "
            "check zookeeper.hosts (chroot?) and that Pulsar's metadata lives in this ZooKeeper",
        )
    return ()


def _concerns(path: str, chosen: str) -> bool:
    """Whether the path lies at, above or below the tenant or namespace; "" is everything."""
    root = next((root for root in _TREES if path.startswith(root)), None)
    # a path outside the trees of topics and schemas may hide findings of any tenant
    if root is None or not chosen:
        return True
    below = f"{path.removeprefix(root)}/"
    return below.startswith(f"{chosen}/") or f"{chosen}/".startswith(below)
