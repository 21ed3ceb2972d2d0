"""`ledger-reaper status`: shows whether the service runs, what waits, and what holds it."""

import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.arrow import load_datasets
from streaming.cli.options import Config, Json, refuse_ignored, settings_of, state_fault, utc
from streaming.clock import SystemClock
from streaming.errors import ConfigError
from streaming.signals import on_signals
from streaming.terminal import Terminal, cell, count_of, plain, say, say_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streaming.check.now import Now
    from streaming.coordination.lock import Holder

_WIDTH = 12
_LEAST_EVERY_S, _MOST_EVERY_S = 1.0, 86_400.0


def status(
    context: typer.Context,
    config: Config,
    json_lines: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C")] = False,
    every: Annotated[float, typer.Option("--every", help="With --watch: seconds between two reads")] = 5.0,
) -> None:
    """Show what the service does now: whether it runs, what waits, and what holds it. Changes nothing.

    The exit code is 3 if something could not be read because a service does not answer. `check` finds faults.
    """
    refuse_ignored(context, (not watch, ("--every",), "status is shown once. Add --watch"))
    if not _LEAST_EVERY_S <= every <= _MOST_EVERY_S:
        raise ConfigError(f"--every {every:g}: {_LEAST_EVERY_S:g} to {_MOST_EVERY_S:g} seconds")
    load_datasets()
    from streaming.check.now import read_now
    from streaming.clients import command_clients
    from streaming.topics.existing import lane_partitions

    settings = settings_of(config)
    no_state = state_fault(settings, config)
    with command_clients(settings) as clients:

        def read() -> "Now":
            lanes = partial(lane_partitions, clients.store, settings)
            return read_now(settings, clients, SystemClock().now_ms(), no_state, lanes)

        if watch:
            show_repeatedly(read, every, json_lines=json_lines, is_terminal=sys.stdout.isatty())
            return
        show_once(read, json_lines=json_lines)


def show_once(read: "Callable[[], Now]", *, json_lines: bool) -> None:
    """Print the status. Raises typer.Exit if something could not be read, with the exit code of the reason."""
    now = read()
    _print(now, json_lines=json_lines)
    if now.exit_code:
        raise typer.Exit(now.exit_code)


def show_repeatedly(read: "Callable[[], Now]", every_s: float, *, json_lines: bool, is_terminal: bool) -> None:
    """Print the status until a signal comes: on a terminal as a live display, otherwise one below the other."""
    from rich.live import Live
    from rich.table import Table

    stop = threading.Event()
    with on_signals(lambda _number: stop.set()):
        if json_lines or not is_terminal:
            while not stop.is_set():
                _print(read(), json_lines=json_lines)
                stop.wait(every_s)
            return
        with Live(console=Terminal(), auto_refresh=False, screen=False) as live:
            while not stop.is_set():
                now = read()
                shown = Table.grid()
                for line in (f"{utc(now.at_ms)} UTC", *status_lines(now)):
                    shown.add_row(cell(line))
                live.update(shown, refresh=True)
                stop.wait(every_s)


def _print(now: "Now", *, json_lines: bool) -> None:
    if json_lines:
        say_json(now.as_json())
        return
    say(_line("time", f"{utc(now.at_ms)} UTC"))
    for line in status_lines(now):
        say(line)


def status_lines(now: "Now") -> "Iterator[str]":
    """Yield the lines for a terminal; a reason that applies to several lines is given once."""
    given = set[str]()
    for line in _lines(now):
        what, unknown, why = line.partition("not known: ")
        yield f"{what}not known, for the same reason" if why in given else line
        given |= {why} if unknown else set()


def _lines(now: "Now") -> "Iterator[str]":
    yield _line("service", f"{now.name} {_runs(now, 'service', now.service)}")
    if now.watched is not None or now.watcher is not None or "watcher" in now.unknown:
        yield _line("watcher", _watcher(now))
    yield from _holds(now)
    if "parked" in now.unknown:
        yield _line("topics", f"not known: {now.unknown['parked']}")
    for query in now.parked or ():
        yield _line("topic", query.shown(utc(query.since_ms)))
    yield from _waiting(now)
    yield _line("last hour", _last_hour(now))


def _line(label: str, text: str) -> str:
    return plain(f"{label:<{_WIDTH}}{text}")


def _runs(now: "Now", what: str, holder: "Holder | None") -> str:
    if what in now.unknown:
        return f"not known: {now.unknown[what]}"
    return "does not run" if holder is None else f"runs: {holder.text}"


def _watcher(now: "Now") -> str:
    runs = _runs(now, "watcher", now.watcher)
    if "watched" in now.unknown:
        return f"{runs}; its last scan is not known: {now.unknown['watched']}"
    if (watched := now.watched) is None:
        return f"{runs}; it has not finished its first scan yet"
    unreadable = f"; {watched.unreadable} can't be read" if watched.unreadable else ""
    unreadable += f"; {watched.unwatched} names can't be watched" if watched.unwatched else ""
    return (
        f"{runs}; last full scan {utc(watched.at_ms)} UTC: {watched.znodes} znodes known{unreadable}, "
        f"{count_of(watched.waiting, 'request')} not sent yet"
    )


def _holds(now: "Now") -> "Iterator[str]":
    if now.holds is None:
        yield _line("deletes", f"not known: {now.unknown['holds']}")
    elif not now.holds:
        yield _line("deletes", "not held")
    for hold in now.holds or ():
        yield _line("deletes", f"HELD, {hold.what}: {hold.why}{f' -> {hold.do}' if hold.do else ''}")


def _waiting(now: "Now") -> "Iterator[str]":
    if now.waiting is None:
        yield _line("waiting", f"not known: {now.unknown['waiting']}")
    else:
        included = "retries included" if now.retries is not None else "without the retries that the service has read"
        yield _line("waiting", f"{count_of(sum(now.waiting.values()), 'request')}, {included}")
        for topic, messages in now.waiting.items():
            yield _line("", f"{messages:>7}  {topic.removeprefix('persistent://')}")
    if "lanes" in now.unknown:
        yield _line("", now.unknown["lanes"])
    if now.retries is None:
        yield _line("retries", f"not known: {now.unknown['retries']}")
    elif now.retries.next_ms is not None:
        yield _line(
            "retries", f"{now.retries.waiting} wait for their time, the next until {utc(now.retries.next_ms)} UTC"
        )


def _last_hour(now: "Now") -> str:
    if now.last_hour is None:
        return f"not known: {now.unknown['last_hour']}"
    if now.last_hour.newest_ms is None:
        return "no receipt"
    counted = ", ".join(f"{n} {outcome}" for outcome, n in now.last_hour.outcomes.items())
    return f"{counted}; the newest at {utc(now.last_hour.newest_ms)} UTC"
