"""The earlier results: space-history.jsonl in --out has a line for each of the last runs without filters."""

import json
from dataclasses import replace
from typing import Any

from streaming.space.output.space_tables import Shown
from streaming.state.filesystem import Folder
from udfs.space.causes import Cause
from udfs.space.growth_by_cause import PastRun, growth, run_of

FILE = "space-history.jsonl"
VERSION = 1
_KEPT = 1000


def read(folder: Folder, cluster: str) -> list[PastRun]:
    """Return the cluster's runs, oldest first, without lines that can't be parsed. Raises UnavailableError."""
    runs = [_parsed(line) for line in _lines(folder)]
    return sorted((run for run in runs if run and run.cluster == cluster), key=lambda run: run.at_ms)


def newest(folder: Folder) -> PastRun | None:
    """Return the newest run, if any. Raises UnavailableError."""
    runs = [run for line in _lines(folder) if (run := _parsed(line))]
    return max(runs, key=lambda run: run.at_ms, default=None)


def compared(folder: Folder, shown: Shown) -> tuple[Shown, list[PastRun]]:
    """Return the result with its growth, and the runs up to this one. Raises UnavailableError.

    A result of filters has no growth, and no run.
    """
    if not shown.filters.are_empty:
        return shown, []
    now = run_of(shown.report)
    past = read(folder, shown.report.cluster)
    return replace(shown, growth=growth(past, now)), [*past, now]


def add(folder: Folder, newest: PastRun) -> None:
    """Append a run. Lines that can't be parsed are dropped; those of other clusters stay. Raises UnavailableError."""
    lines = [line for line in _lines(folder) if _parsed(line) is not None]
    document = {
        "version": VERSION,
        "at_ms": newest.at_ms,
        "cluster": newest.cluster,
        "complete": newest.complete,
        "one_copy": newest.one_copy,
        "stored": newest.stored,
        "causes": {cause: {"one_copy": one, "stored": stored} for cause, (one, stored) in newest.causes.items()},
    }
    kept = [*lines, json.dumps(document, separators=(",", ":")).encode()][-_KEPT:]
    folder.write(FILE, b"\n".join([*kept, b""]))


def _lines(folder: Folder) -> list[bytes]:
    return (folder.read(FILE) or b"").splitlines()


def _parsed(line: bytes) -> PastRun | None:
    try:
        fields: Any = json.loads(line)
        if fields["version"] != VERSION:
            return None
        return PastRun(
            at_ms=int(fields["at_ms"]),
            cluster=str(fields["cluster"]),
            complete=bool(fields["complete"]),
            one_copy=int(fields["one_copy"]),
            stored=int(fields["stored"]),
            causes={Cause(name): (int(row["one_copy"]), int(row["stored"])) for name, row in fields["causes"].items()},
        )
    # the history decides nothing, so a line of another version is only left out
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
