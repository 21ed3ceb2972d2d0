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
    older_than_seconds: int = 0  # since the last change; a MISSING finding has no such time: always selected
    max_bytes: int = 0  # selects the oldest orphans whose sizes add up to at most this

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
        """The namespace or tenant that the filters select; "" if they select neither."""
        return self.namespace or self.tenant

    @property
    def are_empty(self) -> bool:
        """Whether the filters select everything."""
        return self == FindingFilters()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """The filters and all other options. A rate applies to all processes together; 0 is no limit."""

    recheck_seconds: int  # the pause between the two checks
    reads_per_second: int = 50_000
    publish_per_second: int = 500
    verify_only: bool = False  # search for missing data and nothing else
    bookies: tuple[str, ...] = ()  # HTTP addresses of the bookies to ask for their disk space; (): as in ZooKeeper
    filters: FindingFilters = field(default_factory=FindingFilters)


def every_seconds_of(text: str, *, last: bool) -> int:
    """Parse --watch; "" returns 0, a single audit. Raises ConfigError if the interval is 0, or if --last is given."""
    if not text:
        return 0
    if last:
        raise ConfigError("--watch searches again, --last shows the last result: leave out one of these options")
    seconds = seconds_of(text, "--watch")
    if not seconds:
        raise ConfigError(f"--watch {text}: the interval must be longer than 0")
    return seconds
