"""`ledger-reaper history`: shows what operators did; and how other commands record what they did."""

import contextlib
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.options import Config, Json, settings_of, utc
from streaming.clock import SystemClock
from streaming.config.amounts import time_of
from streaming.errors import ReaperError
from streaming.terminal import count_of, say, say_json, some_of

if TYPE_CHECKING:
    from streaming.config.settings import Settings
    from streaming.ports import MetadataStore

log = logging.getLogger("ledger-reaper")

_NAMED = 3  # unreadable entries
Why = Annotated[str, typer.Option("--why", help="Your reason, for `ledger-reaper history`")]


def history(
    config: Config,
    since: Annotated[str, typer.Option("--since", help="Only since this time: 2h (ago), 2026-11-28T17:05 (UTC)")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many, the newest")] = 100,
    json_lines: Json = False,
) -> None:
    """Show what operators did on this cluster, oldest first: who paused, resumed, accepted, requested or undid what.

    ZooKeeper keeps the newest 1,000 entries below zookeeper.own_root, and dates them by its own clock.
    """
    from streaming.clients import command_clients
    from streaming.coordination.operator_log import OperatorLog

    settings = settings_of(config)
    since_ms = time_of(since, "--since", SystemClock().now_ms()) if since else 0
    with command_clients(settings) as clients:
        operator_log = OperatorLog(clients.store, settings.zookeeper.own_root)
        entries, unreadable = operator_log.entries(), operator_log.unreadable()
    entries = [entry for entry in entries if entry.at_ms >= since_ms][-limit:]
    for entry in entries:
        if json_lines:
            say_json(asdict(entry))
        else:
            why = f" (why: {entry.why})" if entry.why and not entry.what.startswith(f"{entry.why} (by ") else ""
            say(f"{utc(entry.at_ms)}  {entry.who}  {entry.service}  {entry.command}: {entry.what}{why}")
    if unreadable:
        count = count_of(len(unreadable), "further entry", "further entries")
        say(f"{count} can't be read: {some_of(unreadable, _NAMED)}", err=True)
    elif not entries and not json_lines:
        say("No operator has changed anything yet." if not since else "No operator has changed anything since then.")


class Unchanged(str):
    """A command's message that it changed nothing."""

    __slots__ = ()


def record(
    settings: "Settings", command: str, what: str, *, why: str = "", store: "MetadataStore | None" = None
) -> None:
    """Add what a command did to the history, unless it changed nothing (Unchanged).

    A failure is only logged, because the command has already acted.

    Args:
        settings: of the command.
        command: its name.
        what: what it did, as it printed it.
        why: the operator's reason.
        store: the command's open client; None: this function opens one.
    """
    from streaming.clients import open_store
    from streaming.coordination.operator_log import OperatorLog

    if isinstance(what, Unchanged):
        return
    try:
        with contextlib.ExitStack() as stack:
            if store is None:
                store = open_store(settings)
                stack.callback(store.close)
            entries = OperatorLog(store, settings.zookeeper.own_root)
            entries.add(service=settings.service.name, command=command, what=what, why=why)
    except ReaperError as error:
        log.warning("`ledger-reaper history` will not show this command: %s", error)
