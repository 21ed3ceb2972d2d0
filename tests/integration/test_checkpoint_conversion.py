"""A service goes from one version of PySpark to another and back, killed in mid-batch.

It needs their environments: `make setup`, `make setup SPARK=4.3` and `make setup SPARK=4.2`.
"""

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from streaming.adapters.pulsar.publish import client
from streaming.clients import admin_for, reader_for
from streaming.config.settings import Settings
from streaming.queries.checkpoints import is_unfinished, location_of
from streaming.sandbox.reckoning import reckon
from streaming.spark.installed import has_connector
from streaming.state import receipts
from tests.integration.conftest import Deploy, Deployment, load_hook, payload
from udfs import columns as c

ROOT = Path(__file__).parents[2]
SPARK_4_3, SPARK_4_2 = (ROOT / folder / "bin" / "python" for folder in (".venv-spark4", ".venv-spark4.2"))
pytestmark = [pytest.mark.cluster, pytest.mark.long]

NOWHERE = "public/default/persistent/nowhere"
FIRST = 4 * 10**15  # above every id of a real cluster
MIDDLE = "after:streaming.state.receipts:Receipts.append#3"  # of a batch: four of its chunks have receipts
Address = tuple[str, int, int, int]


def _send(service: Deployment, start: int, count: int) -> None:
    """Publish requests in producer's batches of 30, so that chunks end in the middle of an entry."""
    with client(service.settings.pulsar) as opened:
        producer = opened.create_producer(
            service.settings.topics.requests[0], batching_enabled=True, batching_max_messages=30
        )
        for ledger_id in range(start, start + count):
            producer.send_async(payload(NOWHERE, ledger_id), lambda *_: None)
        producer.flush()


def _sent(settings: Settings) -> Counter[Address]:
    """Count the messages of the request topic by their addresses."""
    with admin_for(settings) as admin:
        ends = admin.last_positions(settings.topics.requests[0])
    found = reader_for(settings).read(ends)
    return Counter((each.partition, each.ledger_id, each.entry_id, each.batch_index) for each in found)


def _with_receipt(settings: Settings) -> Counter[Address]:
    """Count the receipts by the addresses of their messages."""
    return Counter(
        (row[c.SOURCE], row[c.POSITION_LEDGER], row[c.POSITION_ENTRY], row[c.POSITION_BATCH])
        for row in receipts.rows(settings.state_dir, columns=[c.SOURCE, *c.POSITION])
    )


def _assert_each_message_has_one_receipt(settings: Settings, count: int) -> None:
    sent = _sent(settings)
    assert len(sent) == count
    assert _with_receipt(settings) == sent, "each message once"
    reckoning = reckon(settings)
    assert (reckoning.requests, reckoning.open, reckoning.wrong) == (count, 0, [])


def _on(python: Path, service: Deployment, *arguments: str, code: int = 0) -> str:
    """Run a command in another environment; return its output."""
    _python, *command = service.command(*arguments)
    paths = [os.environ.get("PYTHONPATH", ""), str(ROOT)]
    environment = os.environ | {"PYSPARK_PYTHON": str(python), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [str(python), *command],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == code, done.stdout[-4000:]
    return done.stdout


@pytest.mark.skipif(not (has_connector() and SPARK_4_3.exists()), reason="needs PySpark 3.5, and 4.3 in .venv-spark4")
def test_each_message_is_processed_once_on_the_way_to_pyspark_4_and_back(
    deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = deploy(chunk_rows=100)
    settings = service.settings
    checkpoint = location_of(settings, "requests")
    service.request(payload(NOWHERE, FIRST + number) for number in range(10))
    service.run("run", "--until-idle")
    _send(service, FIRST + 10, 1000)
    with monkeypatch.context() as killing:
        load_hook(killing, "crash", CRASH_PIDS=tmp_path / "pid", CRASH_AT=MIDDLE)
        assert service.start("run", "--until-idle", log=tmp_path / "run.log").wait(200) == -signal.SIGKILL
    assert 10 < len(_with_receipt(settings)) < 1010
    assert is_unfinished(checkpoint)

    refused = _on(SPARK_4_3, service, "run", "--until-idle", code=2)
    assert "`ledger-reaper checkpoints convert` converts all checkpoints" in refused
    assert "converted 2 checkpoints" in _on(SPARK_4_3, service, "checkpoints", "convert", "--yes")
    assert "nothing was read or deleted" in service.run("run", "--until-idle", code=2)
    _send(service, FIRST + 1010, 500)
    _on(SPARK_4_3, service, "run", "--until-idle")
    done = _with_receipt(settings)
    Path(checkpoint).rename(tmp_path / "retired")
    assert "up to the newest receipt" in _on(SPARK_4_3, service, "run", "--until-idle")
    assert _with_receipt(settings) == done, "a retired checkpoint repeats nothing"
    _send(service, FIRST + 1510, 1000)
    with monkeypatch.context() as killing:
        load_hook(killing, "crash", CRASH_PIDS=tmp_path / "pid", CRASH_AT=MIDDLE)
        _on(SPARK_4_3, service, "run", "--until-idle", code=-signal.SIGKILL)
    assert 1510 < len(_with_receipt(settings)) < 2510
    assert is_unfinished(checkpoint)

    assert "converted 2 checkpoints" in service.run("checkpoints", "convert", "--yes")
    _send(service, FIRST + 2510, 50)
    service.run("run", "--until-idle")

    _assert_each_message_has_one_receipt(settings, 2560)
    assert "PROBLEM" not in service.run("check")


@pytest.mark.skipif(not (SPARK_4_3.exists() and SPARK_4_2.exists()), reason="needs .venv-spark4 and .venv-spark4.2")
def test_each_message_is_processed_once_on_the_way_from_pyspark_4_2_to_4_3_and_back(
    deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = deploy(chunk_rows=100)
    settings = service.settings
    service.request(payload(NOWHERE, FIRST + number) for number in range(10))
    _on(SPARK_4_2, service, "run", "--until-idle")
    for start, killed, next_one in ((10, SPARK_4_2, SPARK_4_3), (1060, SPARK_4_3, SPARK_4_2)):
        _send(service, FIRST + start, 1000)
        with monkeypatch.context() as killing:
            load_hook(killing, "crash", CRASH_PIDS=tmp_path / "pid", CRASH_AT=MIDDLE)
            _on(killed, service, "run", "--until-idle", code=-signal.SIGKILL)
        assert start < len(_with_receipt(settings)) < start + 1000
        assert is_unfinished(location_of(settings, "requests"))
        _send(service, FIRST + start + 1000, 50)
        _on(next_one, service, "run", "--until-idle")
        _assert_each_message_has_one_receipt(settings, start + 1050)
    assert "PROBLEM" not in _on(SPARK_4_2, service, "check")
