"""What the operator can choose for one audit, apart from the configuration."""

import shlex
from dataclasses import dataclass, field

from streaming.config.amounts import seconds_of
from streaming.errors import ConfigError
from udfs.records import LedgerComponent


@dataclass(frozen=True, slots=True)
class FindingFilters:
    """Which findings are shown and published; empty or 0: all. MISSING is shown whatever they say.

    older_than_seconds: by the ledger's last change. max_bytes: the oldest orphans that fit into so many bytes.
    """

    tenant: str = ""
    namespace: str = ""
    component: LedgerComponent | None = None
    older_than_seconds: int = 0
    max_bytes: int = 0

    def arguments(self) -> str:
        """The options that choose the same, each with a space before it."""
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
    def are_empty(self) -> bool:
        """Whether nothing is left out."""
        return self == FindingFilters()


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Rates are over all executors; 0: as fast as it goes. recheck_seconds: pause between the two looks.

    verify_only: look for what is missing, and for nothing else. bookies: HTTP addresses to ask for their disk space.
    """

    recheck_seconds: int
    reads_per_second: int = 50_000
    publish_per_second: int = 500
    tasks: int = 32
    verify_only: bool = False
    bookies: tuple[str, ...] = ()
    filters: FindingFilters = field(default_factory=FindingFilters)


def every_seconds_of(text: str, *, last: bool) -> int:
    """Read --watch; "" is 0, no repetition. Raises ConfigError for no time at all, and beside --last."""
    if not text:
        return 0
    if last:
        raise ConfigError("--watch looks anew at each turn: leave out --last")
    seconds = seconds_of(text, "--watch")
    if not seconds:
        raise ConfigError(f"--watch {text}: expected more than nothing")
    return seconds


def component_of(text: str) -> LedgerComponent | None:
    """Read --component; "" is all. Raises ConfigError."""
    if not text:
        return None
    try:
        return LedgerComponent(text.upper())
    except ValueError:
        raise ConfigError(f"--component {text}: one of {', '.join(LedgerComponent)}") from None
