"""The options of an audit, besides the configuration."""

import shlex
from dataclasses import dataclass, field

from streaming.config.amounts import seconds_of
from streaming.errors import ConfigError
from udfs.records import LedgerComponent


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingFilters:
    """The filters of the findings that the audit shows, adds up and publishes; "" or 0 selects all."""

    tenant: str = ""
    namespace: str = ""
    component: LedgerComponent | None = None
    older_than_seconds: int = 0  # since the ledger's last change; MISSING, which has none, is always selected
    max_bytes: int = 0  # selects the oldest orphans that fit into it

    def arguments(self) -> str:
        """Return the command-line options of these filters, each with a space before it."""
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
        """The namespace or tenant that they select; "" is everything."""
        return self.namespace or self.tenant

    @property
    def are_empty(self) -> bool:
        """Whether they select everything."""
        return self == FindingFilters()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """The options that are no filters. Rates apply to all executors together; 0 is no limit."""

    recheck_seconds: int  # the pause between the two checks
    reads_per_second: int = 50_000
    publish_per_second: int = 500
    tasks: int = 32
    verify_only: bool = False  # search for missing data and nothing else
    bookies: tuple[str, ...] = ()  # HTTP addresses of bookies that return their disk space; (): those in ZooKeeper
    filters: FindingFilters = field(default_factory=FindingFilters)


def every_seconds_of(text: str, *, last: bool) -> int:
    """Parse --watch; "" is 0, a single audit. Raises ConfigError for an interval of 0, and together with --last."""
    if not text:
        return 0
    if last:
        raise ConfigError("--watch searches each time, so it can't be combined with --last: leave one of them out")
    seconds = seconds_of(text, "--watch")
    if not seconds:
        raise ConfigError(f"--watch {text}: the interval must be longer than 0")
    return seconds


def component_of(text: str) -> LedgerComponent | None:
    """Parse --component; "" is every component. Raises ConfigError."""
    if not text:
        return None
    try:
        return LedgerComponent(text.upper())
    except ValueError:
        raise ConfigError(
            f"--component {text} is not a component; choose one of {', '.join(LedgerComponent)}"
        ) from None
