"""Finds requests that only the operator can unblock, so that `run --until-idle` exits and names the command for it.

1. A chunk that is held at the gate (a pause, a limit, doubt about the sources) keeps the fair lock, so all other work
   waits too.
2. A request that was delayed as SOURCE_SHRANK or TENANT_HELD is delayed again until the operator has decided.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streaming.clock import Clock
from streaming.deletion.gate import PAUSED, Gate
from streaming.deletion.retries import DueLoop
from streaming.errors import UnavailableError
from streaming.in_use.baseline import is_accepted
from streaming.state.receipts import newest_answers
from streaming.state.waiting import Waiting, origins
from streaming.terminal import count_of
from udfs import columns as c
from udfs.paths import tenant_of
from udfs.records import Reason
from udfs.units import DAY_MS, MAX_DELAY_MS

_NAMED_AT_MOST = 5
# These reasons stay until the operator has decided: the command that unblocks such a request, and why it was kept.
_ACCEPT, _RESUME = "accept --topic {topic}", "resume --tenant {tenant}"
_WAITS_FOR: Mapping[str, tuple[str, str]] = {
    Reason.SOURCE_SHRANK: (_ACCEPT, "their topics' lists suddenly name far fewer ledgers"),
    Reason.TENANT_HELD: (_RESUME, "most of the known topics of their tenants, or ledgers in use, are gone"),
}


@dataclass(slots=True)
class _Kept:
    """Requests of one owner that were kept for one reason."""

    reason: str
    topic: str
    at_ms: int  # of the oldest of these answers
    requests: int = 0


@dataclass(slots=True, kw_only=True)
class OperatorAction:
    """One per service."""

    state_dir: str
    gate: Gate
    waiting: Waiting
    due: DueLoop
    accepted: Callable[[], Mapping[str, int]]  # owner -> when (ms) the operator accepted it (`ledger-reaper accept`)
    clock: Clock
    _checked: tuple[Any, ...] = ()
    _kept: Mapping[tuple[str, str], _Kept] = field(default_factory=dict)

    def why(self, only_retries_wait: Callable[[], bool]) -> str:
        """Return what the operator must do before any work continues; "" if some work continues by itself.

        only_retries_wait: whether nothing is left but retries that are not due. If that is unknown, the answer is "".
        """
        if held := self.gate.held:
            return f"{held}; `ledger-reaper resume` ends the pause" if held.startswith(PAUSED) else held
        try:
            kept = self._kept_by_owner()
            accepted = self.accepted() if kept and only_retries_wait() else None
        except UnavailableError:
            return ""
        # after the operator's decision the next retry follows it, so the service waits for that retry
        if accepted is None or any(is_accepted(key, owner.at_ms, accepted) for (key, _reason), owner in kept.items()):
            return ""
        return _instructions(sorted(kept.values(), key=lambda owner: (owner.reason, owner.topic)))

    def _kept_by_owner(self) -> Mapping[tuple[str, str], _Kept]:
        """Return, by owner and reason, requests that wait for the operator; empty if any other waits or any is due."""
        if not self.due.is_asleep():
            return {}
        state = (self.due.passes, self.waiting.next_ms(), self.waiting.count())
        if state != self._checked:  # the newest answers change only together with these
            self._kept, self._checked = self._read_kept(), state
        return self._kept

    def _read_kept(self) -> dict[tuple[str, str], _Kept]:
        kept: dict[tuple[str, str], _Kept] = {}
        since_ms = self.clock.now_ms() - MAX_DELAY_MS - DAY_MS  # no retry waits longer than a week
        for batch in origins(self.state_dir, self.waiting.done_ms):
            answers = newest_answers(self.state_dir, set(batch), since_ms)
            for origin in batch:
                answer = answers.get(origin, {})
                if answer.get(c.REASON) not in _WAITS_FOR:
                    return {}
                key, at_ms = (answer[c.REFERENCE_KEY], answer[c.REASON]), answer[c.AT_MS]
                owner = kept.setdefault(key, _Kept(answer[c.REASON], answer[c.TOPIC_NAME] or "", at_ms))
                owner.requests += 1
                owner.at_ms = min(owner.at_ms, at_ms)
        return kept


def _instructions(kept: list[_Kept]) -> str:
    return "; and ".join(
        _instruction(reason, [owner for owner in kept if owner.reason == reason])
        for reason in dict.fromkeys(owner.reason for owner in kept)
    )


def _instruction(reason: str, kept: list[_Kept]) -> str:
    command, why = _WAITS_FOR[reason]
    commands = list(
        dict.fromkeys(
            f"`ledger-reaper {command.format(topic=owner.topic, tenant=tenant_of(owner.topic) if owner.topic else '')}`"
            for owner in kept
        )
    )
    if len(commands) > _NAMED_AT_MOST:
        commands[_NAMED_AT_MOST:] = [f"and {len(commands) - _NAMED_AT_MOST} more; `ledger-reaper receipts` names them"]
    requests = count_of(sum(owner.requests for owner in kept), "request is", "requests are")
    return f"{requests} kept as {reason}, because {why}. Find out why; if that is right: {', '.join(commands)}"
