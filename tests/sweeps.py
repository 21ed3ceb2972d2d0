"""Helpers for tests of sweeps: verdicts of results, and actions of others during a sweep."""

from collections.abc import Callable, Sequence

from streaming.sweep.jobs import Swept
from tests.builders import TOPIC
from tests.world import Bench
from udfs.paths import managed_ledger_path
from udfs.records import Outcome, Reason, Reference

LIST = managed_ledger_path(TOPIC)
DATA = f"data:{TOPIC}"
DELETED = (Outcome.DELETED, Reason.UNREFERENCED)


def whys(swept: Sequence[Swept]) -> list[tuple[Outcome, Reason]]:
    return [(result.verdict.outcome, result.verdict.reason) for result in swept]


def why(swept: Sequence[Swept]) -> tuple[Outcome, Reason]:
    (only,) = whys(swept)
    return only


def cached_now(bench: Bench, *keys: str) -> dict[str, Reference]:
    return bench.loader().load(keys or [DATA])


def when(bench: Bench, operation: str, act: Callable[[], object], *, nth: int = 1) -> None:
    """Run an action right before the n-th operation of this kind."""
    calls: list[str] = []

    def hook(started: str, _paths: Sequence[str]) -> None:
        if started == operation:
            calls.append(started)
            if len(calls) == nth:
                act()

    bench.store.faults.before(hook)
