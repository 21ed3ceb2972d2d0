"""A start of Spark changes neither our process nor the options of spark-submit."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from pyspark import SparkContext, accumulators
from pyspark.sql import SparkSession

from streaming.config.load import load
from streaming.errors import ConfigError
from streaming.spark.connector_lz4 import SAFE
from streaming.spark.installed import has_connector
from streaming.spark.session import Jars, is_one_process, load_with_spark, log_refusals_in_one_line, start
from tests.combinations import with_connector
from tests.shared_classes import SOONER

START = """
import os, signal, socket, sys, threading, time, urllib.request
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from streaming.config.load import load
from streaming.spark.connector_lz4 import decompressor_of
from streaming.spark.installed import has_connector
from streaming.spark.session import fetched_jars, has_ended, start

def ours(number, frame):
    print("signal", number)

signal.signal(signal.SIGINT, ours)
settings = load(Path(sys.argv[1]))
spark = start(settings, fetched_jars(settings))
signal.raise_signal(signal.SIGINT)
numbers = spark.sparkContext.parallelize(range(3), 1)
print(numbers.filter(lambda _: ".zip" not in os.environ["PYTHONPATH"]).count(), "rows")
print(Path(settings.spark.local_dir).is_dir() and len(list(Path(settings.spark.local_dir).iterdir())), "folder")

log = spark._jvm.org.apache.logging.log4j.LogManager.getLogger("a.B")
log.error("topic a\\n2026 INFO forged\\x1b[2J\\u202e")
log.error("with it", spark._jvm.java.lang.RuntimeException("key b\\n2026 INFO forged\\x1b[2J\\u202e"))
log.error("the next")

url = spark.sparkContext.uiWebUrl
print("at", urlsplit(url).hostname)
for address in ("127.0.0.1", "127.0.0.2"):
    try:
        socket.create_connection((address, urlsplit(url).port), 5).close()
        print(address, "answers")
    except ConnectionRefusedError:
        print(address, "refused")

def endless():
    try:
        spark.sparkContext.parallelize(range(1), 1).foreach(lambda _: time.sleep(300))
    except Exception:
        pass

threading.Thread(target=endless, daemon=True).start()
tracker = spark.sparkContext.statusTracker()
while not (tracker.getActiveJobsIds() and tracker.getActiveStageIds()):
    time.sleep(0.1)
time.sleep(1)
(job,) = tracker.getActiveJobsIds()
for page in ("jobs/", "stages/"):
    text = urllib.request.urlopen(f"{url}/{page}").read().decode()
    print(page, "active" if "Active" in text else "nothing", "kill" if "/kill/" in text else "no kill")
try:
    urllib.request.urlopen(urllib.request.Request(f"{url}/jobs/job/kill/?id={job}", method="POST")).close()
except HTTPError as refused:  # Spark 4
    if refused.code != 403:
        raise
time.sleep(2)
print("runs on" if job in tracker.getActiveJobsIds() else "ended")
spark.sparkContext.cancelAllJobs()

print(has_connector() and decompressor_of(spark), spark._jvm.net.jpountz.lz4.LZ4Factory.fastestInstance().toString())

ended = [has_ended(spark)]
spark.sparkContext._jsc.sc().stop()  # as a stop by the master
print("ended", *ended, has_ended(spark))
spark.stop()
print("ended", has_ended(spark))
"""


class Started(NamedTuple):
    """A program that has started Spark, used it and stopped it."""

    output: list[str]
    errors: list[str]
    left: list[Path]  # in the folder of temporary files


def _started(folder: Path, option: str = "") -> Started:
    config, local_dir = folder / "config.toml", folder / "with a blank"
    config.write_text(
        f'[spark]\nui_port = 0\nlocal_dir = "{local_dir}"\njava_options = "-Xshare:auto {SOONER}"\n{option}\n'
        f'[state]\ndir = "{folder}/state"\n[checkpoints]\ndir = "{folder}/checkpoints"\n'
    )
    completed = subprocess.run(
        [sys.executable, "-c", START, str(config)], capture_output=True, text=True, timeout=240, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return Started(completed.stdout.splitlines(), completed.stderr.splitlines(), list(local_dir.iterdir()))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Started:
    """One program for many tests: a start of Java takes seconds."""
    return _started(tmp_path_factory.mktemp("started"))


def test_a_session_leaves_sigint_to_the_service_and_its_files_in_the_configured_folder(started: Started) -> None:
    """By default PySpark handles SIGINT, and ends the program with KeyboardInterrupt."""
    assert started.output[:3] == ["signal 2", "3 rows", "1 folder"]
    assert started.output[-2:] == ["ended False True", "ended True"]
    assert started.left == []


def test_python_workers_do_not_search_sparks_archives(started: Started) -> None:
    assert started.output[1] == "3 rows"


@with_connector
def test_wrong_bytes_in_an_lz4_message_can_not_end_the_jvm(started: Started) -> None:
    """LZ4_decompress_fast, which the connector would call, reads beyond the end of its input."""
    assert started.output[-3] == f"{SAFE} LZ4Factory:JNI", "Spark does not keep its fast decompressor"


def test_a_query_starts_after_a_kill_while_its_first_offsets_were_written(spark: SparkSession, tmp_path: Path) -> None:
    """Spark writes a temporary file, and renames it."""
    files, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    files.mkdir()
    (files / "line").write_text("text")
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / ".0.0d9c37b2-6a30-4c3c-8fd4-5b0bb5d3b2a1.tmp").touch()
    rows = spark.readStream.text(str(files)).writeStream.format("noop").trigger(availableNow=True)
    assert rows.option("checkpointLocation", str(checkpoint)).start().awaitTermination(60)
    assert (checkpoint / "commits" / "0").exists()


def test_foreign_text_in_java_logs_forges_no_line_and_does_not_control_the_terminal(started: Started) -> None:
    lines = started.errors
    (first,) = [number for number, line in enumerate(lines) if line.endswith("Z ERROR B: topic a")]
    assert lines[first + 1] == "    2026 INFO forged?[2J?"
    assert lines[first + 2].endswith("Z ERROR B: with it")
    assert lines[first + 3 : first + 5] == ["java.lang.RuntimeException: key b", "    2026 INFO forged?[2J?"]
    assert not any("\x1b" in line for line in lines)
    assert [line for line in lines if line.startswith("2") and line.endswith("Z ERROR B: the next")] != []


def _of_the_ui(started: Started) -> tuple[str, list[str], list[str]]:
    """Return where the UI listens, which addresses answer, and what it shows of a job that it is asked to end."""
    host, *shown = started.output[3:-3]
    return host, shown[:2], shown[2:]


NOT_ENDED = ["jobs/ active no kill", "stages/ active no kill", "runs on"]


def test_the_ui_listens_on_this_machine_and_can_not_end_a_job(started: Started) -> None:
    assert _of_the_ui(started) == ("at 127.0.0.1", ["127.0.0.1 answers", "127.0.0.2 refused"], NOT_ENDED)


@pytest.mark.long
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.2", ("at 127.0.0.2", ["127.0.0.1 refused", "127.0.0.2 answers"])),
        ("0.0.0.0", ("at 127.0.0.1", ["127.0.0.1 answers", "127.0.0.2 answers"])),
    ],
)
def test_the_ui_listens_on_the_configured_address(
    tmp_path: Path, address: str, expected: tuple[str, list[str]]
) -> None:
    assert _of_the_ui(_started(tmp_path, f'ui_address = "{address}"')) == (*expected, NOT_ENDED)


@pytest.mark.long
def test_the_jvm_logs_json_of_the_chosen_level_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_REAPER_LOG_FORMAT", "JSON")
    monkeypatch.setenv("LEDGER_REAPER_LOG_LEVEL", "debug")
    records = [json.loads(line) for line in _started(tmp_path).errors if line.startswith("{")]
    first, second, _third = (record for record in records if record["logger"] == "B")
    assert first["message"] == "topic a\n2026 INFO forged\x1b[2J\u202e"
    assert "key b\n2026 INFO forged" in second["exception"]
    assert {record["level"] for record in records} >= {"INFO", "ERROR"}


def test_a_master_with_remote_workers_requires_spark_submit(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[spark]\nmaster = "spark://head:7077"\n')
    with pytest.raises(ConfigError, match="submit-args"):
        start(load(config), Jars(), with_streams=False)


SUBMITTED = """
import sys
sys.path.pop(0)
from pathlib import Path
from streaming.config.load import load
from streaming.errors import ConfigError
from streaming.spark.connector_lz4 import SAFE
from streaming.spark.session import Jars, end_jvm, start

try:
    spark = start(load(Path(sys.argv[1])), Jars(), with_streams=False)
except ConfigError as error:
    print(error)
    end_jvm(error.exit_code)
conf = spark.sparkContext.getConf()
for key in ("spark.ui.port", "spark.sql.shuffle.partitions", "spark.scheduler.mode", "spark.speculation"):
    print(key, conf.get(key))
print("driver", conf.get("spark.driver.host"))
if "spark.ui.enabled=false" not in sys.argv:
    print("ui", spark.sparkContext.uiWebUrl)
spark.stop()
"""


def _submit(folder: Path, *conf: str, ui: str = "spark.ui.enabled=false") -> subprocess.CompletedProcess[str]:
    config, script = folder / "config.toml", folder / "script.py"
    config.write_text("[spark]\nui_port = 4999\n")
    script.write_text(SUBMITTED)
    settings = (*([ui] if ui else []), f"spark.local.dir={folder}", *conf)
    options = [word for setting in settings for word in ("--conf", setting)]
    submit = Path(sys.executable).parent / "spark-submit"
    return subprocess.run(
        [str(submit), *options, str(script), str(config), ui],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ
        | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(Path(__file__).parents[2]), "JDK_JAVA_OPTIONS": SOONER},
    )


@pytest.mark.spark
def test_options_of_spark_submit_override_our_configuration_and_there_is_no_ui_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment of spark-submit has to name the address of a UI."""
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    options = ("spark.ui.port=4123", "spark.sql.shuffle.partitions=9", "spark.speculation=FALSE")
    completed = _submit(tmp_path, *options, ui="")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines() == [
        "spark.ui.port 4123",
        "spark.sql.shuffle.partitions 9",
        "spark.scheduler.mode FAIR",
        "spark.speculation FALSE",
        "driver 127.0.0.1",
        "ui None",
    ]


@pytest.mark.spark
@pytest.mark.long
def test_under_spark_submit_there_is_a_ui_if_its_environment_names_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    completed = _submit(tmp_path, "spark.ui.port=0", ui="")
    assert completed.returncode == 0, completed.stderr
    assert "ui http" in completed.stdout


@pytest.mark.spark
@pytest.mark.long  # tests/unit/spark/test_submitted.py tests the refusal
def test_a_spark_submit_with_speculation_of_deleting_tasks_is_refused(tmp_path: Path) -> None:
    completed = _submit(tmp_path, "spark.speculation=true")
    assert (
        "spark.speculation=true, and not false: Spark would run second copies of tasks that delete" in completed.stdout
    )
    assert completed.returncode == 2


def test_our_jars_follow_those_of_spark_and_of_its_user_on_the_class_path() -> None:
    environment = {"SPARK_DIST_CLASSPATH": "/theirs.jar"}

    for _start in range(2):
        load_with_spark([Path("/a.jar"), Path("/b.jar")], environment)

    assert environment == {"SPARK_DIST_CLASSPATH": "/theirs.jar:/a.jar:/b.jar"}


@pytest.mark.parametrize(
    ("master", "is_one"), [("local", True), ("local[8]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)]
)
def test_only_executors_in_the_drivers_process_have_its_class_path(master: str, is_one: bool) -> None:
    assert is_one_process(master) is is_one


def test_a_foreign_connection_to_a_port_of_spark_is_refused_with_one_log_line(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    start_server: Any = accumulators._start_update_server
    server = start_server("the-token") if has_connector() else start_server("the-token", False)
    log_refusals_in_one_line(cast("SparkContext", SimpleNamespace(_accumulatorServer=server)))
    try:
        with socket.create_connection(("127.0.0.1", int(server.server_address[1])), timeout=10) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert stranger.recv(1) == b"", "the connection stayed open"
    finally:
        server.shutdown()
    assert "Traceback" not in capfd.readouterr().err
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("refused a connection from 127.0.0.1 to Spark's accumulators: ")
