"""Measures how long one executor of the audit takes to list and read ledgers of a real ZooKeeper, on one connection.

    .venv/bin/python -m bench.audit_listing --home DIR [--ledgers 100000] [--runs 5]

`ledger-reaper sandbox up --home DIR` starts the necessary cluster. The script creates synthetic ledgers below /ledgers
and deletes them at the end. An audit lists every ledger, and reads those that no reference names.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bench.session import command_line
from streaming.audit.walk.listing import find_folders, ids_in
from streaming.audit.walk.suspects import LedgerReader, suspect_row
from streaming.clients import clients_for
from streaming.config.load import load
from streaming.coordination.identity import read_layout
from streaming.sandbox import ledger_list
from streaming.sandbox.cluster import attach
from streaming.sweep.pace import Pace
from udfs.paths import Layout

T = TypeVar("T")

FIRST_ID = 1_400_000_000
TOPIC = "persistent://public/default/made-up"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    cluster = attach(options.home)
    made = ledger_list.make_synthetic(cluster, TOPIC, count=options.ledgers, first_id=FIRST_ID)
    try:
        settings = load(options.home / "local.toml")
        store, root = clients_for(settings).store, settings.zookeeper.ledgers_root
        layout = read_layout(store, root)
        reader = LedgerReader(store, layout, root, Pace(0))
        both = [_run(reader, layout) for _ in range(1 + options.runs)][1:]
    finally:
        ledger_list.remove_synthetic(cluster, made)
    print(json.dumps({"ledgers": both[0][2], "list_s": _spread(both, 0), "read_s": _spread(both, 1)}, indent=2))


def _run(reader: LedgerReader, layout: Layout) -> tuple[float, float, int]:
    def listed() -> list[int]:
        folders = find_folders(reader.store, reader.root, layout).paths
        return ids_in(reader.root, folders, reader.store.children_many(folders), [])

    def read() -> list[object]:
        answers = zip(ids, reader.facts(ids), strict=True)
        return [suspect_row(ledger_id, facts, 0) for ledger_id, facts in answers if facts is not None]

    seconds_list, ids = _timed(listed)
    seconds_read, rows = _timed(read)
    return seconds_list, seconds_read, len(rows)


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def _spread(both: list[tuple[float, float, int]], part: int) -> dict[str, float]:
    seconds = [float(times[part]) for times in both]
    return {name: round(of(seconds), 2) for name, of in (("median", statistics.median), ("min", min), ("max", max))}


if __name__ == "__main__":
    main()
