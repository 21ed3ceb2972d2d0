"""What operators are told through a webhook: each reason once, its end, and nothing of what lasts only a moment."""

import json
import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from streaming.adapters.webhook import post, url_in
from streaming.config.load import load
from streaming.deletion.supervision.notices import Notices, notifying
from streaming.errors import ConfigError, UnavailableError
from streaming.metrics import Holds, Metrics
from streaming.prometheus.health import Health

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


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append((self.path, self.headers["Content-Type"], json.loads(body)))
            self.send_response(status[0])
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    taken: list[tuple[str, str, Any]] = []
    status = [200]
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    serving.taken, serving.status = taken, status  # type: ignore[attr-defined]
    Thread(target=serving.serve_forever, daemon=True).start()
    yield serving
    serving.shutdown()
    serving.server_close()


def test_messages_go_to_the_url_in_the_file_which_no_log_shows(
    server: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, config = tmp_path / "url", tmp_path / "my.toml"
    url.write_text(f"http://127.0.0.1:{server.server_port}/services/T0/s3cret\n")
    config.write_text(f'[notify]\nwebhook_file = "{url}"\nafter_seconds = 0\n')
    health = Health()
    health.not_ready("paused", "PAUSED: upgrade")
    run = notifying(load(config), health, lambda: LABELS)._work.run
    with caplog.at_level(logging.DEBUG, "ledger-reaper"):
        run()
        assert server.taken == [
            ("/services/T0/s3cret", "application/json", {"text": "Ledger Reaper east/blue\nPAUSED: upgrade"})
        ]
        health.alarm("audit", "DATA MISSING: 1")
        for status, said in (
            (403, "refused the message with 403"),
            (302, "refused the message with 302"),
            (500, "500"),
        ):
            server.status[0] = status
            run()
            assert said in caplog.text
        url.write_text("http://127.0.0.1:1/services/T0/s3cret\n")  # the file is read for each message
        run()
    assert "does not answer: ConnectError" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    "content", ["", "slack.com/x", "ftp://slack.com/s3cret", "http://[s3cret", "http://a b/s3cret"]
)
def test_a_file_without_a_url_is_refused_at_the_start_without_its_content(tmp_path: Path, content: str) -> None:
    url, config = tmp_path / "url", tmp_path / "my.toml"
    url.write_text(content)
    config.write_text(f'[notify]\nwebhook_file = "{url}"\n')
    with pytest.raises(ConfigError, match="must contain one URL") as refused:
        notifying(load(config), Health(), lambda: LABELS)
    assert "s3cret" not in str(refused.value)
    with pytest.raises(ConfigError, match="can't be read"):
        url_in(str(tmp_path / "nowhere"))


def test_only_known_formats_are_taken(tmp_path: Path) -> None:
    config = tmp_path / "my.toml"
    config.write_text('[notify]\nformat = "teams"\n')
    with pytest.raises(ConfigError, match=r"notify.format: \"teams\" must be 'slack' or 'alertmanager'"):
        load(config)


@pytest.mark.parametrize(
    "host",
    ["a..b", "a" * 300, "xn--", "127.0.0.1:99999", "127.0.0.1:abc"],
    ids=["empty label", "long label", "no Punycode", "large port", "no port"],
)
def test_a_webhook_that_no_request_can_name_is_a_failure_without_its_url(tmp_path: Path, host: str) -> None:
    (tmp_path / "url").write_text(f"http://{host}/s3cret")
    with pytest.raises(UnavailableError, match="does not answer") as failed:
        post(str(tmp_path / "url"), {})
    assert "s3cret" not in str(failed.value)
