"""Measures `ledger-reaper receipts` with many receipts, on a disk and on a moto server in its own process.

    python -m bench.receipts [--rows 1000000] [--runs 5]

The receipts are in chunks of 50,000, four files each, as the service writes them. A run is the whole command, from the
start of Python to the end of the table.
"""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa

from bench.session import command_line
from streaming import schemas
from streaming.config.load import load
from streaming.state.receipts import Receipts
from tests.tasks import Tasks
from udfs import columns as c

CHUNK, FILES = 50_000, 4
HOST = "127.0.0.1"


def _file(chunk: int, rows: range) -> pa.Table:
    made = {field.name: pa.nulls(len(rows), field.type) for field in schemas.RECEIPT}
    values: dict[str, list[Any]] = {
        c.CHUNK: [chunk] * len(rows),
        c.AT_MS: [1_700_000_000_000 + n for n in rows],
        c.LEDGER_ID: list(rows),
        c.LEDGER_TYPE: ["LEDGER"] * len(rows),
        c.COMPONENT: ["MANAGED_LEDGER"] * len(rows),
        c.OUTCOME: ["DELETED" if n % 10 else "RETRY" for n in rows],
        c.REASON: ["UNREFERENCED" if n % 10 else "TOO_YOUNG" for n in rows],
        c.TOPIC_NAME: [f"persistent://public/default/topic-{n % 1000}" for n in rows],
        c.ORIGIN_MESSAGE_ID: [f"{chunk}:{n}:-1:0" for n in rows],
        c.ATTEMPT: [0] * len(rows),
        c.BYTES: [n * 7919 for n in rows],
    }
    made |= {name: pa.array(column, schemas.RECEIPT.field(name).type) for name, column in values.items()}
    return pa.table(made, schema=schemas.RECEIPT)


def _fill(config: Path, rows: int) -> None:
    spark: Any = None
    table = Receipts(spark, load(config).state_dir)
    for chunk in range(1, rows // CHUNK + 1):
        starts = range(chunk * CHUNK, (chunk + 1) * CHUNK, CHUNK // FILES)
        files: Any = Tasks(*(_file(chunk, range(start, start + CHUNK // FILES)) for start in starts))
        table.append(files, chunk)


def _seconds(config: Path) -> float:
    begun_s = time.monotonic()
    command = [sys.executable, "-m", "streaming", "receipts", "--config", str(config)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun_s


@contextmanager
def _s3(home: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streaming.sandbox.parts.s3_server", HOST, str(port), str(home / "objects")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            while socket.socket().connect_ex((HOST, port)):
                time.sleep(0.1)
            yield f"http://{HOST}:{port}"
        finally:
            server.terminate()


def main() -> None:
    """Fill, read, print."""
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    with tempfile.TemporaryDirectory() as scratch, _s3(Path(scratch)) as endpoint:
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="bench")
        for name, state in (("disk", f"{scratch}/state"), ("s3", "s3://bench/of/state")):
            config = Path(scratch, f"{name}.toml")
            config.write_text(f'[state]\ndir = "{state}"\n[s3]\nendpoint = "{endpoint}"\n')
            _fill(config, options.rows)
            took = sorted(_seconds(config) for _ in range(options.runs))
            print(f"{name}: {statistics.median(took):.2f} s ({took[0]:.2f} to {took[-1]:.2f}), {options.rows} receipts")


if __name__ == "__main__":
    main()
