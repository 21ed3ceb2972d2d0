"""`ledger-reaper rocketmq`: upgrade a RocketMQ broker's consume queues and offsets to RocksDB, in place."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from streaming.cli.options import Json, Yes, confirm
from streaming.clock import SystemClock
from streaming.errors import SafetyError
from streaming.terminal import say, say_json

app = typer.Typer(
    no_args_is_help=True,
    help="Upgrade a RocketMQ broker's consume queues, topics and offsets to RocksDB in place, and back.",
)

Store = Annotated[Path | None, typer.Option("--store", help="The broker's storePathRootDir")]
BrokerConf = Annotated[Path | None, typer.Option("--broker-conf", help="The broker's configuration (properties)")]
Lmq = Annotated[
    bool | None,
    typer.Option("--lmq/--no-lmq", help="The broker's enableLmq", show_default="as --broker-conf or the files say"),
]


def _say(text: str) -> None:
    say(text, err=True)


def _require_answer(question: str, *, yes: bool) -> None:
    """Ask, unless --yes was given. Raises SafetyError where nobody can answer, or the answer is no."""
    if not yes and not sys.stdin.isatty():
        raise SafetyError("nothing was done: this touches a store, so say --yes, or answer the question on a terminal")
    confirm(question, yes=yes)


@app.command()
def backfill(  # noqa: PLR0913  one parameter an option: that is what typer reads
    *,
    store: Store = None,
    broker_conf: BrokerConf = None,
    lmq: Lmq = None,
    yes: Yes = False,
    rows_per_file: Annotated[int, typer.Option("--rows-per-file", min=1000, help="Units in one file")] = 300_000,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what an interrupted run has made")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Set a RocksDB aside that lies there from double writing")
    ] = False,
    json_lines: Json = False,
) -> None:
    """Convert a stopped broker's store to RocksDB. The old files stay, and nothing counts before all is whole."""
    from streaming.rocketmq.backfill import Backfill
    from streaming.rocketmq.place import place_of
    from streaming.rocketmq.spark import local_spark

    place = place_of(store, broker_conf, lmq=lmq)
    _require_answer(f"Convert the consume queues and offsets of {place.store} to RocksDB?", yes=yes)
    with local_spark() as spark:
        work = Backfill(
            place, SystemClock(), _say, rows_per_file=rows_per_file, restart=restart, replace=replace
        )  # fmt: skip
        result = work.run(spark.sparkContext)
    if json_lines:
        say_json(result._asdict())
    else:
        say(f"done: {result.units} units of {result.queues} queues in {result.seconds:.1f} s")
        say("Start the broker with storeType=defaultRocksDB, and without rocksdbCQDoubleWriteEnable.", err=True)


@app.command()
def check(
    *,
    store: Store = None,
    broker_conf: BrokerConf = None,
    lmq: Lmq = None,
    topic: Annotated[str, typer.Option("--topic", help="Only this topic, queue by queue")] = "",
    json_lines: Json = False,
) -> None:
    """Compare every unit of RocksDB with the commitlog and the file queues. The exit code is 4 if anything is wrong."""
    from streaming.rocketmq.check import Check
    from streaming.rocketmq.place import place_of
    from streaming.rocketmq.shown import check_json, check_lines
    from streaming.rocketmq.spark import local_spark

    place = place_of(store, broker_conf, lmq=lmq)
    with local_spark() as spark:
        result = Check(place, SystemClock(), _say).run(spark.sparkContext, topic)
    if json_lines:
        for value in check_json(result, topic):
            say_json(value)
    else:
        for line in check_lines(result, topic):
            say(line)
    if not result.is_well:
        raise SafetyError(f"{len(result.findings)} findings: a broker in RocksDB mode would not serve all messages")
