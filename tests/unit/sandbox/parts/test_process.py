import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from streaming.sandbox.parts import process

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]
DEAF = [
    sys.executable,
    "-c",
    "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "pathlib.Path('deaf').touch(); time.sleep(60)",
]
HAS_A_CHILD = ["/bin/sh", "-c", "sleep 60 & echo $! > child; wait"]


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "part.json"
    yield path
    process.kill(path)


def start(command: list[str], record: Path) -> process.Record:
    folder = record.parent
    return process.start(command, env=os.environ, log=folder / "part.log", record=record, cwd=folder)


def wait_for(path: Path) -> None:
    for _ in range(3000):  # a machine that is full takes its time
        if path.exists() and (path.stat().st_size or path.name == "deaf"):
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} never appeared")


def test_a_started_process_is_found_again_and_leads_a_session(record: Path) -> None:
    made = start(SLEEPS, record)

    found = process.find(record)

    assert found is not None
    assert found.pid == made.pid == os.getsid(made.pid)


def test_find_waits_for_an_environment_that_is_empty_during_exec() -> None:
    environments = [{}, {}, {"A": "b"}]
    begins = SimpleNamespace(environ=lambda: environments.pop(0), status=lambda: psutil.STATUS_RUNNING)
    assert process._environment(cast("psutil.Process", begins), 60) == {"A": "b"}


def test_find_does_not_wait_forever_for_an_environment() -> None:
    ended = SimpleNamespace(environ=dict, status=lambda: psutil.STATUS_ZOMBIE)
    assert process._environment(cast("psutil.Process", ended), 60) == {}
    kernels = SimpleNamespace(environ=dict, status=lambda: psutil.STATUS_SLEEPING)
    assert process._environment(cast("psutil.Process", kernels), 0) == {}


def test_a_killed_process_is_gone_when_kill_returns(record: Path) -> None:
    made = start(SLEEPS, record)

    assert process.kill(record)

    assert not psutil.pid_exists(made.pid)
    assert process.find(record) is None
    assert not process.kill(record)


def test_a_stop_ends_child_processes(record: Path) -> None:
    start(HAS_A_CHILD, record)
    wait_for(record.parent / "child")
    child = psutil.Process(int((record.parent / "child").read_text()))

    assert process.stop(record, grace_seconds=5)

    assert child.wait(timeout=5) is None
    assert not record.exists()


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period(record: Path) -> None:
    made = start(DEAF, record)
    wait_for(record.parent / "deaf")

    assert process.stop(record, grace_seconds=0.2)

    assert not psutil.pid_exists(made.pid)


def test_a_frozen_process_is_stopped_by_sigterm(record: Path) -> None:
    made = start(SLEEPS, record)
    process.send(record, signal.SIGSTOP)

    assert process.stop(record, grace_seconds=5)

    assert not psutil.pid_exists(made.pid)


def test_another_process_with_the_recorded_pid_gets_no_signal(record: Path) -> None:
    made = start(SLEEPS, record)
    forged = {"pid": made.pid, "token": "0" * 32, "started_at": "", "command": ""}
    other = record.with_name("other.json")
    other.write_text(json.dumps(forged))

    assert process.find(other) is None
    assert not process.send(other, signal.SIGKILL)
    assert not process.stop(other, grace_seconds=0.1)

    assert process.find(record) is not None


def test_a_process_without_a_recorded_pid_is_found_by_its_token(record: Path) -> None:
    made = start(SLEEPS, record)
    record.write_text(json.dumps({**json.loads(record.read_text()), "pid": process.NOT_YET}))

    found = process.find(record)

    assert found is not None
    assert found.pid == made.pid
    assert process.stop(record, grace_seconds=5)
    assert not psutil.pid_exists(made.pid)


def test_a_process_that_never_started_does_not_run(record: Path) -> None:
    assert process.find(record) is None
    assert not process.stop(record, grace_seconds=0.1)
