"""The Python processes of our Spark source, one for each query: they start again after a fault, and end with Spark."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.combinations import with_source
from tests.integration.conftest import Deploy, Deployment, kill, killed_at_the_end, payload, wait_until

pytestmark = [pytest.mark.cluster, with_source]

NOWHERE, FIRST = "public/default/persistent/nowhere", 5 * 10**15


def _sources(running: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the processes of the queries' sources."""
    return [
        process
        for process in _group(running)
        if any("python_streaming_source_runner" in argument for argument in process.info["cmdline"] or ())
    ]


def _group(running: subprocess.Popen[bytes]) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["cmdline"]):
        try:
            if os.getpgid(process.pid) == running.pid:
                yield process
        except ProcessLookupError:
            continue


def test_a_source_that_is_killed_starts_again_and_none_outlives_the_service(deploy: Deploy, tmp_path: Path) -> None:
    service: Deployment = deploy()
    log = tmp_path / "run.log"
    with killed_at_the_end(service.start("run", log=log)) as running:
        service.request([payload(NOWHERE, FIRST)])
        wait_until(lambda: service.outcomes().total() == 1, running, log)
        first = _sources(running)
        assert len(first) == 2, "of the request topic, and of RETRY"
        for process in first:
            process.kill()
        service.request([payload(NOWHERE, FIRST + 1)])
        wait_until(lambda: service.outcomes().total() == 2, running, log)
        wait_until(lambda: len({*_sources(running)} - {*first}) == 2, running, log)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
        wait_until_gone(running)


def test_no_process_outlives_a_service_that_is_killed(deploy: Deploy, tmp_path: Path) -> None:
    service: Deployment = deploy()
    log = tmp_path / "run.log"
    running = service.start("run", log=log)
    try:
        wait_until(lambda: len(_sources(running)) == 2, running, log)
        running.kill()
        running.wait()
        wait_until_gone(running)
    finally:
        kill(running)


def test_the_log_of_a_run_without_work_ends_with_its_last_line(deploy: Deploy) -> None:
    _before, last, after = deploy().run("run", "--until-idle").partition("stopped; all finished\n")
    assert last
    assert after == ""


def wait_until_gone(running: subprocess.Popen[bytes]) -> None:
    """Wait until the JVM and the Python processes of a service that has ended are gone, too."""
    gone, alive = psutil.wait_procs([*_group(running)], timeout=60)
    assert not alive, gone
