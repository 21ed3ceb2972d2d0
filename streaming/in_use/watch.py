"""Watches the two sources (ZooKeeper and the brokers): do a chunk's owners name about as many ledgers as before?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow.dataset as ds

from streaming.in_use.baseline import Baseline, is_accepted, told
from streaming.state.receipts import certificates
from udfs import columns as c
from udfs.completeness import baseline_in
from udfs.mass_loss import Doubts
from udfs.records import Counts, Reference
from udfs.units import DAY_MS

_RECALL_MS = DAY_MS


@dataclass(slots=True)
class SourceWatch:
    """One per service. accepted: reads which owners a person has looked at (`ledger-reaper accept`), and when (ms)."""

    baseline: Baseline
    accepted: Callable[[], Mapping[str, int]]
    state_dir: str
    log: Callable[[str], None]
    _accepted_before: dict[str, int] = field(default_factory=dict)

    def recall(self, *, now_ms: int) -> None:
        """At start, learn the baseline from the receipts of the last day, except where a person accepted less since."""
        self._accepted_before = dict(self.accepted())
        newest: dict[str, tuple[int, str]] = {}
        for key, text, at_ms in certificates(self.state_dir, ds.field(c.AT_MS) > now_ms - _RECALL_MS):
            is_newer = at_ms >= newest.get(key, (0, ""))[0]
            if is_newer and baseline_in(text) is not None and not is_accepted(key, at_ms, self._accepted_before):
                newest[key] = (at_ms, text)
        self.baseline.learn((key, text) for key, (_at_ms, text) in newest.items())

    def before(self, references: Mapping[str, Reference], keys: list[str]) -> tuple[dict[str, Counts], Doubts]:
        """Return the baseline of these owners, and whether so many owners are gone that a person must look first."""
        accepted = dict(self.accepted())
        self.baseline.forget(name for name, at_ms in accepted.items() if self._accepted_before.get(name) != at_ms)
        self._accepted_before = accepted
        return self.baseline.of(keys), self.baseline.vanished(references)

    def after(self, chunk: int) -> None:
        """Learn from the certificates of a chunk, and log them."""
        found = certificates(self.state_dir, ds.field(c.CHUNK) == chunk)
        pairs = sorted((at_ms, key, text) for key, text, at_ms in found)
        if pairs:
            self.baseline.learn((key, text) for _at_ms, key, text in pairs)
            self.log(f"chunk {chunk}: {told((key, text) for _at_ms, key, text in pairs)}")
