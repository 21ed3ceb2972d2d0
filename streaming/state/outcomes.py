"""Outcomes of requests for the command line: receipts and write-offs together."""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import and_
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from streaming.config.amounts import topic_from
from streaming.config.settings import Settings
from streaming.state import receipts
from streaming.state.settlements import SettlementFolder
from udfs import columns as c

_SHOWN = (
    c.LEDGER_ID,
    c.LEDGER_TYPE,
    c.COMPONENT,
    c.TOPIC_NAME,
    c.OUTCOME,
    c.REASON,
    c.ATTEMPT,
    c.AT_MS,
    c.ORIGIN_MESSAGE_ID,
    c.DETAIL,
    c.UUID,
    c.BYTES,
    c.SOURCES,
)


_POLL_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptFilter:
    """Receipts that meet every condition that is given."""

    ledger: int | None = None
    topic: str = ""  # in any form that pulsar-admin takes, with its partitions
    tenant: str = ""  # of the topic
    outcome: str = ""
    reason: str = ""
    since_ms: int = 0  # receipts of this time or later
    until_ms: int = 0  # receipts before this time; 0: no bound
    last_chunk: int | None = None  # receipts of this chunk or an earlier one

    @property
    def is_empty(self) -> bool:
        """Whether every receipt meets it."""
        return self == ReceiptFilter()

    def condition(self) -> ds.Expression | None:
        """Return it for the receipts' rows; None if it is empty. Raises ConfigError for an invalid topic name."""
        conditions = []
        if self.ledger is not None:
            conditions.append(ds.field(c.LEDGER_ID) == self.ledger)
        if self.topic:
            name = topic_from(self.topic, "--topic")
            partitions = f"^{re.escape(name)}-partition-[0-9]+$"
            is_partition = pc.match_substring_regex(ds.field(c.TOPIC_NAME), pattern=partitions)
            conditions.append((ds.field(c.TOPIC_NAME) == name) | is_partition)
        if self.tenant:
            pattern = f"^[a-z-]+://{re.escape(self.tenant)}/"
            conditions.append(pc.match_substring_regex(ds.field(c.TOPIC_NAME), pattern=pattern))
        conditions += [
            comparison
            for value, comparison in (
                (self.outcome, ds.field(c.OUTCOME) == self.outcome),
                (self.reason, ds.field(c.REASON) == self.reason),
                (self.since_ms, ds.field(c.AT_MS) >= self.since_ms),
                (self.until_ms, ds.field(c.AT_MS) < self.until_ms),
            )
            if value
        ]
        if self.last_chunk is not None:
            conditions.append(ds.field(c.CHUNK) <= self.last_chunk)
        return reduce(and_, conditions) if conditions else None


ALL = ReceiptFilter()


def receipts_of(settings: Settings, wanted: ReceiptFilter = ALL) -> Iterator[dict[str, Any]]:
    """Yield the receipts that match, oldest chunk first, write-offs last. Raises ConfigError, UnavailableError."""
    condition = wanted.condition()
    columns = [*_SHOWN, c.CHUNK]
    by_service = receipts.rows(settings.state_dir, condition, columns=columns)
    by_hand = SettlementFolder(settings.state_dir).written_off(condition, columns=columns)
    for row in sorted(chain(by_service, by_hand), key=lambda row: (row[c.CHUNK] or math.inf, row[c.AT_MS])):
        yield {name: row[name] for name in _SHOWN}


def newest_of(
    settings: Settings, most: int, wanted: ReceiptFilter = ALL
) -> tuple[Counter[tuple[str, str]], list[dict[str, Any]]]:
    """Count the receipts by (outcome, reason), and return the last `most` rows of receipts_of()."""
    condition = wanted.condition()
    columns = [*_SHOWN, c.CHUNK]
    counts, by_service = receipts.newest(settings.state_dir, condition, columns=columns, most=most)
    by_hand = list(SettlementFolder(settings.state_dir).written_off(condition, columns=columns))
    counts.update((row[c.OUTCOME], row[c.REASON]) for row in by_hand)
    rows = [*by_service, *sorted(by_hand, key=lambda row: int(row[c.AT_MS]))]
    return counts, [{name: row[name] for name in _SHOWN} for row in rows[-most:]]


def followed(
    settings: Settings, wanted: ReceiptFilter, after: int, *, sleep: Callable[[float], object] = time.sleep
) -> Iterator[dict[str, Any]]:
    """Yield the receipts that match of every chunk after this one, as they are committed, for ever; no write-offs.

    Raises ConfigError, UnavailableError.
    """
    condition, newest = wanted.condition(), after
    while True:
        sleep(_POLL_SECONDS)
        last = receipts.newest_chunk(settings.state_dir)
        if last <= newest:
            continue
        is_new = (ds.field(c.CHUNK) > newest) & (ds.field(c.CHUNK) <= last)
        chosen = is_new if condition is None else condition & is_new
        rows = receipts.rows(settings.state_dir, chosen, columns=[*_SHOWN, c.CHUNK])
        for row in sorted(rows, key=lambda row: (row[c.CHUNK], row[c.AT_MS])):
            yield {name: row[name] for name in _SHOWN}
        newest = last
