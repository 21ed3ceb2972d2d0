"""The demo's steps: create leaks, audit, request the deletions, delete, and check the cluster afterwards.

Every claim at the end is checked on the cluster. The exit code is 1 if a claim does not hold.
"""

import shutil
import time
from pathlib import Path

from rich.rule import Rule

from streaming.sandbox import cluster as clusters
from streaming.sandbox import disk_usage
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.demo.leaks import Leaks, leak, ledgers_in_use
from streaming.sandbox.demo.proofs import prove, show_receipts
from streaming.sandbox.demo.request_groups import (
    RequestGroup,
    Row,
    claim_findings,
    findings,
    groups_of_audit,
    hostile,
    repeated,
)
from streaming.sandbox.demo.screen import Claims, console, reaper, step
from streaming.sandbox.demo.traffic import Traffic
from streaming.sandbox.parts.distribution import PULSAR_VERSION

_REPEATS = 5


def main() -> int:
    """Run the demo in a new cluster, and return the exit code."""
    started_s = time.monotonic()
    home = Path(".demo").absolute() / f"{int(time.time())}"
    console.print(Rule("[bold]Ledger Reaper[/]: what Pulsar leaks, found and deleted, on a real cluster"))
    try:
        with step(f"Pulsar {PULSAR_VERSION}, ZooKeeper, a bookie and an S3 server on free ports"):
            cluster = clusters.up(home)
        checks = Claims()
        with Traffic(cluster) as traffic:
            _play(cluster, checks)
            sent, received = traffic.stop()
        checks.claim(
            "the live producer and consumer never lost a message",
            holds=sent == received and sent > 0,
            seen=f"{sent} sent and {received} received during the demo",
        )
        console.print(Rule())
        verdict = "[green]all claims hold[/]" if not checks.failed else f"[bold red]false claims: {checks.failed}[/]"
        console.print(f"{verdict}, in {time.monotonic() - started_s:.0f} s")
        return 1 if checks.failed else 0
    finally:
        clusters.down(home)
        shutil.rmtree(home, ignore_errors=True)


def _play(cluster: Cluster, checks: Claims) -> None:
    leaks = leak(cluster)
    rows = _audit(cluster, leaks, checks)
    groups = _request_more(cluster, leaks, rows)
    bytes_before = disk_usage.entry_log_bytes(cluster)
    started_s = time.monotonic()
    with step("ledger-reaper run --until-idle processes all requests"):
        reaper("run", "--config", str(cluster.home.config), "--until-idle")
    show_receipts(cluster, groups, time.monotonic() - started_s, checks)
    prove(cluster, groups, leaks, bytes_before, checks)
    with step("ledger-reaper audit --verify-only finds no missing data"):
        reaper("audit", "--config", str(cluster.home.config), "--out", str(_out(cluster)), "--verify-only")


def _audit(cluster: Cluster, leaks: Leaks, checks: Claims) -> list[Row]:
    with step("ledger-reaper audit --publish finds what has leaked and requests its deletion"):
        reaper("audit", "--config", str(cluster.home.config), "--out", str(_out(cluster)), "--publish", "--yes")
    rows = findings(_out(cluster))
    claim_findings(rows, leaks, ledgers_in_use(cluster, leaks), checks)
    return rows


def _request_more(cluster: Cluster, leaks: Leaks, rows: list[Row]) -> list[RequestGroup]:
    groups, again = repeated(groups_of_audit(rows), rows, _REPEATS)
    harmful, payloads = hostile(cluster, leaks)
    with step(f"ledger-reaper request publishes {len(again) + len(payloads)} more requests, repeated or hostile"):
        stdin = b"\n".join([*again, *payloads])
        reaper("request", "--config", str(cluster.home.config), "--unchecked", stdin=stdin)
    return [*groups, *harmful]


def _out(cluster: Cluster) -> Path:
    return cluster.home.root / "audit"
