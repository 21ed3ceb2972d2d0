"""What waits for a person: where nothing else is left, `run --until-idle` ends, and says what waits and for which word.

1. A chunk that is held at the gate (a pause, a limit, doubt about the sources) keeps the turn, so all else waits too.
2. A request that was put off as SOURCE_SHRANK or TENANT_HELD comes back as such until a person has looked. Once the
   person has, the next retry goes by that, so we wait for it.
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
from streaming.terminal import count_of
from udfs import columns as c
from udfs.paths import tenant_of
from udfs.records import Reason
from udfs.retry import MAX_DELAY_MS
from udfs.units import DAY_MS

_NAMED_AT_MOST = 5
# These reasons stay until a person has looked. The word that lets such a request go on, and why it was kept:
_ACCEPT, _RESUME = "accept --topic {topic}", "resume --tenant {tenant}"
_WAITS_FOR: Mapping[str, tuple[str, str]] = {
    Reason.SOURCE_SHRANK: (_ACCEPT, "their topics' lists suddenly name far fewer ledgers"),
    Reason.TENANT_HELD: (_RESUME, "most of the topics known of their tenants are gone at once"),
}


@dataclass(slots=True)
class _Kept:
    """Requests of one owner that were kept for one reason. at_ms: of the oldest of these answers."""

    reason: str
    topic: str
    at_ms: int
    requests: int = 1


@dataclass(slots=True)
class OperatorAction:
    """One per service. accepted: reads which owners a person has looked at (`ledger-reaper accept`), and when (ms)."""

    state_dir: str
    gate: Gate
    waiting: Waiting
    due: DueLoop
    accepted: Callable[[], Mapping[str, int]]
    clock: Clock
    _looked_at: tuple[Any, ...] = ()
    _kept: Mapping[tuple[str, str], _Kept] = field(default_factory=dict)

    def why(self, only_retries_wait: Callable[[], bool]) -> str:
        """Return what a person has to do before anything goes on; "" where something goes on by itself.

        only_retries_wait: whether nothing is left but retries that are not due. Where nobody can tell, we wait on.
        """
        if held := self.gate.held:
            return held if "ledger-reaper resume" in held else f"{held}; `ledger-reaper resume` ends the pause"
        try:
            kept = self._kept_by_owner()
            accepted = self.accepted() if kept and only_retries_wait() else None
        except UnavailableError:
            return ""
        if accepted is None or any(is_accepted(key, each.at_ms, accepted) for (key, _reason), each in kept.items()):
            return ""
        return _told(sorted(kept.values(), key=lambda each: (each.reason, each.topic)))

    def _kept_by_owner(self) -> Mapping[tuple[str, str], _Kept]:
        """By owner and reason, the requests that a person keeps waiting; none where any waits otherwise, or is due."""
        if not self.due.is_asleep():
            return {}
        looked_at = (self.due.passes, self.waiting.next_ms(), self.waiting.count())
        if looked_at != self._looked_at:  # nothing else changes what was answered last
            self._kept, self._looked_at = self._look(), looked_at
        return self._kept

    def _look(self) -> dict[tuple[str, str], _Kept]:
        found: dict[tuple[str, str], _Kept] = {}
        since_ms = self.clock.now_ms() - MAX_DELAY_MS - DAY_MS  # no retry waits longer than a week
        for some in origins(self.state_dir, self.waiting.done_ms):
            answers = newest_answers(self.state_dir, set(some), since_ms)
            for origin in some:
                answer = answers.get(origin, {})
                if answer.get(c.REASON) not in _WAITS_FOR:
                    return {}
                key, at_ms = (answer[c.REFERENCE_KEY], answer[c.REASON]), answer[c.AT_MS]
                known = found.setdefault(key, _Kept(answer[c.REASON], answer[c.TOPIC_NAME] or "", at_ms, requests=0))
                known.requests += 1
                known.at_ms = min(known.at_ms, at_ms)
        return found


def _told(kept: list[_Kept]) -> str:
    return "; and ".join(
        _told_of(reason, [each for each in kept if each.reason == reason])
        for reason in dict.fromkeys(each.reason for each in kept)
    )


def _told_of(reason: str, kept: list[_Kept]) -> str:
    word, why = _WAITS_FOR[reason]
    commands = list(
        dict.fromkeys(
            f"`ledger-reaper {word.format(topic=each.topic, tenant=tenant_of(each.topic) if each.topic else '')}`"
            for each in kept
        )
    )
    if len(commands) > _NAMED_AT_MOST:
        commands[_NAMED_AT_MOST:] = [f"and {len(commands) - _NAMED_AT_MOST} more; `ledger-reaper receipts` names them"]
    requests = count_of(sum(each.requests for each in kept), "request is", "requests are")
    return f"{requests} kept as {reason}, because {why}. Find out why; if that is right: {', '.join(commands)}"
