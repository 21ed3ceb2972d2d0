"""Measures the conversion of RocketMQ's consume queues to RocksDB: units a second, and memory.

    .venv/bin/python -m bench.rocketmq --folder DIR [--units 2000000 10000000] [--pairs 3] [--cores 1 2] [--no-log]

The store is simulated (bench/rocketmq_store.py): 16 queues, messages of 120 bytes, files of the usual sizes; 100
million units take 17 GB of DIR. `ours` is `backfill` itself: it reads the commitlog, compares each unit with its
message, and moves the database in. It alternates with one thread of numpy and rocksdict, the least that does the job:
the thread reads the queue files and writes sorted files of 300,000 rows. `no log` invents store times; `log` reads
them from the commitlog, and compares nothing (--no-log skips it). Each run is a process of its own. With --made, the
script uses an existing store of --units, and keeps it; it reads the files once, so that no run waits for the disk.
The script fails unless both databases have the same thousand sampled rows.

The time of 10 executors is an estimate: the tasks' time on one core, divided by 10, plus the driver's time.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rocksdict import (
    BlockBasedOptions,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SstFileWriter,
)

from bench import rocketmq_store as simulated
from bench.sampler import Sampler
from bench.session import command_line

_UNIT = np.dtype([("phy", ">i8"), ("size", ">i4"), ("tags", ">i8")])
_VALUE = np.dtype([("phy", ">i8"), ("size", ">i4"), ("tags", ">i8"), ("time", ">i8")])
_ROWS = 300_000


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the stores are created")
    parser.add_argument("--units", type=int, nargs="+", default=[2_000_000, 10_000_000])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2], help="threads of ours")
    parser.add_argument("--no-log", action="store_true", help="skip the thread that reads the log")
    parser.add_argument("--made", action="store_true", help="use the store that an earlier --make-only has left")
    parser.add_argument("--make-only", action="store_true", help="create the store, and keep it")
    parser.add_argument("--single", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    store = options.folder / "store"
    if options.single:
        _say(_run(options.single, store, options.units[0]))
        return
    beside = ["no log"] if options.no_log else ["no log", "log"]
    for units in options.units:
        if options.made:
            _read(store)
        else:
            simulated.make(store, units)
        if not options.make_only:
            measure(store, units, options.pairs, options.cores, beside)
    if not (options.made or options.make_only):
        shutil.rmtree(store)


def measure(store: Path, units: int, pairs: int, cores: list[int], beside: list[str]) -> None:
    """Run all ways alternately, and print the medians. beside: the ways to compare with."""
    ways = [*beside, *(f"ours {each}" for each in cores)]
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _pair in range(pairs):
        for way in ways:
            _clean(store)
            load = os.getloadavg()[0]
            command = [sys.executable, "-m", "bench.rocketmq", "--folder", str(store.parent), "--single", way]
            done = subprocess.run([*command, "--units", str(units)], check=True, stdout=subprocess.PIPE, text=True)
            found[way].append({**json.loads(done.stdout.splitlines()[-1]), "load": round(load, 1)})
            _say(found[way][-1])
    for way, runs in found.items():
        rate = units / statistics.median(run["seconds"] for run in runs)
        memory = max(run.get("all_mb", 0) for run in runs)
        _say({"units": units, "way": way, "median_units_a_second": round(rate), "most_mb": memory})
    for way in ways[len(beside) :]:
        for other in beside:
            ratios = [a["seconds"] / b["seconds"] for a, b in zip(found[other], found[way], strict=True)]
            _say({"units": units, "ratio": f"{way} to {other}", "of_each_pair": [round(each, 2) for each in ratios]})
    for run in found.get("ours 1", []):
        ten = (run["seconds"] - run["driver_seconds"]) / 10 + run["driver_seconds"]
        _say({"units": units, "ten_executors_estimate_s": round(ten, 1), "of": run["seconds"]})


def _run(way: str, store: Path, units: int) -> dict[str, Any]:
    with Sampler() as sampler:
        kind, _, cores = way.partition(" ")
        started = time.monotonic()
        if kind == "ours":
            result = _ours(store, int(cores))
            database = store / "consumequeue"
        else:
            database = store / "baseline"
            _baseline(store, database, reads_log=way == "log")
            result = {"seconds": time.monotonic() - started}
        result["with_start_seconds"] = time.monotonic() - started
    _compare(database, units, has_times=way != "no log")
    size = sum(each.stat().st_size for each in database.glob("*.sst"))
    rounded = {name: round(value, 1) for name, value in result.items()}
    cpu = {"cpu_seconds": round(sampler.cpu_seconds(), 1)}
    return {"units": units, "way": way, **rounded, **cpu, "bytes_a_unit": round(size / units, 1), **sampler.peak_mb()}


def _ours(store: Path, cores: int) -> dict[str, float]:
    from streaming.clock import SystemClock
    from streaming.rocketmq.convert.backfill import Backfill
    from streaming.rocketmq.local_spark import local_spark
    from streaming.rocketmq.store.store_paths import store_paths

    joined: list[float] = []

    def say(text: str) -> None:
        if text == "joining the files":
            joined.append(time.monotonic())

    with local_spark(cores) as spark:
        result = Backfill(paths=store_paths(store, None), clock=SystemClock(), say=say).run(spark.sparkContext)
        driver = time.monotonic() - joined[0]
    return {"seconds": result.seconds, "driver_seconds": driver}


def _baseline(store: Path, folder: Path, *, reads_log: bool) -> None:
    options = _options()
    logs = [np.memmap(path, dtype=np.uint8, mode="r") for path in sorted((store / "commitlog").iterdir())]
    folder.mkdir()
    root = Rdict(str(folder), options)
    files: list[str] = []
    for topic, queue_id in sorted(simulated.QUEUES):
        name = topic.encode()
        prefix = len(name).to_bytes(4, "big") + b"\1" + name + b"\1" + queue_id.to_bytes(4, "big") + b"\1"
        for first, units in _units(store / "consumequeue" / topic / str(queue_id)):
            values = np.empty(len(units), dtype=_VALUE)
            for column in ("phy", "size", "tags"):
                values[column] = units[column]
            values["time"] = _times(logs, units["phy"].astype(np.int64)) if reads_log else simulated.BASE_TIME
            files.append(str(folder / f"{len(files)}.part"))
            _write(files[-1], options, _keys(prefix, first, len(units)), values)
    ingest = IngestExternalFileOptions()
    ingest.set_move_files(True)
    root.ingest_external_file(files, ingest)
    root.flush(True)
    root.close()


def _units(folder: Path) -> Iterator[tuple[int, Any]]:
    for path in sorted(folder.iterdir()):
        units = np.fromfile(path, dtype=_UNIT)
        yield int(path.name) // _UNIT.itemsize, units[units["size"] > 0]


def _times(logs: list[Any], phy: Any) -> Any:
    times = np.empty(len(phy), dtype=np.int64)
    number = phy // simulated.LOG_FILE_BYTES
    for each in np.unique(number):
        here = number == each
        at = phy[here] % simulated.LOG_FILE_BYTES + 56
        times[here] = logs[each][at[:, None] + np.arange(8)].copy().view(">i8").ravel()
    return times


def _keys(prefix: bytes, first: int, count: int) -> Any:
    keys = np.empty((count, len(prefix) + 8), dtype=np.uint8)
    keys[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    keys[:, len(prefix) :] = np.arange(first, first + count).astype(">i8").view(np.uint8).reshape(count, 8)
    return keys


def _write(path: str, options: Options, keys: Any, values: Any) -> None:
    writer = SstFileWriter(options)
    writer.open(path)
    all_keys, all_values, width = keys.tobytes(), values.tobytes(), keys.shape[1]
    for number in range(len(values)):
        writer[all_keys[number * width : (number + 1) * width]] = all_values[number * 28 : (number + 1) * 28]
    writer.finish()


def _options() -> Options:
    table = BlockBasedOptions()
    table.set_format_version(5)
    table.set_bloom_filter(16, False)
    table.set_block_size(32 << 10)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    return options


def _compare(folder: Path, units: int, *, has_times: bool) -> None:
    """Check a thousand rows, and the end of each queue."""
    from streaming.adapters.rocksdb.database import opened
    from udfs.rocketmq import rows

    messages = np.unique(np.append(np.linspace(0, units - 1, 1000).astype(np.int64), np.arange(units - 16, units)))
    with opened(folder, read_only=True) as database:
        for message, phy in zip(messages.tolist(), simulated.positions(messages).tolist(), strict=True):
            topic, queue_id = simulated.QUEUES[message % 16]
            value = database.get("default", rows.unit_key(topic.encode(), queue_id, message // 16))
            assert value is not None, f"message {message} has no row"
            found, times = rows.decode_values([value])
            time_ms = simulated.BASE_TIME + (message // 10 if has_times else 0)
            assert (int(found.phy[0]), int(times[0])) == (phy, time_ms), f"the row of message {message} is wrong"
            ahead = database.get("default", rows.unit_key(topic.encode(), queue_id, message // 16 + 1))
            assert (ahead is None) == (message + 16 >= units)


def _read(store: Path) -> None:
    """Read the store's files, so that the system keeps them in memory as far as they fit."""
    for path in sorted(each for each in store.rglob("*") if each.is_file()):
        with path.open("rb") as file:
            while file.read(8 << 20):
                pass


def _clean(store: Path) -> None:
    for path in (store / "consumequeue").iterdir():
        if path.is_file():
            path.unlink()
    for name in ("baseline", "ledger-reaper", "config/topics", "config/subscriptionGroups", "config/consumerOffsets"):
        shutil.rmtree(store / name, ignore_errors=True)


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
