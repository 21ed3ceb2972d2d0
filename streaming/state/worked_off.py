"""Which entries were worked off in batches that were read another way, in a file beside the receipts.

Not every entry holds a message: a broker's markers of transactions do not. Such an entry has no receipt, and while it
is stored we can read it and see why. When its ledger is gone we can't: then this file says that nothing was lost.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from streaming.errors import UnavailableError
from streaming.state.filesystem import folder_of
from udfs.entry_ranges import EntrySpan, joined

_FILE = "worked-off.json"
_LEDGERS = 1_000  # of a partition, the newest
_PARTITIONS = 10_000  # topics come and go


class WorkedOff:
    """The file of one state directory. One per service: many of its threads may call note()."""

    def __init__(self, state_dir: str) -> None:
        self._folder = folder_of(state_dir)
        self._one_at_a_time = threading.Lock()

    def note(self, spans: Mapping[str, Sequence[EntrySpan]]) -> None:
        """Write down, by partition, which entries have been worked off, after they have their receipts.

        A note that can't be written stops nothing: without it, an alarm may be raised for nothing.
        """
        with self._one_at_a_time, suppress(UnavailableError):
            known = self.recall()
            for partition, added in spans.items():
                merged = joined((*known.get(partition, ()), *added))
                newest = sorted({span.ledger for span in merged})[-_LEDGERS:]
                known.pop(partition, None)  # to the end: the partition that was noted longest ago is dropped first
                known[partition] = [span for span in merged if span.ledger >= newest[0]] if newest else []
            known = dict(list(known.items())[-_PARTITIONS:])
            said = {
                partition: [(each.ledger, each.first, each.last) for each in some] for partition, some in known.items()
            }
            self._folder.write(_FILE, json.dumps(said).encode())

    def recall(self) -> dict[str, list[EntrySpan]]:
        """Return what was noted, by partition; nothing where there is no file, or none that can be read."""
        try:
            said = json.loads(self._folder.read(_FILE) or b"{}")
            return {str(partition): [EntrySpan(*map(int, each)) for each in some] for partition, some in said.items()}
        except (UnavailableError, ValueError, TypeError, AttributeError):
            return {}
