"""The blast radius in force: judged before every chunk, tripped where a person has to look, and how it goes on.

What a chunk could delete at most is its requests; only where that is too much is a dry run made to know exactly.
The breaker's state lies in ZooKeeper: it survives restarts, and `ledger-reaper resume` clears it.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from streaming.adapters.coordination import read_own
from streaming.clock import Clock
from streaming.config import LimitSettings
from streaming.ports import MetadataStore
from udfs.blast_radius import HOUR_MS, Limits, Planned, Usage, exceeded

_CENSUS_EVERY_MS = HOUR_MS  # a share of what exists does not move faster than that


@dataclass(frozen=True, slots=True)
class Plan:
    """What a dry run found deletable: by (tenant, owner), and by task, in the order of Spark's partitions."""

    by_owner: Planned
    by_task: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Breaker:
    """The znode <root>/instances/<name>/breaker."""

    store: MetadataStore
    path: str

    def reason(self) -> str:
        """Return "" while closed, else why it tripped. Raises UnavailableError: unknown is not "no"."""
        return str(self._read().get("why", ""))

    def granted_ms(self) -> int:
        """When a person last let it go on; 0: never."""
        return int(self._read().get("granted_ms", 0))

    def trip(self, why: str) -> None:
        """Stop deleting until a person resumes."""
        self._write({"why": why, "granted_ms": self.granted_ms()})

    def clear(self, *, now_ms: int) -> bool:
        """A person has looked; False if it had not tripped."""
        had_tripped = bool(self.reason())
        if had_tripped:
            self._write({"granted_ms": now_ms})
        return had_tripped

    def _read(self) -> dict[str, Any]:
        node = read_own(self.store, self.path)
        if node is None or not node.data:
            return {}
        try:
            return dict(json.loads(node.data))
        except ValueError:
            return {"why": f"{self.path} can't be parsed; `ledger-reaper resume` once you have looked"}

    def _write(self, state: dict[str, Any]) -> None:
        self.store.create(self.path, b"", parents=True)
        self.store.set_data(self.path, json.dumps(state).encode())


@dataclass(slots=True)
class BlastRadius:
    """Limits, what was deleted within the last hour, and the breaker."""

    limits: Limits
    breaker: Breaker
    census: Callable[[], int]
    clock: Clock
    _usage: Usage = field(default_factory=Usage)
    _batch: tuple[str, int] = ("", -1)
    _batch_deletes: int = 0
    _existing: int = 0
    _counted_ms: int = -_CENSUS_EVERY_MS

    def recall(self, deleted: Iterable[tuple[int, str, str]]) -> None:
        """At start: deletes of the last hour as (at ms, tenant, owner), from the receipts; granted ones don't count."""
        since_ms = max(self.clock.now_ms() - HOUR_MS, self.breaker.granted_ms())
        for at_ms, tenant, owner in deleted:
            if at_ms > since_ms:
                self._usage.add({(tenant, owner): 1}, at_ms=at_ms)

    def judge(
        self, batch: tuple[str, int], most: Planned, plan: Callable[[], Plan]
    ) -> tuple[str | None, tuple[int, ...] | None]:
        """(why it must not go on, or None; most deletes by task, or None where the requests themselves bound it)."""
        if batch != self._batch:
            self._batch, self._batch_deletes = batch, 0
        why = self._exceeded(most)
        if why is None:
            return None, None
        exact = plan()
        return self._exceeded(exact.by_owner), exact.by_task

    def count(self, deleted: Planned) -> None:
        """Remember what a chunk deleted."""
        self._usage.add(deleted, at_ms=self.clock.now_ms())
        self._batch_deletes += sum(deleted.values())

    def grant(self) -> None:
        """A person resumed: what was deleted up to now is looked at."""
        self._usage.clear()
        self._batch_deletes = 0

    def _exceeded(self, planned: Planned) -> str | None:
        now_ms = self.clock.now_ms()
        if now_ms - self._counted_ms >= _CENSUS_EVERY_MS:
            self._existing, self._counted_ms = self.census(), now_ms
        hour: Counter[tuple[str, str]] = self._usage.last_hour(now_ms=now_ms)
        return exceeded(self.limits, planned, hour, batch=self._batch_deletes, existing=self._existing)


def limits_of(settings: LimitSettings) -> Limits:
    """[limits] as the judge takes them."""
    return Limits(
        per_batch=settings.max_deletes_per_batch,
        per_hour=settings.max_deletes_per_hour,
        per_hour_per_tenant=settings.max_deletes_per_hour_per_tenant,
        per_hour_per_owner=settings.max_deletes_per_hour_per_owner,
        share_per_hour=settings.max_share_per_hour,
        share_applies_above=settings.share_applies_above_ledgers,
    )


def breaker_path(own_root: str, name: str) -> str:
    """Where an instance's breaker is."""
    return f"{own_root}/instances/{name}/breaker"
