"""`ledger-reaper space`: shows where the bytes are, and asks bookies to collect garbage if the operator wants that."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.arrow import load_datasets
from streaming.cli.options import (
    READS_PER_SECOND,
    Config,
    Json,
    ReadsPerSecond,
    Yes,
    completes,
    confirm,
    refuse_ignored,
    require_namespace,
    require_terminal,
    settings_of,
)
from streaming.config.amounts import one_of, topic_from
from streaming.errors import ConfigError, ReaperError, RefusedError, SafetyError, UnavailableError
from streaming.terminal import Terminal, count_of, say, say_json
from udfs.paths import namespace_of, tenant_of
from udfs.space.view import Filters, View, selected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streaming.config.settings import Settings
    from streaming.ports import Bookies
    from streaming.space.output.space_tables import Shown
    from udfs.space.growth_by_cause import PastRun
    from udfs.space.space_report import SpaceReport

_REPORT_OPTIONS = ("--by", "--top", "--tenant", "--namespace", "--topic", "--out", "--reads-per-second")
_NOT_FOR_LEFTOVERS = (*_REPORT_OPTIONS[:-1], "--bookie", "--collect", "--compact", "--yes")


def space(  # noqa: PLR0913  typer reads each option from a parameter
    context: typer.Context,
    config: Config,
    *,
    by: Annotated[
        str, typer.Option("--by", help=f"Rows: {', '.join(View)}", autocompletion=completes(View))
    ] = View.CAUSE,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", min=1, help="Rows at most", show_default="all causes and bookies, 20 others; all as JSON"
        ),
    ] = None,
    tenant: Annotated[str, typer.Option("--tenant", help="Only this tenant")] = "",
    namespace: Annotated[str, typer.Option("--namespace", help="Only this namespace (tenant/ns)")] = "",
    topic: Annotated[
        str, typer.Option("--topic", help="Only this topic with its partitions, for example shop/prod/carts")
    ] = "",
    json_lines: Json = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of space.html and the history", show_default="no file is written"),
    ] = None,
    bookie: Annotated[
        list[str] | None,
        typer.Option(
            "--bookie",
            help="Only this bookie, by its id or HTTP address; may be given several times",
            show_default="all",
        ),
    ] = None,
    reads_per_second: ReadsPerSecond = READS_PER_SECOND,
    collect: Annotated[bool, typer.Option("--collect", help="Instead, ask bookies to collect garbage now")] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="With --collect: also rewrite entry logs (a major compaction)")
    ] = False,
    leftovers: Annotated[
        bool,
        typer.Option("--leftovers", help="Instead, list znodes that deleted tenants, topics and ledgers left"),
    ] = False,
    yes: Yes = False,
) -> None:
    """Show where the bytes of the cluster are: by cause, tenant, namespace, topic, subscription or bookie.

    Nothing is changed, and no topic is loaded. For each cause, the output names the command that would free the most;
    `space` never runs it. The exit code is 4 if something could not be read.

    With --collect, `space` asks the bookies to collect garbage now, which frees the space of deleted ledgers. Only
    --compact also has the bookies rewrite entry logs that are in use in part.

    With --leftovers, `space` searches ZooKeeper twice for znodes that nothing uses, and prints the command that removes
    each. It removes none.
    """
    refuse_ignored(
        context,
        (leftovers, _NOT_FOR_LEFTOVERS, "--leftovers reports no bytes. Leave out --leftovers"),
        (not collect, ("--compact", "--yes"), "nothing is collected. Add --collect"),
        (collect, _REPORT_OPTIONS, "--collect reports no bytes. Leave out --collect"),
    )
    view = View(one_of(by, View, "--by"))
    require_namespace(namespace, tenant)
    filters = _filters(tenant, namespace, topic)
    if collect:
        require_terminal(yes=yes)
    settings = settings_of(config)
    load_datasets()
    if collect:
        _collect(settings, bookie or (), compact=compact, yes=yes, as_json=json_lines)
        return
    if leftovers:
        _show_leftovers(settings, reads_per_second, as_json=json_lines)
        return
    from streaming.space.explain.explain_topic import is_found
    from streaming.space.output.space_tables import Shown, scope_text
    from streaming.space.output.space_texts import price_of

    report = _measured(settings, filters, tuple(bookie or ()), reads_per_second)
    price = price_of(settings.space)
    show(Shown(report=report, filters=filters, by=view, top=top, price=price), out, as_json=json_lines)
    scope = scope_text(filters)
    if scope and not is_found(report, filters):
        say(f"{scope} does not exist, or stores nothing: check the name", err=True)
    if not report.is_complete:
        raise SafetyError(
            f"{count_of(len(report.unknown), 'fact')} could not be read: the result lists them, with bounds"
        )


def _filters(tenant: str, namespace: str, topic: str) -> Filters:
    """Return the filters. Raises ConfigError if nothing can pass all of them."""
    if not topic:
        return Filters(tenant=tenant, namespace=namespace)
    name = topic_from(topic, "--topic")
    for option, chosen, actual in (("tenant", tenant, tenant_of(name)), ("namespace", namespace, namespace_of(name))):
        if chosen not in ("", actual):
            raise ConfigError(f"--topic {topic} is not in the {option} {chosen}: leave out --{option}")
    return Filters(tenant=tenant, namespace=namespace, topic=name)


def _measured(settings: "Settings", filters: Filters, bookies: tuple[str, ...], reads_per_second: int) -> "SpaceReport":
    from streaming.cli.step_progress import steps
    from streaming.space.reading.measure import space_of

    with steps() as shown:
        report = space_of(
            settings,
            reads_per_second=reads_per_second,
            bookies=bookies,
            filters=filters,
            progress=lambda what, _count: shown.say(f"reading {what}"),
        )
    if bookies and not report.bookies:
        raise ConfigError(f"--bookie {', '.join(bookies)}: no such bookie is registered, and no ledger names one")
    return selected(report, filters)


def show(shown: "Shown", out: Path | None, *, as_json: bool) -> None:
    """Print the result, and with `out` write space.html; without filters, add the result to the history there.

    Raises UnavailableError. If the folder can be read but not written, the result is printed before that.
    """
    from streaming.space.output import space_tables
    from streaming.space.output.document import document

    runs: list[PastRun] = []
    if out is not None:
        from streaming.space.output import earlier_runs
        from streaming.state.filesystem import folder_of

        shown, runs = earlier_runs.compared(folder_of(str(out)), shown)
    if as_json:
        say_json(document(shown))
    else:
        space_tables.show(Terminal(), shown)
    if out is not None:
        _write(shown, runs, out)


def _write(shown: "Shown", runs: "Sequence[PastRun]", out: Path) -> None:
    from streaming.space.output import earlier_runs
    from streaming.space.output.page import FILE, page
    from streaming.state.filesystem import below, folder_of
    from streaming.state.filesystem import shown as location

    folder = folder_of(str(out))
    folder.write(FILE, page(shown, runs).encode())
    if runs:
        earlier_runs.add(folder, runs[-1])
    say(f"charts: {location(below(folder.location, FILE))}", err=True)


def _show_leftovers(settings: "Settings", reads_per_second: int, *, as_json: bool) -> None:
    import time

    from streaming.clients import command_clients
    from streaming.space.leftover_znodes import LeftoverKind, leftovers_of
    from streaming.sweep.pace import Pace

    seconds = settings.safety.min_age_seconds

    def wait() -> None:
        say(f"searching again in {count_of(seconds, 'second')} (safety.min_age_seconds)", err=True)
        time.sleep(seconds)

    with command_clients(settings) as clients:
        found = leftovers_of(
            clients.store,
            settings.zookeeper.ledgers_root,
            Pace(reads_per_second),
            wait,
            zookeeper=settings.zookeeper.hosts,
        )
    unread = [each for each in found if each.kind is LeftoverKind.UNREADABLE]
    if as_json:
        rows = [
            {"kind": str(each.kind), "path": each.path, "command": each.command, "detail": each.detail}
            for each in found
        ]
        say_json({"version": 1, "leftovers": rows})
    else:
        for each in found:
            say(f"{each.kind}: {each.path}: {each.detail}")
            if each.command:
                say(f"    {each.command}")
        say(f"{count_of(len(found) - len(unread), 'leftover')}; nothing was removed")
    if unread:
        raise SafetyError(f"{count_of(len(unread), 'path')} could not be read, so leftovers there are not known")


def _collect(settings: "Settings", names: "Sequence[str]", *, compact: bool, yes: bool, as_json: bool) -> None:
    from streaming.clients import command_clients

    with command_clients(settings) as clients:
        chosen = addresses(clients.bookies.registered(), names)
        also = " and to rewrite entry logs (a major compaction: reads and writes their disks)" if compact else ""
        confirm(f"Ask {count_of(len(chosen), 'bookie')} to collect garbage now{also}?", yes=yes)
        failed = collect_garbage(clients.bookies, chosen, compact=compact)
    collected = [url for url in chosen if url not in failed]
    if as_json:
        reasons = {url: str(error) for url, error in failed.items()}
        say_json({"version": 1, "collected": collected, "compact": compact, "failed": reasons})
    else:
        for url in collected:
            say(f"{url} collects garbage now; `ledger-reaper space --by bookie` shows the result in some minutes")
    if failed:
        kind = UnavailableError if any(isinstance(e, UnavailableError) for e in failed.values()) else RefusedError
        raise kind("; ".join(f"{url} was not asked to collect: {error}" for url, error in failed.items()))


def addresses(registered: "Mapping[str, str]", names: "Sequence[str]") -> list[str]:
    """Return the HTTP addresses of bookies that are named by id or address; of all, if none is named.

    Raises ConfigError for a name that no bookie has, UnavailableError if no bookie registers an address.
    """
    if unknown := [name for name in names if "://" not in name and not registered.get(name)]:
        raise ConfigError(
            f"--bookie {unknown[0]}: no such bookie registers an HTTP server; registered are "
            f"{', '.join(sorted(name for name, url in registered.items() if url)) or 'none'}"
        )
    chosen = {registered.get(name, name) for name in names} or {url for url in registered.values() if url}
    if not chosen:
        raise UnavailableError(
            "no bookie registers an HTTP server, so none can be asked: set httpServerEnabled=true in bookkeeper.conf, "
            "or name the bookies' addresses with --bookie"
        )
    return sorted(chosen)


def collect_garbage(bookies: "Bookies", urls: "Sequence[str]", *, compact: bool) -> dict[str, ReaperError]:
    """Ask each bookie to collect garbage now, and return the errors of those that were not asked."""
    failed: dict[str, ReaperError] = {}
    for url in urls:
        try:
            bookies.collect(url, compact=compact)
        except (UnavailableError, RefusedError) as error:
            failed[url] = error
    return failed
