"""The note of ledgers with entries that Pulsar deleted before our Spark source read them; the accounts raise the alarm.

It only grows, and the accounts leave out the ledgers that an operator has accepted. At most _PARTITIONS partitions and
_LEDGERS ledgers of each stay, the newest.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from streaming.state.notes.note import Note
from udfs.formats.internal_stats import Position

log = logging.getLogger("ledger-reaper")

_LEDGERS = 1_000
_PARTITIONS = 10_000

Lost = dict[str, dict[int, int]]  # partition -> ledger -> one more than the first lost entry


@dataclass(frozen=True, slots=True)
class Loss:
    """Entries that Pulsar deleted before they were read."""

    first: Position  # of the deleted entries
    is_certain: bool  # whether entries were seen there; otherwise there may have been none
    detail: str


def _decode(lost: Any) -> Lost:
    return {partition: {int(ledger): int(count) for ledger, count in each.items()} for partition, each in lost.items()}


_NOTE: Note[Lost] = Note("lost-entries.json", encode=lambda lost: lost, decode=_decode)


class LostEntries:
    """The note of one state directory. One per service: many of its threads may call report()."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._one_at_a_time = threading.Lock()

    def report(self, losses: Mapping[str, Iterable[Loss]]) -> None:
        """Log losses (by partition), and note those that are certain. Raises UnavailableError if that is impossible."""
        found: Lost = {}
        for partition, lost in losses.items():
            for loss in lost:
                log.log(logging.ERROR if loss.is_certain else logging.WARNING, "%s: %s", partition, loss.detail)
                if loss.is_certain:
                    ledger, entry = loss.first
                    found.setdefault(partition, {})[ledger] = entry + 1
        if not found:
            return
        with self._one_at_a_time:
            noted = self.recall()
            for partition, ledgers in found.items():
                merged = noted.pop(partition, {}) | ledgers
                # moves to the end: the partition that was noted longest ago is dropped first
                noted[partition] = dict(sorted(merged.items())[-_LEDGERS:])
            _NOTE.write(self._state_dir, dict(list(noted.items())[-_PARTITIONS:]))

    def recall(self) -> Lost:
        """Return what was noted. Raises UnavailableError."""
        return _NOTE.read(self._state_dir) or {}
