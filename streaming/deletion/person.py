"""What waits for a person: where nothing else is left, `run --until-idle` ends, and says what waits and for which word.

1. A chunk that is held at the gate (a pause, a limit, doubt about the sources) keeps the turn, so all else waits too.
2. A request that was put off as SOURCE_SHRANK comes back as SOURCE_SHRANK until a person accepts the topic's list.
   Once the person has, the next retry goes by that, so we wait for it.
3. The same holds for requests of a tenant that is held (TENANT_HELD), until a person resumes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streaming.clock import Clock
from streaming.deletion.gate import Gate
from streaming.deletion.retries import DueLoop
from streaming.in_use.baseline import is_accepted
from streaming.state.receipts import newest_answers
from streaming.state.waiting import Waiting, origins
from udfs import columns as c
from udfs.records import Reason
from udfs.references import tenant_of_key
from udfs.retry import MAX_DELAY_MS
from udfs.units import DAY_MS

_NAMED_AT_MOST = 5


@dataclass(slots=True)
class _Kept:
    """An owner's requests that a person's word would free. at_ms: of the oldest of these answers.

    whom: the topic whose list shrank, or the tenant that is held.
    """

    reason: str
    whom: str
    at_ms: int
    requests: int = 1


@dataclass(slots=True)
class WaitsForPerson:
    """One per service. accepted: reads which owners a person has looked at (`ledger-reaper accept`), and when (ms)."""

    state_dir: str
    gate: Gate
    waiting: Waiting
    due: DueLoop
    accepted: Callable[[], Mapping[str, int]]
    clock: Clock
    _looked_at: tuple[Any, ...] = ()
    _kept: dict[str, _Kept] = field(default_factory=dict)

    def why(self, only_retries_wait: Callable[[], bool]) -> str:
        """Return what a person has to do before anything goes on; "" where something goes on by itself.

        only_retries_wait: whether nothing is left but retries that are not due. Raises UnavailableError.
        """
        if held := self.gate.held:
            return held if "ledger-reaper resume" in held else f"{held}; `ledger-reaper resume` ends the pause"
        kept = self._kept_owners()
        if not kept or not only_retries_wait():
            return ""
        accepted = self.accepted()
        if any(is_accepted(key, each.at_ms, accepted) for key, each in kept.items()):
            return ""
        return _told(sorted(kept.values(), key=lambda each: each.whom))

    def _kept_owners(self) -> Mapping[str, _Kept]:
        """By owner, the requests that wait for a person; none where any waits for something else, or is due."""
        if not self.due.is_asleep():
            return {}
        looked_at = (self.due.passes, self.waiting.next_ms(), self.waiting.count())
        if looked_at != self._looked_at:  # nothing else changes what was answered last
            self._kept, self._looked_at = self._look(), looked_at
        return self._kept

    def _look(self) -> dict[str, _Kept]:
        found: dict[str, _Kept] = {}
        since_ms = self.clock.now_ms() - MAX_DELAY_MS - DAY_MS  # no retry waits longer than a week
        for some in origins(self.state_dir, self.waiting.done_ms):
            answers = newest_answers(self.state_dir, set(some), since_ms)
            for origin in some:
                answer = answers.get(origin, {})
                if answer.get(c.REASON) not in (Reason.SOURCE_SHRANK, Reason.TENANT_HELD):
                    return {}
                known = found.get(answer[c.REFERENCE_KEY])
                if known is None:
                    found[answer[c.REFERENCE_KEY]] = _kept(answer)
                else:
                    known.requests += 1
                    known.at_ms = min(known.at_ms, answer[c.AT_MS])
        return found


def _kept(answer: Mapping[str, Any]) -> _Kept:
    is_held = answer[c.REASON] == Reason.TENANT_HELD
    whom = tenant_of_key(answer[c.REFERENCE_KEY]) if is_held else answer[c.TOPIC_NAME] or ""
    return _Kept(answer[c.REASON], whom, answer[c.AT_MS])


def _told(kept: Sequence[_Kept]) -> str:
    held = [each for each in kept if each.reason == Reason.TENANT_HELD]
    shrunk = [each for each in kept if each.reason == Reason.SOURCE_SHRANK]
    return ". ".join(_told_held(held) + _told_shrunk(shrunk))


def _told_held(held: Sequence[_Kept]) -> list[str]:
    tenants = sorted({each.whom for each in held})
    if not tenants:
        return []
    return [
        f"{_requests(held)} requests are kept as TENANT_HELD, because most known owners of {_some(tenants)} are gone "
        "at once. Find out why; if that is right: `ledger-reaper resume`"
    ]


def _told_shrunk(shrunk: Sequence[_Kept]) -> list[str]:
    if not shrunk:
        return []
    commands = _some([f"`ledger-reaper accept --topic {each.whom}`" for each in shrunk])
    return [
        f"{_requests(shrunk)} requests are kept as SOURCE_SHRANK, because their topics' lists suddenly name far fewer "
        f"ledgers. Find out why; if that is right: {commands}"
    ]


def _requests(kept: Iterable[_Kept]) -> int:
    return sum(each.requests for each in kept)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f", and {more} more; `ledger-reaper receipts` names them" * (more > 0))
