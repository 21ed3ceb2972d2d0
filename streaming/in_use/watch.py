"""Watches the two sources (ZooKeeper and the brokers) around each chunk of requests.

Before a chunk: do the owners name about as many ledgers as before? After it: are the ledgers that we kept still there?
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow.dataset as ds

from streaming.in_use.baseline import Baseline, is_accepted, told
from streaming.in_use.loader import InUseLoader
from streaming.state.receipts import certificates, rows
from udfs import columns as c
from udfs.completeness import baseline_in
from udfs.judge import refers_to
from udfs.paths import Layout, ledger_path
from udfs.records import Counts, LedgerType, Reason, Reference
from udfs.units import DAY_MS
from udfs.vanished import Doubts

_RECALL_MS = DAY_MS
_LOOK_AGAIN_S = 5.0  # a broker that deletes a schema or a topic deletes the ledger first, and the reference right after
_LOOKED_AT_MOST = 1_000


@dataclass(slots=True)
class SourceWatch:
    """One per service. accepted: reads which owners a person has looked at (`ledger-reaper accept`), and when (ms)."""

    baseline: Baseline
    accepted: Callable[[], Mapping[str, int]]
    loader: InUseLoader
    state_dir: str
    layout: Layout
    ledgers_root: str
    log: Callable[[str], None]
    look_again_s: float = _LOOK_AGAIN_S
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

    def missing(self, chunk: int, stop: threading.Event) -> list[str]:
        """Return what we kept as in use, what then vanished, and what its owner still refers to a few seconds later.

        Somebody deleted data that is in use. Raises as InUseLoader.load does.
        """
        condition = (ds.field(c.CHUNK) == chunk) & (ds.field(c.REASON) == str(Reason.KEPT_AND_GONE))
        wanted = [c.REFERENCE_KEY, c.LEDGER_ID, c.LEDGER_TYPE, c.UUID]
        kept = list(islice(rows(self.state_dir, condition, columns=wanted), _LOOKED_AT_MOST))
        if kept:
            stop.wait(self.look_again_s)
        references = self.loader.load({row[c.REFERENCE_KEY] for row in kept})
        return [
            f"{row[c.LEDGER_TYPE]} {row[c.LEDGER_ID]} of {row[c.REFERENCE_KEY]}"
            for row in kept
            if self._is_lost(row, references[row[c.REFERENCE_KEY]])
        ]

    def _is_lost(self, row: Mapping[str, Any], reference: Reference) -> bool:
        ledger_id = row[c.LEDGER_ID]
        if row[c.LEDGER_TYPE] == LedgerType.OFFLOAD_LEDGER:
            return (ledger_id, row[c.UUID]) in reference.offloads
        path = ledger_path(self.layout, self.ledgers_root, ledger_id)
        return refers_to(reference, ledger_id) and bool(self.loader.holding([(path, -1)]))
