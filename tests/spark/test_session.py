"""What starting Spark must not change: our process, and what spark-submit was given."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

START = """
import signal, sys
from pathlib import Path
from streaming.config.load import load
from streaming.spark.session import Jars, start

def ours(number, frame):
    print("told", number)

signal.signal(signal.SIGINT, ours)
settings = load(Path(sys.argv[1]))
spark = start(settings, Jars(), with_delta=False)
signal.raise_signal(signal.SIGINT)
print(spark.range(3).count(), "rows")
print(Path(settings.spark.local_dir).is_dir() and len(list(Path(settings.spark.local_dir).iterdir())), "folder")
spark.stop()
"""


def test_a_session_leaves_sigint_to_us_and_its_files_where_they_are_told(tmp_path: Path) -> None:
    """PySpark takes SIGINT for itself and ends the program with KeyboardInterrupt."""
    config, local_dir = tmp_path / "config.toml", tmp_path / "with a blank"
    config.write_text(
        f'[spark]\nui_port = 0\nlocal_dir = "{local_dir}"\njava_options = "-XX:TieredStopAtLevel=1"\n'
        f'[state]\ndir = "{tmp_path}/state"\n[checkpoints]\ndir = "{tmp_path}/checkpoints"\n'
    )

    done = subprocess.run(
        [sys.executable, "-c", START, str(config)], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["told 2", "3 rows", "1 folder"]
    assert not list(local_dir.iterdir())


SUBMITTED = """
import sys
sys.path.pop(0)
from pathlib import Path
from streaming.config.load import load
from streaming.errors import ConfigError
from streaming.spark.session import Jars, end_jvm, start

try:
    spark = start(load(Path(sys.argv[1])), Jars(), with_delta=False)
except ConfigError as error:
    print(error)
    end_jvm(error.exit_code)
conf = spark.sparkContext.getConf()
for key in ("spark.ui.port", "spark.sql.shuffle.partitions", "spark.scheduler.mode", "spark.speculation"):
    print(key, conf.get(key))
print("driver", conf.get("spark.driver.host"))
spark.stop()
"""


def _submit(folder: Path, *conf: str) -> subprocess.CompletedProcess[str]:
    config, script = folder / "config.toml", folder / "script.py"
    config.write_text("[spark]\nui_port = 4999\n")
    script.write_text(SUBMITTED)
    options = [
        part for each in ("spark.ui.enabled=false", f"spark.local.dir={folder}", *conf) for part in ("--conf", each)
    ]
    submit = Path(sys.executable).parent / "spark-submit"
    return subprocess.run(
        [str(submit), *options, str(script), str(config)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


@pytest.mark.spark
def test_what_spark_submit_was_given_wins_over_our_configuration_and_the_rest_is_ours(tmp_path: Path) -> None:
    done = _submit(tmp_path, "spark.ui.port=4123", "spark.sql.shuffle.partitions=9", "spark.speculation=FALSE")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "spark.ui.port 4123",
        "spark.sql.shuffle.partitions 9",
        "spark.scheduler.mode FAIR",
        "spark.speculation FALSE",
        "driver 127.0.0.1",
    ]


@pytest.mark.spark
def test_a_spark_submit_that_would_run_a_deleting_task_twice_at_once_is_refused(tmp_path: Path) -> None:
    done = _submit(tmp_path, "spark.speculation=true")
    assert "spark.speculation=true, and not false: Spark would run second copies of tasks that delete" in done.stdout
    assert done.returncode == 2
