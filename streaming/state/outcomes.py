"""Outcomes of requests for the command line: receipts and write-offs together."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from itertools import chain
from operator import and_
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from streaming.config.amounts import topic_from
from streaming.config.settings import Settings
from streaming.errors import ConfigError
from streaming.state import receipts
from streaming.state.settlements import SettlementFolder
from udfs import columns as c
from udfs.records import Outcome

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


def receipts_of(
    settings: Settings, *, ledger: int | None = None, topic: str | None = None, outcome: str | None = None
) -> Iterator[dict[str, Any]]:
    """Receipts that match every filter, oldest chunk first, write-offs last.

    Raises ConfigError for an unknown outcome or an invalid topic name.
    """
    condition = _condition(ledger, topic, outcome)
    columns = [*_SHOWN, c.CHUNK]
    by_service = receipts.rows(settings.state_dir, condition, columns=columns)
    by_hand = SettlementFolder(settings.state_dir).written_off(condition, columns=columns)
    for row in sorted(chain(by_service, by_hand), key=lambda row: (row[c.CHUNK] or math.inf, row[c.AT_MS])):
        yield {name: row[name] for name in _SHOWN}


def newest_of(
    settings: Settings, most: int, *, ledger: int | None = None, topic: str | None = None, outcome: str | None = None
) -> tuple[Counter[tuple[str, str]], list[dict[str, Any]]]:
    """Count the receipts by (outcome, reason), and return the last `most` rows of receipts_of()."""
    condition = _condition(ledger, topic, outcome)
    columns = [*_SHOWN, c.CHUNK]
    counts, by_service = receipts.newest(settings.state_dir, condition, columns=columns, most=most)
    by_hand = list(SettlementFolder(settings.state_dir).written_off(condition, columns=columns))
    counts.update((row[c.OUTCOME], row[c.REASON]) for row in by_hand)
    rows = [*by_service, *sorted(by_hand, key=lambda row: int(row[c.AT_MS]))]
    return counts, [{name: row[name] for name in _SHOWN} for row in rows[-most:]]


def _condition(ledger: int | None, topic: str | None, outcome: str | None) -> ds.Expression | None:
    conditions = []
    if ledger is not None:
        conditions.append(ds.field(c.LEDGER_ID) == ledger)
    if topic is not None:
        name = topic_from(topic, "--topic")
        partitions = f"^{re.escape(name)}-partition-[0-9]+$"
        is_partition = pc.match_substring_regex(ds.field(c.TOPIC_NAME), pattern=partitions)
        conditions.append((ds.field(c.TOPIC_NAME) == name) | is_partition)
    if outcome is not None:
        if outcome not in set(Outcome):
            raise ConfigError(f"--outcome {outcome} is not an outcome; choose one of {', '.join(Outcome)}")
        conditions.append(ds.field(c.OUTCOME) == outcome)
    return reduce(and_, conditions) if conditions else None
