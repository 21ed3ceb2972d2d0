"""The texts that terminal, JSON and page share: causes in plain words, money, and names as words of a shell."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streaming.config.sections import SpaceSettings
from streaming.terminal import age_text, size_text
from udfs.space.causes import Cause
from udfs.space.view import Amount

ONE_COPY = (
    "One copy is what producers wrote, once. Stored is what it takes on all bookies: each entry as often as its write "
    "quorum, with the bookie's overhead of each entry."
)
CAUSE_TEXT: Mapping[Cause, str] = {
    Cause.MISSING: "MISSING: lost, and a topic refers to it",
    Cause.OPEN_ACTIVE: "open ledgers of loaded topics",
    Cause.OPEN_IDLE: "last ledgers of topics not loaded",
    Cause.BACKLOG: "backlog of subscriptions",
    Cause.ACKNOWLEDGED_BEHIND_GAP: "acknowledged, behind a gap",
    Cause.PARTLY_READ: "acknowledged part of ledgers in use",
    Cause.BROKER_CURSOR: "held by brokers' own cursors",
    Cause.RETENTION: "kept by retention",
    Cause.TRIMMABLE: "consumed, not dropped by a broker yet",
    Cause.HELD_OR_RETAINED: "held by cursor or retention (not known)",
    Cause.OFFLOADED_AND_KEPT: "offloaded, and still in BookKeeper",
    Cause.TIERED: "in tiered storage, not on bookies",
    Cause.CURSORS: "ledgers of cursors",
    Cause.SCHEMAS: "schemas",
    Cause.COMPACTED: "compacted ledgers",
    Cause.DELAYED_BUCKETS: "delayed-delivery buckets",
    Cause.TRANSACTIONS: "transactions",
    Cause.SYSTEM_TOPICS: "other system topics",
    Cause.UNREFERENCED: "no owner: most likely orphans",
    Cause.UNREFERENCED_OPEN: "no owner, still open",
    Cause.TOO_YOUNG: "no owner yet: too young to judge",
    Cause.FOREIGN: "other applications' ledgers",
    Cause.UNKNOWN: "owner or metadata unreadable",
    Cause.NOT_COLLECTED: "deleted, not freed by bookies yet",
}


@dataclass(frozen=True, slots=True)
class Price:
    """[space] of the configuration: what a GB (1,000,000,000 bytes) costs a month; 0: not known."""

    stored: float = 0.0
    tiered: float = 0.0
    currency: str = ""

    @property
    def is_known(self) -> bool:
        """Whether any bytes can be converted into money."""
        return bool(self.stored or self.tiered)

    def of(self, amount: Amount) -> float:
        """Return what the stored and the tiered bytes cost a month."""
        return amount.stored / 1e9 * self.stored + amount.tiered / 1e9 * self.tiered

    def text(self, amount: Amount) -> str:
        """Return the cost a month with its currency."""
        return f"{self.of(amount):,.2f} {self.currency}".rstrip()


def price_of(settings: SpaceSettings) -> Price:
    """Return the configured price."""
    return Price(settings.price_per_gb_month, settings.tiered_price_per_gb_month, settings.currency)


def bytes_text(size_bytes: int, *, is_exact: bool = True) -> str:
    """Return a size; ~ marks an estimate or a lower bound."""
    return f"{'' if is_exact else '~'}{size_text(size_bytes)}"


def share_text(part: int, whole: int) -> str:
    """Return a share in percent; "" if the whole is 0."""
    if not whole:
        return ""
    percent = 100 * part / whole
    return "<0.1 %" if 0 < percent < 0.05 else f"{percent:.1f} %"


def bounds_text(at_least: int | None, at_most: int | None) -> str:
    """Return the bounds of bytes that are not known."""
    if at_most is None:
        return "size not known" if not at_least else f"at least {size_text(at_least)}"
    return f"{size_text(at_least or 0)} to {size_text(at_most)}"


def ago_text(at_ms: int | None, now_ms: int) -> str:
    """Return how long ago something happened; None is "not known"."""
    return "not known" if at_ms is None else f"{age_text(max(0, now_ms - at_ms) / 1000)} ago"


def yes_no(fact: bool | None) -> str:
    """Return a fact as a word; None is "not known"."""
    return "not known" if fact is None else "yes" if fact else "no"


def command(words: Sequence[str], names: Sequence[str] = ()) -> str:
    """Return a command for a POSIX shell, whose last words are names that others chose."""
    return " ".join([*words, *map(shell_word, names)])


_NOT_PRINTED = re.compile(r"[^ -~]", re.ASCII)


def shell_word(name: str) -> str:
    """Return a name that can be pasted into bash and zsh, also if a terminal would not print all of it."""
    if name.isprintable():
        return shlex.quote(name)
    quoted = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_NOT_PRINTED.sub(_escaped, quoted)}'"


def _escaped(match: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in match[0].encode("utf-8", "surrogatepass"))
