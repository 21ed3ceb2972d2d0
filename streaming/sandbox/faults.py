"""Faults of a real cluster, on demand: crashes, stalls, and metadata that nobody has the right to delete."""

import contextlib
import signal
from collections.abc import Iterator

from streaming.sandbox import clients, process
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import LEDGERS_ROOT, Instance, Part


def kill(cluster: Cluster, part: Instance) -> None:
    """Kill -9, as a crash would; returns when nothing of the process is left. No-op if it does not run.

    The S3 part may lose what it was given in its last second.
    """
    process.kill(cluster.home.record(part))


def restart(cluster: Cluster, part: Instance) -> None:
    """Start the part again and return when it serves. It keeps its ports if they are free."""
    cluster.start(part)


def pause(cluster: Cluster, part: Instance) -> None:
    """Freeze the part (SIGSTOP): it answers nothing, its connections stay open."""
    process.send(cluster.home.record(part), signal.SIGSTOP)


def resume(cluster: Cluster, part: Instance) -> None:
    """Let a frozen part continue (SIGCONT)."""
    process.send(cluster.home.record(part), signal.SIGCONT)


@contextlib.contextmanager
def paused(cluster: Cluster, part: Instance) -> Iterator[None]:
    """Freeze the part until the with block ends."""
    pause(cluster, part)
    try:
        yield
    finally:
        resume(cluster, part)


@contextlib.contextmanager
def metadata_fault(cluster: Cluster) -> Iterator[None]:
    """Until the with block ends, nobody has the right to delete a ledger's metadata; everything else works.

    The broker repeats a failed delete from memory for about three minutes, so a ledger becomes an orphan only if the
    broker dies before the right returns (crash_with_metadata_fault).
    """
    with clients.without_delete_right(cluster.addresses.zookeeper, LEDGERS_ROOT):
        yield


@contextlib.contextmanager
def crash_with_metadata_fault(cluster: Cluster) -> Iterator[None]:
    """Make orphans: within the with block brokers update their lists and can't delete; at its end they are killed.

    The right to delete returns after the kill; then the brokers are started again.
    """
    try:
        with metadata_fault(cluster):
            yield
            kill_brokers(cluster)
    finally:
        restart_brokers(cluster)


def kill_brokers(cluster: Cluster) -> None:
    """Kill all brokers."""
    for part in cluster.spec.all_of(Part.BROKER):
        kill(cluster, part)


def restart_brokers(cluster: Cluster) -> None:
    """Start those brokers again that don't run, and return when they serve."""
    cluster.start(*cluster.spec.all_of(Part.BROKER))
