"""Remembers ledgers with unread messages for the next check, and the lost ledgers that an operator has accepted.

The service writes `accounts.json` and `accounts-lanes.json`, and `ledger-reaper accept --gaps` writes
`accounts-accepted.json`. With our own Spark source, the service also notes what that has not found
(state/notes/lost_entries.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from streaming.state.notes.lost_entries import LostEntries
from streaming.state.notes.note import Note
from udfs.formats.internal_stats import Position

Unread = dict[str, dict[int, int]]  # partition -> ledger -> number of its entries
Ledgers = dict[str, set[int]]  # by partition


def _unread(note: Any) -> Unread:
    return {
        partition: {int(ledger): entries for ledger, entries in ledgers.items()} for partition, ledgers in note.items()
    }


_UNREAD: Note[Unread] = Note("accounts.json", encode=lambda unread: unread, decode=_unread)
_ACCEPTED: Note[Ledgers] = Note(
    "accounts-accepted.json",
    encode=lambda accepted: {partition: sorted(ledgers) for partition, ledgers in accepted.items()},
    decode=lambda note: {partition: set(ledgers) for partition, ledgers in note.items()},
)
# no query commits a position for a lane, and only lanes that were processed since the last check have one in memory
_PROCESSED: Note[Mapping[str, Position]] = Note(
    "accounts-lanes.json",
    encode=dict,
    decode=lambda note: {partition: (int(ledger), int(entry)) for partition, (ledger, entry) in note.items()},
)


class UnreadMemory:
    """The three notes of a state directory. Every method raises UnavailableError if it can't read or write."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir

    def recall(self) -> Unread:
        """Return what was unread at the last check, without the ledgers that an operator has accepted since."""
        accepted = _ACCEPTED.read(self._state_dir) or {}
        unread = self._known()
        return {
            partition: {
                ledger: entries for ledger, entries in ledgers.items() if ledger not in accepted.get(partition, ())
            }
            for partition, ledgers in unread.items()
        }

    def processed(self) -> Mapping[str, Position]:
        """Return the position up to which each remembered partition of a lane was processed."""
        return _PROCESSED.read(self._state_dir) or {}

    def remember(self, unread: Unread, processed: Mapping[str, Position]) -> None:
        """Keep what is unread now for the next check, and up to where these lanes were processed."""
        kept = {partition: ledgers for partition, ledgers in unread.items() if ledgers}
        _PROCESSED.write(
            self._state_dir, {partition: position for partition, position in processed.items() if partition in kept}
        )
        _UNREAD.write(self._state_dir, kept)

    def accept(self, lost: Mapping[str, Sequence[int]]) -> None:
        """Stop raising the alarm for these ledgers (partition -> ledgers)."""
        unread = self._known()
        accepted = {
            # earlier acceptances stay as long as the service may remember their ledgers: only the service writes its
            # own note, so the ledgers can't be removed from it here
            partition: ledgers.intersection(unread.get(partition, ()))
            for partition, ledgers in (_ACCEPTED.read(self._state_dir) or {}).items()
        }
        for partition, ledgers in lost.items():
            accepted.setdefault(partition, set()).update(ledgers)
        _ACCEPTED.write(self._state_dir, {partition: ledgers for partition, ledgers in accepted.items() if ledgers})

    def _known(self) -> Unread:
        """Return what was unread at the last check, with what was lost before any check saw it."""
        known = LostEntries(self._state_dir).recall()
        for partition, ledgers in (_UNREAD.read(self._state_dir) or {}).items():
            of_partition = known.setdefault(partition, {})
            for ledger, entries in ledgers.items():
                of_partition[ledger] = max(entries, of_partition.get(ledger, 0))
        return known
