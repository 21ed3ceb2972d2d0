"""Repeats a read of entries that brokers do not return, and gives the entries up when that has lasted too long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame

from streaming.adapters.pulsar.readers.admin_entries import NOTHING_SHOWN, WITHHELD

# A read is repeated for this long before its entries are given up, in two cases. NOTHING_SHOWN: the broker returns no
# entry at all, not even of other topics. WITHHELD: a broker or proxy answers repeated requests for an entry with an
# error that it also gives while a topic is being moved (a move ends sooner than this), or bookies have lost the entry.
# An outage of bookies gives no entry up, however long it lasts (readers/admin_entries.py).
GIVES_UP_S = 600.0


@dataclass(slots=True)
class Withheld:
    """The tries of one read."""

    since_s: float | None = None  # since when each try has failed because of such entries; None: the last did not

    def read(self, attempt: Callable[[bool], DataFrame], now_s: float) -> DataFrame:
        """Return what `attempt` returns; its argument is whether to give entries up. Raises what it raises."""
        gives_up = self.is_too_long(now_s)
        with self.noted(now_s):
            return attempt(gives_up)

    def is_too_long(self, now_s: float) -> bool:
        """Whether the next try is to give entries up."""
        return self.since_s is not None and now_s - self.since_s >= GIVES_UP_S

    @contextmanager
    def noted(self, now_s: float) -> Iterator[None]:
        """Note how a try ends, which is the block."""
        since_s, self.since_s = self.since_s, None
        try:
            yield
        except Exception as error:
            if any(reason in str(error) for reason in (NOTHING_SHOWN, WITHHELD)):
                self.since_s = now_s if since_s is None else since_s
            raise
