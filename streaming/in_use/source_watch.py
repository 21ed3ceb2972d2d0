"""Compares how many ledgers the two sources (ZooKeeper and the brokers) name for a chunk's owners with the baseline."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow.dataset as ds

from streaming.in_use.baseline import Baseline, is_accepted, summary
from streaming.state.receipts import certificates
from udfs import columns as c
from udfs.owners.completeness import baseline_in
from udfs.owners.mass_loss import Doubts
from udfs.records import Counts, Reference
from udfs.units import DAY_MS

_RECALL_MS = DAY_MS


@dataclass(slots=True)
class SourceWatch:
    """A service has one SourceWatch."""

    baseline: Baseline
    accepted: Callable[[], Mapping[str, int]]  # reads which owners an operator has accepted, and when (ms)
    state_dir: str
    log: Callable[[str], None]
    _accepted_before: dict[str, int] = field(default_factory=dict)

    def recall(self, *, now_ms: int) -> None:
        """At start, learn the baseline from the receipts of the last day, except for owners accepted since then."""
        self._accepted_before = dict(self.accepted())
        newest: dict[str, tuple[int, str]] = {}
        for key, text, at_ms in certificates(self.state_dir, ds.field(c.AT_MS) > now_ms - _RECALL_MS):
            is_newer = at_ms >= newest.get(key, (0, ""))[0]
            if is_newer and baseline_in(text) is not None and not is_accepted(key, at_ms, self._accepted_before):
                newest[key] = (at_ms, text)
        self.baseline.learn((key, text) for key, (_at_ms, text) in newest.items())

    def before(self, references: Mapping[str, Reference], keys: list[str]) -> tuple[dict[str, Counts], Doubts]:
        """Return the baseline of these owners, and doubts if too many of the owners in `references` are gone."""
        accepted = dict(self.accepted())
        # only what was accepted since the last chunk: counts that were learnt after an older acceptance stay
        self.baseline.forget(name for name, at_ms in accepted.items() if self._accepted_before.get(name) != at_ms)
        self._accepted_before = accepted
        return self.baseline.of(keys), self.baseline.mass_loss(references)

    def after(self, chunk: int) -> None:
        """Learn from the certificates of a chunk, and log them."""
        rows = certificates(self.state_dir, ds.field(c.CHUNK) == chunk)
        by_time = sorted((at_ms, key, text) for key, text, at_ms in rows)
        if by_time:
            self.baseline.learn((key, text) for _at_ms, key, text in by_time)
            self.log(f"chunk {chunk}: {summary((key, text) for _at_ms, key, text in by_time)}")
