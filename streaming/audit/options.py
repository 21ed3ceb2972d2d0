"""What the operator can choose for one audit, apart from the configuration."""

import shlex
from dataclasses import dataclass, field

from streaming.config.amounts import seconds_of
from streaming.errors import ConfigError
from udfs.records import LedgerComponent


@dataclass(frozen=True, slots=True)
class FindingFilters:
    """Which findings the audit shows, adds up and publishes; "" or 0 chooses all.

    older_than_seconds counts from the ledger's last change, and chooses MISSING too, which has none. max_bytes chooses
    the oldest orphans that fit into it.
    """

    tenant: str = ""
    namespace: str = ""
    component: LedgerComponent | None = None
    older_than_seconds: int = 0
    max_bytes: int = 0

    def arguments(self) -> str:
        """Return the options that choose the same, each with a space before it."""
        age = f"{self.older_than_seconds}s" if self.older_than_seconds else ""
        chosen = {
            "--tenant": self.tenant,
            "--namespace": self.namespace,
            "--component": str(self.component or ""),
            "--older-than": age,
            "--max-bytes": str(self.max_bytes or ""),
        }
        return "".join(f" {option} {shlex.quote(value)}" for option, value in chosen.items() if value)

    @property
    def scope(self) -> str:
        """The namespace or tenant that they choose; "" is everything."""
        return self.namespace or self.tenant

    @property
    def are_empty(self) -> bool:
        """Whether they choose everything."""
        return self == FindingFilters()


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Rates count over all executors; 0 is no limit. recheck_seconds: the pause between the two looks.

    verify_only: search for missing data and nothing else. bookies: HTTP addresses of bookies to ask for their disk
    space; without any, those that ZooKeeper names.
    """

    recheck_seconds: int
    reads_per_second: int = 50_000
    publish_per_second: int = 500
    tasks: int = 32
    verify_only: bool = False
    bookies: tuple[str, ...] = ()
    filters: FindingFilters = field(default_factory=FindingFilters)


def every_seconds_of(text: str, *, last: bool) -> int:
    """Read --watch; "" is 0, one audit alone. Raises ConfigError for an interval of nothing, and beside --last."""
    if not text:
        return 0
    if last:
        raise ConfigError("--watch searches again at each turn, so it can't go with --last: leave one of them out")
    seconds = seconds_of(text, "--watch")
    if not seconds:
        raise ConfigError(f"--watch {text}: the interval must be longer than nothing")
    return seconds


def component_of(text: str) -> LedgerComponent | None:
    """Read --component; "" is every component. Raises ConfigError."""
    if not text:
        return None
    try:
        return LedgerComponent(text.upper())
    except ValueError:
        raise ConfigError(
            f"--component {text} is not a component; choose one of {', '.join(LedgerComponent)}"
        ) from None
