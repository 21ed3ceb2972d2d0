"""`ledger-reaper rocketmq`: upgrade a RocketMQ broker's consume queues and offsets to RocksDB, in place."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.options import Json, Yes, completes, confirm, refuse_ignored, require_terminal, utc
from streaming.clock import SystemClock
from streaming.config.amounts import one_of
from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.terminal import say, say_json
from udfs.rocketmq.metadata import OffsetsOf

if TYPE_CHECKING:
    from streaming.rocketmq.store.store_paths import StorePaths
    from udfs.rocketmq.refusals import Code

app = typer.Typer(no_args_is_help=True)

Store = Annotated[Path | None, typer.Option("--store", help="The broker's storePathRootDir, or a copy")]
BrokerConf = Annotated[
    Path | None,
    typer.Option("--broker-conf", help="The broker's configuration file; needed if it names other folders"),
]
Lmq = Annotated[
    bool | None,
    typer.Option("--lmq/--no-lmq", help="The broker's enableLmq", show_default="from --broker-conf or the files"),
]

Report = Annotated[Path | None, typer.Option("--report", help="Also write an HTML page")]


def _say(text: str) -> None:
    say(text, err=True)


_CONFIRM_REASON = "this changes a store, and "


def _require_answer(question: str, *, yes: bool) -> None:
    confirm(question, yes=yes, why=_CONFIRM_REASON)


def _completed_losses(incomplete: str) -> list[str]:
    from udfs.rocketmq.refusals import LOSSES  # imported late: it imports numpy

    return completes(LOSSES)(incomplete)


def _losses_named(texts: list[str]) -> "list[Code]":
    """Parse --accept-loss. Raises ConfigError for a code that is no loss."""
    from udfs.rocketmq.refusals import LOSSES, Code

    return [Code(one_of(text, LOSSES, "--accept-loss")) for text in texts]


def _loss_warning(paths: "StorePaths", codes: "list[Code]") -> str:
    """Describe what --accept-loss accepts for this store, as a prefix of the question."""
    from streaming.rocketmq.convert.survey import survey_of
    from streaming.rocketmq.failures import our_errors
    from udfs.rocketmq.refusals import Code, losses_of

    with our_errors():  # without a test of the broker's lock: `backfill` takes it, and surveys the store again
        losses = losses_of(survey_of(paths, is_running=False).facts, codes) if codes else []
    lines = [f"{loss.code} is accepted: {loss.text}." for loss in losses]
    if Code.UNINDEXED in codes:
        lines.append(
            "UNINDEXED is accepted: messages that are missing from their queue are found during the conversion."
        )
    return "".join(f"{line} " for line in lines)  # a question has one line


def _require_writable(report: Path | None) -> None:
    if report and (report.is_dir() or not report.absolute().parent.is_dir()):
        raise ConfigError(f"the report can't be written: {report} is a folder, or its folder does not exist")


def _end(report: Path | None, page: Callable[[], str], wrong: str) -> None:
    """Write the report, after the result was printed, and raise the findings. A failed report never hides them.

    Raises SafetyError if `wrong` describes a fault, and UnavailableError if only the report could not be written.
    """
    unwritten = ""
    if report:
        try:
            report.write_text(page(), encoding="utf-8")
        except OSError as error:
            unwritten = (
                f"the report could not be written to {report} ({error.strerror}), but the result is printed in full: "
                "name another file with --report, and run the command again if you need the page"
            )
    if wrong:
        raise SafetyError(f"{wrong}; {unwritten}" if unwritten else wrong)
    if unwritten:
        raise UnavailableError(unwritten)


@app.callback()
def rocketmq() -> None:
    """Upgrade a RocketMQ broker's consume queues, topics and offsets to RocksDB in place, and back.

    The usual order: `plan` while the broker runs in file mode; stop the broker; `backfill`; `check`; start the broker
    with storeType=defaultRocksDB. If the broker may stop for seconds only, run `follow` before you stop it. `rollback`
    reverts the upgrade. docs/rocketmq.md describes each step and each refusal.
    """


@app.command()
def plan(  # noqa: PLR0913  typer reads each option from a parameter
    *,
    store: Store = None,
    broker_conf: BrokerConf = None,
    lmq: Lmq = None,
    broker_version: Annotated[str, typer.Option("--broker-version", help="The broker's version, as in 5.3.3")] = "",
    report: Report = None,
    json_lines: Json = False,
) -> None:
    """Show how much there is to convert, how long that takes, and why `backfill` would refuse. It writes nothing."""
    from streaming.rocketmq.failures import our_errors
    from streaming.rocketmq.inspect.plan import lines, plan_of
    from streaming.rocketmq.inspect.report import plan_page
    from streaming.rocketmq.store.store_paths import store_paths
    from udfs.rocketmq.refusals import Code

    _require_writable(report)
    with our_errors():
        upgrade = plan_of(store_paths(store, broker_conf, lmq=lmq), broker_version, time.process_time())
    if json_lines:
        say_json(upgrade.as_json())
    else:
        for line in lines(upgrade):
            say(line)
    codes = {refusal.code for refusal in upgrade.refusals}
    wrong = "`backfill` would refuse this store: " + ", ".join(sorted(codes)) if codes - {Code.RUNNING} else ""
    _end(report, lambda: plan_page(upgrade), wrong)


@app.command()
def backfill(  # noqa: PLR0913  typer reads each option from a parameter
    *,
    store: Store = None,
    broker_conf: BrokerConf = None,
    lmq: Lmq = None,
    yes: Yes = False,
    rows_per_file: Annotated[
        int, typer.Option("--rows-per-file", min=1000, help="Units of the queues in each RocksDB file")
    ] = 300_000,
    restart: Annotated[
        bool, typer.Option("--restart", help="Delete the result of an interrupted run, and start over")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Set aside a RocksDB that is left from double writing")
    ] = False,
    accept_loss: Annotated[
        list[str] | None,
        typer.Option(
            "--accept-loss",
            metavar="CODE",
            help="Convert despite this loss; repeat it for each: UNREAD_OFFSETS, UNKNOWN_TOPICS (`plan` shows both) or "
            "UNINDEXED (`backfill` finds it)",
            autocompletion=_completed_losses,
        ),
    ] = None,
    json_lines: Json = False,
) -> None:
    """Convert a stopped broker's store to RocksDB. The old files stay, and nothing takes effect before all is done."""
    from streaming.rocketmq.convert.backfill import Backfill
    from streaming.rocketmq.local_spark import local_spark
    from streaming.rocketmq.store.store_paths import store_paths

    losses = _losses_named(accept_loss or [])
    paths = store_paths(store, broker_conf, lmq=lmq)
    require_terminal(yes=yes, why=_CONFIRM_REASON)
    warning = "" if yes else _loss_warning(paths, losses)
    _require_answer(f"{warning}Convert the consume queues and offsets of {paths.store} to RocksDB?", yes=yes)
    with local_spark() as spark:
        work = Backfill(
            paths=paths, clock=SystemClock(), say=_say, rows_per_file=rows_per_file, restart=restart, replace=replace,
            accept_loss=losses,
        )  # fmt: skip
        result = work.run(spark.sparkContext)
    if json_lines:
        say_json(result.as_json())
    else:
        for loss in result.losses:
            say(f"accepted: {loss.code}: {loss.text}")
        say(f"done: {result.units} units of {result.queues} queues in {result.seconds:.1f} s")
        say("Start the broker with storeType=defaultRocksDB, and without rocksdbCQDoubleWriteEnable.", err=True)


@app.command()
def follow(  # noqa: PLR0913  typer reads each option from a parameter
    context: typer.Context,
    *,
    store: Store = None,
    broker_conf: BrokerConf = None,
    lmq: Lmq = None,
    until_caught_up: Annotated[
        bool,
        typer.Option("--until-caught-up", help="End once everything is indexed that the log had ten seconds before"),
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", min=0, max=65_535, help="Serve the lag to Prometheus on this port; 0: any port"),
    ] = None,
    metrics_address: Annotated[
        str, typer.Option("--metrics-address", help="Address of this machine for --metrics-port")
    ] = "127.0.0.1",
    json_lines: Json = False,
) -> None:
    """Create RocksDB while the broker continues in file mode; `backfill` then takes seconds."""
    why = "no metrics are served. Add --metrics-port"
    refuse_ignored(context, (metrics_port is None, ("--metrics-address",), why))
    from streaming.config.listening import listen_on
    from streaming.prometheus import table
    from streaming.prometheus.health import Health
    from streaming.prometheus.server import serving
    from streaming.rocketmq.follow.follow_metrics import FollowMetrics
    from streaming.rocketmq.follow.lag import Lag
    from streaming.rocketmq.follow.run import Follow
    from streaming.rocketmq.local_spark import local_spark
    from streaming.rocketmq.store.store_paths import store_paths
    from streaming.signals import on_signals
    from streaming.spark.jars import versions

    def print_lag(lag: Lag) -> None:
        say_json(lag._asdict() | {"bytes_behind": lag.bytes_behind})

    paths = store_paths(store, broker_conf, lmq=lmq)
    metrics, health, listener = FollowMetrics(), Health(), None
    if metrics_port is not None:
        advice = "Name a free port with --metrics-port (0: any), and an address of this machine with --metrics-address"
        listener = listen_on(metrics_address, metrics_port, advice)
        _say(f"metrics: http://{metrics_address}:{listener.getsockname()[1]}/metrics")
    metrics.registry.identify(str(paths.store), paths.conf.cluster)
    metrics.registry.set(table.BUILD_INFO, 1, *versions())
    report = print_lag if json_lines else None
    work = Follow(paths=paths, clock=SystemClock(), say=_say, report=report, export=metrics.export)
    with (
        serving(metrics.registry, health, listener),
        local_spark() as spark,
        on_signals(lambda _number: work.is_stopping.set()),
    ):
        lag = work.run(spark, until_caught_up=until_caught_up)
    if json_lines:
        print_lag(lag)
    else:
        say(f"{lag.units} units are new, {lag.bytes_behind} bytes of the log are not indexed")
        say("Stop the broker with SIGTERM, and run `backfill`: it reads the rest.", err=True)


@app.command()
def check(  # noqa: PLR0913  typer reads each option from a parameter
    *,
    store: Store = None,
    broker_conf: BrokerConf = None,
    lmq: Lmq = None,
    topic: Annotated[str, typer.Option("--topic", help="Only this topic, queue by queue")] = "",
    report: Report = None,
    json_lines: Json = False,
) -> None:
    """Compare every unit of RocksDB with the commitlog and the file queues. The exit code is 4 if anything is wrong."""
    from streaming.rocketmq.inspect.check import Check
    from streaming.rocketmq.inspect.printing import check_json, check_lines
    from streaming.rocketmq.inspect.report import check_page
    from streaming.rocketmq.local_spark import local_spark
    from streaming.rocketmq.store.store_paths import store_paths

    _require_writable(report)
    paths = store_paths(store, broker_conf, lmq=lmq)
    with local_spark() as spark:
        result = Check(paths, SystemClock(), _say).run(spark.sparkContext, topic)
    if json_lines:
        for value in check_json(result, topic):
            say_json(value)
    else:
        for line in check_lines(result, topic):
            say(line)
    wrong = f"{len(result.findings)} findings: a broker in RocksDB mode would not serve all messages"
    _end(report, lambda: check_page(result), "" if result.is_sound else wrong)


@app.command()
def export(
    *,
    store: Store = None,
    broker_conf: BrokerConf = None,
    lmq: Lmq = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the JSON files", show_default="<store>/ledger-reaper/export-<time>"),
    ] = None,
    json_lines: Json = False,
) -> None:
    """Write topics, groups and offsets of RocksDB as JSON files, under the names that this broker reads."""
    from streaming.rocketmq.failures import our_errors
    from streaming.rocketmq.rollback.export import export as export_json
    from streaming.rocketmq.store.store_paths import store_paths

    paths = store_paths(store, broker_conf, lmq=lmq)
    stamp = utc(SystemClock().now_ms()).replace(" ", "T").replace(":", "").replace("-", "")
    with our_errors():
        exported = export_json(paths, out or paths.own / f"export-{stamp}Z")
    if json_lines:
        say_json({"out": str(exported.out), "files": exported.files})
        return
    for name, count in exported.files.items():
        say(f"{exported.out / name}: {count} entries")


@app.command()
def rollback(  # noqa: PLR0913  typer reads each option from a parameter
    *,
    store: Store = None,
    broker_conf: BrokerConf = None,
    lmq: Lmq = None,
    yes: Yes = False,
    offsets_of: Annotated[
        OffsetsOf | None,
        typer.Option(
            "--offsets-of",
            help="The source of topics, groups and offsets if brokers have written both RocksDB and JSON files",
        ),
    ] = None,
    json_lines: Json = False,
) -> None:
    """Bring a stopped broker's store back to file mode, with the offsets that RocksDB has."""
    from streaming.rocketmq.failures import our_errors
    from streaming.rocketmq.rollback.run import rollback as roll_back
    from streaming.rocketmq.store.store_paths import store_paths

    paths = store_paths(store, broker_conf, lmq=lmq)
    _require_answer(f"Bring {paths.store} back to file mode?", yes=yes)
    with our_errors():
        result = roll_back(paths, SystemClock(), offsets_of=offsets_of, say=_say)
    if json_lines:
        say_json(result._asdict())
        return
    for name, count in result.files.items():
        say(f"{paths.config / name}: {count} entries of RocksDB")
    if not result.files:
        say("topics, groups and offsets stay as they are in the JSON files")
    for name, names in result.only_in_files.items():
        shown = ", ".join(map(ascii, names))
        say(f"{name}: {len(names)} entries that are missing in RocksDB, perhaps deleted there: {shown}")
    for queue, messages in result.left_out.items():
        say(f"{queue!a} has {messages} messages in RocksDB, and gets no file queue in file mode")
    say(f"The replaced files are in {result.kept}; `forget` deletes them.", err=True)
    say("Start the broker with storeType=default.", err=True)


@app.command()
def forget(
    *,
    store: Store = None,
    broker_conf: BrokerConf = None,
    yes: Yes = False,
    json_lines: Json = False,
) -> None:
    """Delete the files that `backfill`, `rollback` and `export` have kept of this store."""
    from streaming.rocketmq.failures import our_errors
    from streaming.rocketmq.store.store_paths import store_paths
    from streaming.rocketmq.workspace.forget import description_of, forgettable
    from streaming.rocketmq.workspace.forget import forget as forget_folders

    paths = store_paths(store, broker_conf)
    folders = forgettable(paths)
    for folder in folders:
        say(f"{folder}: {description_of(paths, folder)}", err=json_lines)
    if folders:
        _require_answer("Delete these folders?", yes=yes)
        with our_errors():
            forget_folders(paths, folders)
    if json_lines:
        say_json({"deleted": [str(folder) for folder in folders]})
    else:
        say("deleted" if folders else f"nothing was kept of {paths.store}")
