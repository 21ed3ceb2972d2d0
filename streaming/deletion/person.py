"""What waits for a person: where nothing else is left, `run --until-idle` ends, and says what waits and for which word.

1. A chunk that is held at the gate (a pause, a limit, doubt about the sources) keeps the turn, so all else waits too.
2. A request that was put off as SOURCE_SHRANK comes back as SOURCE_SHRANK until a person accepts the topic's list.
   Once the person has, the next retry goes by that, so we wait for it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streaming.clock import Clock
from streaming.deletion.gate import Gate
from streaming.deletion.retries import DueLoop
from streaming.errors import UnavailableError
from streaming.in_use.baseline import is_accepted
from streaming.state.receipts import newest_answers
from streaming.state.waiting import Waiting, origins
from udfs import columns as c
from udfs.records import Reason
from udfs.retry import MAX_DELAY_MS
from udfs.units import DAY_MS

_NAMED_AT_MOST = 5


@dataclass(slots=True)
class _Shrunk:
    """Requests that were put off because their topic's list shrank. at_ms: of the oldest of these answers."""

    topic: str
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
    _shrunk: dict[str, _Shrunk] = field(default_factory=dict)

    def why(self, only_retries_wait: Callable[[], bool]) -> str:
        """Return what a person has to do before anything goes on; "" where something goes on by itself.

        only_retries_wait: whether nothing is left but retries that are not due. Where nobody can tell, we wait on.
        """
        if held := self.gate.held:
            return held if "ledger-reaper resume" in held else f"{held}; `ledger-reaper resume` ends the pause"
        try:
            shrunk = self._shrunk_owners()
            accepted = self.accepted() if shrunk and only_retries_wait() else None
        except UnavailableError:
            return ""
        if accepted is None or any(is_accepted(key, each.at_ms, accepted) for key, each in shrunk.items()):
            return ""
        return _told(sorted(shrunk.values(), key=lambda each: each.topic))

    def _shrunk_owners(self) -> Mapping[str, _Shrunk]:
        """By owner, the requests that wait as SOURCE_SHRANK; none where any waits for something else, or is due."""
        if not self.due.is_asleep():
            return {}
        looked_at = (self.due.passes, self.waiting.next_ms(), self.waiting.count())
        if looked_at != self._looked_at:  # nothing else changes what was answered last
            self._shrunk, self._looked_at = self._look(), looked_at
        return self._shrunk

    def _look(self) -> dict[str, _Shrunk]:
        found: dict[str, _Shrunk] = {}
        since_ms = self.clock.now_ms() - MAX_DELAY_MS - DAY_MS  # no retry waits longer than a week
        for some in origins(self.state_dir, self.waiting.done_ms):
            answers = newest_answers(self.state_dir, set(some), since_ms)
            for origin in some:
                answer = answers.get(origin, {})
                if answer.get(c.REASON) != Reason.SOURCE_SHRANK:
                    return {}
                known = found.get(answer[c.REFERENCE_KEY])
                if known is None:
                    found[answer[c.REFERENCE_KEY]] = _Shrunk(answer[c.TOPIC_NAME] or "", answer[c.AT_MS])
                else:
                    known.requests += 1
                    known.at_ms = min(known.at_ms, answer[c.AT_MS])
        return found


def _told(shrunk: list[_Shrunk]) -> str:
    requests = sum(each.requests for each in shrunk)
    commands = [f"`ledger-reaper accept --topic {each.topic}`" for each in shrunk[:_NAMED_AT_MOST]]
    if len(shrunk) > _NAMED_AT_MOST:
        commands.append(f"and {len(shrunk) - _NAMED_AT_MOST} more; `ledger-reaper receipts` names them")
    return (
        f"{requests} requests are kept as SOURCE_SHRANK, because their topics' lists suddenly name far fewer ledgers. "
        f"Find out why; if that is right: {', '.join(commands)}"
    )
