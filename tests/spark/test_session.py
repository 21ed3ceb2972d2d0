"""What starting Spark must not change in the process that starts it."""

import subprocess
import sys
from pathlib import Path

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
