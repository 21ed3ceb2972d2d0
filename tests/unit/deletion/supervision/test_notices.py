"""What operators are told through a webhook: each reason once, its end, and nothing of what lasts only a moment."""

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from streaming.config.load import load
from streaming.deletion.supervision.notices import Notices, notifying
from streaming.errors import ConfigError, UnavailableError
from streaming.metrics import Holds, Metrics
from streaming.prometheus.health import Health
from tests.certificates import certificate
from tests.unit.adapters.test_webhook import PATH, receiving

LABELS = {"instance_name": "blue", "cluster": "east"}


class Operator:
    """Takes the messages, and turns a clock."""

    def __init__(self, *, is_alertmanager: bool = False) -> None:
        self.sent: list[Any] = []
        self.now_s = 0.0
        self.fails = False
        self.health = Health()
        self.notices = Notices(
            health=self.health,
            labels=lambda: LABELS,
            post=self._post,
            is_alertmanager=is_alertmanager,
            after_s=60,
            monotonic=lambda: self.now_s,
        )

    def _post(self, body: Any) -> None:
        if self.fails:
            raise UnavailableError("no answer")
        self.sent.append(body)

    def after(self, seconds: float) -> list[Any]:
        """Look at the reasons after so many seconds, and return what was sent then."""
        self.now_s += seconds
        self.sent.clear()
        self.notices.look()
        return list(self.sent)


def test_a_reason_is_told_once_when_it_lasts_and_once_when_it_ends() -> None:
    operator = Operator()
    operator.health.not_ready("paused", "PAUSED: upgrade")
    assert operator.after(0) == []
    assert operator.after(60) == [{"text": "Ledger Reaper east/blue\nPAUSED: upgrade"}]
    assert operator.after(3600) == []
    operator.health.not_ready("paused", "")
    assert operator.after(1) == []
    assert operator.after(60) == [{"text": "Ledger Reaper east/blue\nended: PAUSED: upgrade"}]
    assert operator.after(3600) == []


def test_what_lasts_a_moment_is_not_told() -> None:
    operator = Operator()
    operator.health.not_ready("query 1", "PARKED: t")
    assert operator.after(0) == []
    operator.health.not_ready("query 1", "")
    assert operator.after(59) == []
    operator.health.not_ready("query 1", "PARKED: t")
    assert operator.after(2) == []
    assert operator.after(60) != []
    operator.health.not_ready("query 1", "")
    assert operator.after(1) == []
    operator.health.not_ready("query 1", "PARKED: t")  # back before its end was told
    assert operator.after(100) == []


def test_a_start_is_not_told_and_alarms_are() -> None:
    operator, metrics = Operator(), Metrics()
    operator.notices.health = metrics.health
    metrics.starting("it does not read requests yet")
    metrics.holds(Holds(limit="60 deletes in an hour"), 0)
    metrics.health.alarm("audit", "DATA MISSING: 1")
    assert operator.after(0) == []
    [message] = operator.after(60)
    assert message["text"].splitlines()[1:] == [
        "LIMIT REACHED: 60 deletes in an hour; see `ledger-reaper status`",
        "DATA MISSING: 1",
    ]


def test_a_message_that_was_not_sent_is_sent_later(caplog: pytest.LogCaptureFixture) -> None:
    operator = Operator()
    operator.fails = True
    operator.health.not_ready("paused", "PAUSED: upgrade")
    operator.after(0)
    with caplog.at_level(logging.WARNING):
        assert operator.after(60) == operator.after(5) == []
    assert caplog.text.count("a message to operators was not sent: no answer") == 1
    operator.fails = False
    assert len(operator.after(5)) == 1


def test_alertmanager_gets_alerts_again_and_again_until_they_end() -> None:
    operator = Operator(is_alertmanager=True)
    operator.health.not_ready("paused", "PAUSED: upgrade")
    operator.after(0)
    [[alert]] = operator.after(60)
    assert alert["labels"] == {"alertname": "LedgerReaper", "subject": "paused", "severity": "warning", **LABELS}
    assert alert["annotations"] == {"summary": "PAUSED: upgrade"}
    assert "endsAt" not in alert
    assert operator.after(30) == []
    [[again]] = operator.after(30)
    assert again["startsAt"] == alert["startsAt"]
    operator.health.not_ready("paused", "")
    operator.after(1)
    [[ended]] = operator.after(60)
    assert ended["startsAt"] == alert["startsAt"] < ended["endsAt"]


def test_names_of_others_mention_nobody_and_forge_no_line() -> None:
    operator = Operator()
    operator.health.not_ready("query 1", "PARKED: <!channel>\nended: all is well\x1b" + "x" * 5000)
    operator.after(0)
    [message] = operator.after(60)
    assert message["text"].count("\n") == 1
    assert "&lt;!channel&gt;; ended: all is well\\x1b" in message["text"]
    assert len(message["text"]) < 1100


def test_messages_go_to_the_url_in_the_file_which_no_log_shows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, config = tmp_path / "url", tmp_path / "my.toml"
    certified = certificate(tmp_path, "127.0.0.1")
    config.write_text(f'[notify]\nwebhook_file = "{url}"\nca_file = "{certified[0]}"\nafter_seconds = 0\n')
    health = Health()
    health.not_ready("paused", "PAUSED: upgrade")
    with receiving(certified) as receiver, caplog.at_level(logging.DEBUG, "ledger-reaper"):
        url.write_text(receiver.url)
        run = notifying(load(config), health, lambda: LABELS)._work.run
        run()
        assert [body for _, _, body in receiver.taken] == [{"text": "Ledger Reaper east/blue\nPAUSED: upgrade"}]
        health.alarm("audit", "DATA MISSING: 1")
        receiver.status = 403
        run()
        assert "refused the message with 403" in caplog.text
        url.write_text(f"http://127.0.0.1:1{PATH}\n")  # the file is read for each message
        run()
    assert "does not answer: ConnectError" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_webhook_that_would_show_its_secret_is_refused_at_the_start(tmp_path: Path) -> None:
    url, config = tmp_path / "url", tmp_path / "my.toml"
    url.write_text("http://192.0.2.1/s3cret")
    for form, message in (("slack", "must be https:"), ("alertmanager", "")):
        config.write_text(f'[notify]\nwebhook_file = "{url}"\nformat = "{form}"\n')
        with pytest.raises(ConfigError, match=message) if message else nullcontext():
            notifying(load(config), Health(), lambda: LABELS)


def test_only_known_formats_are_taken(tmp_path: Path) -> None:
    config = tmp_path / "my.toml"
    config.write_text('[notify]\nformat = "teams"\n')
    with pytest.raises(ConfigError, match=r"notify.format: \"teams\" must be 'slack' or 'alertmanager'"):
        load(config)
