"""Java and Python write one log: the same layout, the same names of levels, in UTC."""

import io
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.config.load import CONF
from streaming.logs import Log4jFormatter, LogFormat, LogLevel, start_logging

HARMLESS = r"%replace{%replace{%m}{[\\p{C}\\u2028\\u2029&&[^\\n\\t]]}{?}}{\\n}{\n    }"
THROWN = r"%replace{%replace{%ex}{[\\p{C}\\u2028\\u2029&&[^\\n\\t]]}{?}}{\\n(?=.)}{\n    }"
PATTERN = "%d{yyyy-MM-dd'T'HH:mm:ss.SSS}{UTC}Z %p %c{1}: " + HARMLESS + "%n" + THROWN


@pytest.fixture
def far_from_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_from_greenwich")
@pytest.mark.parametrize(
    ("level", "name"),
    [(logging.INFO, "INFO"), (logging.WARNING, "WARN"), (logging.ERROR, "ERROR"), (logging.CRITICAL, "FATAL")],
)
def test_a_line_of_python_is_in_utc_and_names_its_level_as_log4j_does(level: int, name: str) -> None:
    record = logging.LogRecord("ledger-reaper", level, "file.py", 1, "%s ledgers", (3,), None)
    record.created, record.msecs = 1_700_000_000.007, 7.0
    assert Log4jFormatter().format(record) == f"2023-11-14T22:13:20.007Z {name} ledger-reaper: 3 ledgers"


def test_java_has_the_same_layout() -> None:
    lines = (CONF / "log4j2.properties").read_text().splitlines()
    assert f"property.text = {PATTERN}" in lines
    chosen = {line.partition(" = ")[0].removeprefix("property.") for line in lines if line.startswith("property.")}
    assert chosen == {*LogLevel, *LogFormat}


def test_json_has_a_line_for_each_record_with_its_exception() -> None:
    root, out = logging.getLogger(), io.StringIO()
    before, level = root.handlers[:], root.level
    try:
        start_logging(out, level=LogLevel.WARNING, form=LogFormat.JSON)
        logging.getLogger("ledger-reaper").info("not logged")
        try:
            raise KeyError("k\x1b")
        except KeyError:
            logging.getLogger("ledger-reaper").warning("a\n%s", "\u202e", exc_info=True)
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.getLogger("ledger-reaper").setLevel(logging.INFO)
    [line] = out.getvalue().splitlines()
    record = json.loads(line)
    assert line.isprintable()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record.pop("time"))
    assert "KeyError: 'k\\x1b'" in record.pop("exception")
    assert record == {"level": "WARN", "logger": "ledger-reaper", "message": "a\n\u202e"}


def test_no_level_logs_the_url_of_a_webhook(tmp_path: Path) -> None:
    program = """
import sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from streaming.adapters.webhook import Webhook
from streaming.logs import LogLevel, choose_log, LogFormat
class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
server = HTTPServer(("127.0.0.1", 0), Receiver)
threading.Thread(target=server.serve_forever, daemon=True).start()
choose_log(LogLevel.DEBUG, LogFormat.TEXT)
open(sys.argv[1], "w").write(f"http://127.0.0.1:{server.server_port}/services/s3cret")
Webhook(url_file=sys.argv[1], is_secret=True).post({})
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "url")], capture_output=True, text=True, check=True
    )
    assert "s3cret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "variables"), [(["--log-format", "json"], {}), ([], {"LEDGER_REAPER_LOG_FORMAT": "JSON"})], ids=str
)
def test_an_option_or_a_variable_chooses_the_format_also_for_the_processes_below(
    options: list[str], variables: dict[str, str]
) -> None:
    program = f"""
import atexit, os, sys
from streaming.__main__ import main
atexit.register(lambda: print(os.environ["LEDGER_REAPER_LOG_FORMAT"]))
sys.argv = ["ledger-reaper", *{options}, "config", "show"]
main()
"""
    environment = os.environ | variables | {"LEDGER_REAPER_NOTHING": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.stdout.splitlines()[-1] == "json"
    assert json.loads(done.stderr.splitlines()[0])["level"] == "WARN"


def test_information_of_this_program_is_logged_and_that_of_libraries_is_not() -> None:
    root, out = logging.getLogger(), io.StringIO()
    before, level = root.handlers[:], root.level
    try:
        start_logging(out)
        logging.getLogger("ledger-reaper").info("started")
        logging.getLogger("kazoo.client").info("connected")
        logging.getLogger("kazoo.client").warning("lost")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    lines = [re.sub(r"^[0-9-]{10}T[0-9:]{8}\.[0-9]{3}Z ", "", line) for line in out.getvalue().splitlines()]
    assert lines == ["INFO ledger-reaper: started", "WARN kazoo.client: lost"]


def test_quoted_text_in_a_message_forges_no_line_and_controls_no_terminal() -> None:
    record = logging.LogRecord(
        "ledger-reaper", logging.INFO, "f.py", 1, "reading %s", ("a\n2023 INFO x\x1b[2J\u202e",), None
    )
    first, second = Log4jFormatter().format(record).splitlines()
    assert first.endswith("INFO ledger-reaper: reading a")
    assert second == "    2023 INFO x\\x1b[2J\\u202e"
