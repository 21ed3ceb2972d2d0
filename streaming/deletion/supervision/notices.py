"""Tells operators, through a webhook, what the service waits for and what they have to look at.

A reason is reported once it has lasted for notify.after_seconds, and its end once the reason has been away as long. So
a topic that is parked for a moment causes no message. A message that can't be sent is tried again.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from streaming.adapters.webhook import Webhook
from streaming.beside import Beside, Work, logged
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.prometheus.health import Health
from streaming.terminal import plain

log = logging.getLogger("ledger-reaper")

_EVERY_S = 5.0
_REPEAT_S = 60.0  # Alertmanager forgets an alert that is not posted again within its resolve_timeout (5 minutes)
_LONGEST = 1000  # characters of a reason


@dataclass(slots=True)
class _Reason:
    text: str
    since_s: float  # monotonic: when the reason came, or went
    started: datetime
    is_there: bool = True
    is_reported: bool = False  # a message reported it, and none its end
    posted_s: float = float("-inf")  # monotonic: when it was last sent


@dataclass(slots=True, kw_only=True)
class Notices:
    """One per service."""

    health: Health
    labels: Callable[[], Mapping[str, str]]  # of the service's metrics
    post: Callable[[Any], None]  # sends a body. Raises ReaperError
    is_alertmanager: bool
    after_s: float
    monotonic: Callable[[], float] = time.monotonic
    _reasons: dict[str, _Reason] = field(default_factory=dict)
    _failure: str = ""

    def look(self) -> None:
        """Compare the reasons with those reported, and send what is due. A failure that repeats is logged once."""
        now_s, present = self.monotonic(), self.health.to_report
        self._update(present, now_s)
        due = {subject: reason for subject, reason in self._reasons.items() if self._is_due(reason, now_s)}
        if due:
            try:
                self.post(self._alerts(due) if self.is_alertmanager else self._message(due))
            except ReaperError as error:
                if str(error) != self._failure:
                    log.warning("a message to operators was not sent: %s", error)
                self._failure = str(error)
                return
            self._failure = ""
        for subject, reason in due.items():
            reason.is_reported, reason.posted_s = reason.is_there, now_s
            if not reason.is_there:
                del self._reasons[subject]

    def _update(self, present: Mapping[str, str], now_s: float) -> None:
        for subject, text in present.items():
            reason = self._reasons.get(subject)
            if reason is None:
                self._reasons[subject] = _Reason(text, now_s, datetime.now(UTC))
            elif not reason.is_there:
                reason.is_there, reason.since_s, reason.text = True, now_s, text
            else:
                reason.text = text
        for subject, reason in list(self._reasons.items()):
            if subject not in present and reason.is_there:
                if not reason.is_reported:
                    del self._reasons[subject]
                else:
                    reason.is_there, reason.since_s = False, now_s

    def _is_due(self, reason: _Reason, now_s: float) -> bool:
        if reason.is_there and reason.is_reported:
            return self.is_alertmanager and now_s - reason.posted_s >= _REPEAT_S
        return now_s - reason.since_s >= self.after_s

    def _message(self, due: Mapping[str, _Reason]) -> dict[str, str]:
        who = "/".join(filter(None, (self.labels().get("cluster", ""), self.labels().get("instance_name", ""))))
        lines = [f"{'' if reason.is_there else 'ended: '}{_text(reason)}" for reason in due.values()]
        # Slack's own markup, such as <!channel>, needs these three characters
        text = "\n".join([f"Ledger Reaper {who}", *lines])
        return {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}

    def _alerts(self, due: Mapping[str, _Reason]) -> list[dict[str, Any]]:
        return [
            {
                "labels": {"alertname": "LedgerReaper", "subject": subject, "severity": "warning", **self.labels()},
                "annotations": {"summary": _text(reason)},
                "startsAt": reason.started.isoformat(),
                **({} if reason.is_there else {"endsAt": datetime.now(UTC).isoformat()}),
            }
            for subject, reason in due.items()
        ]


def _text(reason: _Reason) -> str:
    # a reason names topics, whose names tenants choose
    return plain(reason.text.replace("\n", "; "))[:_LONGEST]


def notifying(settings: Settings, health: Health, labels: Callable[[], Mapping[str, str]]) -> Beside:
    """Return the thread that sends the messages of [notify]. Raises ConfigError for unusable files."""
    notify = settings.notify
    webhook = Webhook.of(notify)
    webhook.check()
    notices = Notices(
        health=health,
        labels=labels,
        post=webhook.post,
        is_alertmanager=notify.format == "alertmanager",
        after_s=notify.after_seconds,
    )
    on_failure = logged("messages to operators", _EVERY_S)
    return Beside(Work(name="notices", run=notices.look, every_s=_EVERY_S, on_failure=on_failure))
