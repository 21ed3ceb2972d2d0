"""Checks each final claim on the cluster itself: with BookKeeper's shell, in the bucket, and with a consumer."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from streaming.config.load import load
from streaming.errors import UnavailableError
from streaming.sandbox import disk_usage, shell, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.demo.leaks import Leaks, ledgers_in_use, objects_in_use
from streaming.sandbox.demo.request_groups import RequestGroup
from streaming.sandbox.demo.screen import Claims, console, short, step
from streaming.state.outcomes import receipts_of
from streaming.terminal import new_table
from udfs.records import LedgerType

_COLLECTED_SHARE = 0.7
_COLLECTION_SECONDS = 40


def show_receipts(cluster: Cluster, groups: Sequence[RequestGroup], took_s: float, checks: Claims) -> None:
    """Print the requests and their results, and claim that each request has exactly one final receipt."""
    final: dict[str, list[dict[str, Any]]] = {}
    for row in receipts_of(load(cluster.home.config)):
        if row["outcome"] != "RETRY":
            final.setdefault(row["message_id"], []).append(row)
    title = f"What was requested and what happened ({took_s:.0f} s, including the start of Spark)"
    shown = new_table(title, "requested", "requests", "what happened", "why", numbers=("requests",))
    rows = [row for some in final.values() for row in some]
    for group in groups:
        receipts = [row for row in rows if (row["ledger_id"], row["topic"], row["ledger_type"]) in group.named]
        seen = Counter(row["outcome"] for row in receipts)
        reasons = Counter(row["reason"] for row in receipts)
        shown.add_row(group.title, str(group.expected.total()), _counted(seen), _counted(reasons))
        if seen != +group.expected:
            checks.claim(f"{group.title}: expected {_counted(group.expected)}", holds=False, seen=_counted(seen))
    console.print()
    console.print(shown)
    total = sum(group.expected.total() for group in groups)
    exactly_one = len(final) == total and all(len(some) == 1 for some in final.values())
    checks.claim(f"each of the {total} requests has exactly one final receipt", holds=exactly_one)


def prove(cluster: Cluster, groups: Sequence[RequestGroup], leaks: Leaks, bytes_before: int, checks: Claims) -> None:
    """Claim that all leaked storage is gone, and that all other storage still exists."""
    gone = {
        named[0]
        for group in groups
        if group.expected["DELETED"]
        for named in group.named
        if named[2] == LedgerType.LEDGER
    }
    with step("bin/bookkeeper shell listledgers lists the ledgers that are left"):
        in_use = ledgers_in_use(cluster, leaks)
        left = shell.list_ledgers(cluster)
        in_use &= ledgers_in_use(cluster, leaks)  # live traffic continues, and the broker trims ledgers that were read
    checks.claim("none of the leaked ledgers is left", holds=not left & gone, seen=f"{len(gone)} were requested")
    checks.claim("every ledger that the broker refers to exists", holds=in_use <= left, seen=f"{len(in_use)} ledgers")
    keys = set(topics.objects(cluster))
    garbage = {key for upload in (*leaks.offloads.leaked, *leaks.offloads.stale) for key in upload.keys}
    checks.claim(
        "in S3 the leaked objects are gone, and exactly those in use are left",
        holds=not keys & garbage and keys == objects_in_use(leaks),
        seen=f"{len(garbage)} gone, {len(keys)} left",
    )
    _prove_space(cluster, bytes_before, checks)
    for topic, messages in leaks.messages.items():
        with step(f"a consumer reads {short(topic)} from the start"):
            topics.unload(cluster, topic)
            readable = topics.read_all(cluster, topic)
        checks.claim(f"all {len(messages)} messages of {short(topic)} can be read", holds=readable == messages != [])


def _prove_space(cluster: Cluster, before: int, checks: Claims) -> None:
    with step("the bookie collects its garbage"):
        disk_usage.trigger_gc(cluster)
        with contextlib.suppress(UnavailableError):
            topics.wait_for(
                lambda: disk_usage.entry_log_bytes(cluster) < before * _COLLECTED_SHARE,
                "disk space",
                seconds=_COLLECTION_SECONDS,
            )
    after = disk_usage.entry_log_bytes(cluster)
    seen = f"{before / 1e6:.2f} MB before, {after / 1e6:.2f} MB after"
    checks.claim("the bookie has freed the space on its disk", holds=after < before, seen=seen)


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted((+counter).items())) or "nothing"
