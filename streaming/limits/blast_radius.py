"""The blast radius in force: judged before every chunk, tripped where a person has to look, and how it goes on.

What a chunk could delete at most is its requests; only where that is too much is a dry run made to know exactly.
The breaker's state lies in ZooKeeper: it survives restarts, and `ledger-reaper resume` clears it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from streaming.clock import Clock
from streaming.limits.breaker import Breaker
from udfs.blast_radius import Limits, Plan, Planned, Usage, exceeded
from udfs.units import HOUR_MS

_CENSUS_EVERY_MS = HOUR_MS  # a share of what exists does not move faster than that


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a query's batch that is about to be swept, and since when (agreed time)."""

    query: str
    batch_id: int
    since_ms: int


@dataclass(slots=True)
class BlastRadius:
    """Limits, what was deleted within the last hour, and the breaker.

    journaled(query, batch id, since ms): what that batch has written down since then to delete it, by owner; each once.
    """

    limits: Limits
    breaker: Breaker
    census: Callable[[], int]
    clock: Clock
    journaled: Callable[[str, int, int], Planned]
    _usage: Usage = field(default_factory=Usage)
    _batches: dict[str, tuple[int, int]] = field(default_factory=dict)
    _chunk: Chunk = Chunk("", -1, 0)
    _most: Planned = field(default_factory=dict)
    _since_ms: int = 0
    _has_begun: bool = False
    _has_tripped: bool = False
    _let_go: str = ""
    _planned: str = ""
    _existing: int = 0
    _counted_ms: int = -_CENSUS_EVERY_MS

    def recall(self, deleted: Iterable[tuple[int, str, str]]) -> None:
        """At start: deletes of the last hour as (at ms, tenant, owner); granted ones don't count.

        What an earlier run was held with, and a person has let go on since, is let go on.
        """
        self._let_go = self.breaker.take_granted()
        since_ms = max(self.clock.now_ms() - HOUR_MS, self.breaker.granted_ms())
        for at_ms, tenant, owner in deleted:
            if at_ms > since_ms:
                self._usage.add({(tenant, owner): 1}, at_ms=at_ms)

    def judge(self, chunk: Chunk, most: Planned, plan: Callable[[], Plan]) -> tuple[str | None, tuple[int, ...] | None]:
        """(why it must not go on, or None; most deletes by task, or None where the requests themselves bound it)."""
        self._chunk, self._most = chunk, most
        if not self._has_begun:  # else the first of its tries counts
            self._since_ms = chunk.since_ms
        why = self._exceeded(most)
        if why is None:
            return None, None
        exact = plan()
        self._planned = _digest(exact.by_owner)
        why = self._exceeded(self._with_begun(exact.by_owner))
        return None if why and self.lets(chunk.query, self._planned) else why, exact.by_task

    def trip(self, why: str, query: str, what: str = "") -> None:
        """Stop deleting until a person has looked at what a chunk of a query is about to do ("": at its plan)."""
        self.breaker.trip(why, _about(query, what or self._planned))
        self._has_tripped = True

    def held(self) -> str:
        """Why a person has to look before anything more is deleted; "": nobody has to. Raises UnavailableError."""
        why = self.breaker.reason()
        self._has_tripped = self._has_tripped or bool(why)
        return why

    def go_on(self) -> None:
        """Nothing holds it. Where something did, a person has looked: at this run's chunk, or at an earlier one's."""
        if self._has_tripped:
            self._let_go = self.breaker.take_granted()
            self.grant()
            self._has_tripped = False

    def lets(self, query: str, what: str) -> bool:
        """Whether a person has let exactly this go on; once, and only before anything else was deleted."""
        is_let_go = self._let_go == _about(query, what)
        if is_let_go:
            self._let_go = ""
        return is_let_go

    def interrupted(self) -> None:
        """The chunk that was judged last broke off, and will be judged again: what it has deleted is not known."""
        self._has_begun = True

    def count(self, deleted: Planned, *, is_doubtful: bool) -> None:
        """Remember what the chunk that was judged last deleted. Raises UnavailableError: nothing was remembered.

        is_doubtful: more may have been deleted than that, by a task that was run twice.
        """
        counted = Counter(dict(deleted))
        if is_doubtful or self._has_begun:
            counted |= Counter(self._at_most(self._journaled()))
        self._usage.add(counted, at_ms=self.clock.now_ms())
        query, batch_id = self._chunk.query, self._chunk.batch_id
        if counted.total() or self._let_go.startswith(_about(query, "")):
            self._let_go = ""
        self._batches[query] = (batch_id, self._deleted_of_batch() + counted.total())
        self._has_begun = False

    def grant(self) -> None:
        """A person resumed: what was deleted up to now is looked at."""
        self._usage.clear()
        self._batches.clear()
        self._has_begun, self._since_ms = False, self._chunk.since_ms

    def _with_begun(self, planned: Planned) -> Planned:
        """What an earlier try of this chunk may have deleted, and what this one would; no more than was asked for."""
        if not self._has_begun or not sum(planned.values()):
            return planned
        return self._at_most(Counter(dict(planned)) + Counter(dict(self._journaled())))

    def _journaled(self) -> Planned:
        return self.journaled(self._chunk.query, self._chunk.batch_id, self._since_ms)

    def _at_most(self, deletes: Planned) -> Planned:
        return {owner: min(n, self._most.get(owner, n)) for owner, n in deletes.items()}

    def _deleted_of_batch(self) -> int:
        batch_id, deletes = self._batches.get(self._chunk.query, (-1, 0))
        return deletes if batch_id == self._chunk.batch_id else 0

    def _exceeded(self, planned: Planned) -> str | None:
        now_ms = self.clock.now_ms()
        if now_ms - self._counted_ms >= _CENSUS_EVERY_MS:
            self._existing, self._counted_ms = self.census(), now_ms
        hour: Counter[tuple[str, str]] = self._usage.last_hour(now_ms=now_ms)
        return exceeded(self.limits, planned, hour, batch=self._deleted_of_batch(), existing=self._existing)


def _about(query: str, what: str) -> str:
    return f"{query} {what}"


def _digest(planned: Planned) -> str:
    """The same for the same deletes of the same owners."""
    rows = sorted([*owner, n] for owner, n in planned.items() if n)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
