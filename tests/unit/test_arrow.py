"""The imports of a command that starts no Spark."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from streaming.state.receipts import TABLE
from tests.unit.cli.test_receipts import receipt
from tests.unit.reconcile.rows import write_rows

SHOW = """
import json, sys
from streaming.cli.main import app

try:
    app(["receipts", "--json", "--config", sys.argv[1]])
except SystemExit:
    print(json.dumps(sorted(sys.modules.keys() & {"numpy", "pandas", "pyspark"})))
try:
    app(["receipts", "--config", sys.argv[1]])
except SystemExit:
    print(json.dumps(sorted(sys.modules.keys() & {"numpy", "pandas", "pyspark"})))
import numpy, pandas
"""


LOADED = """
import sys
from streaming.cli.main import app
from streaming.errors import ConfigError, UnavailableError

try:
    app(sys.argv[1:])
except (ConfigError, UnavailableError):  # of the first connection
    print(*sorted(sys.modules.keys() & {"numpy", "pandas", "pyarrow", "pyspark", "streaming.clients"}))
"""


def test_receipts_are_printed_without_importing_slow_packages(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[state]\ndir = "{tmp_path}/state"\n')
    write_rows(tmp_path / "state", TABLE, [(1, 2, -1)], about=receipt())
    command = [sys.executable, "-c", SHOW, str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert json.loads(first)["ledger_id"] == 17
    assert done.stdout.splitlines()[1] == last == "[]"


@pytest.mark.parametrize(
    "arguments", ["audit --last", "backlog", "dlq list", "explain 1", "space", "space --leftovers"]
)
def test_a_command_that_reads_the_cluster_does_not_import_pandas(arguments: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f"""
        [zookeeper]
        digest_file = "missing"
        [pulsar]
        admin_url = "http://127.0.0.1:1"
        service_url = "pulsar://127.0.0.1:1"
        [state]
        dir = "{tmp_path}/state"
        """
    )
    command = [sys.executable, "-c", LOADED, *arguments.split(), "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    numpy = ["numpy"] if arguments in ("explain 1", "space") else []
    assert done.stdout.split() == [*numpy, "pyarrow", "streaming.clients"], done.stderr
