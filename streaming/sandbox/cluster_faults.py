"""Injects faults into a real cluster: crashes, stalls, and metadata that no client may delete."""

import contextlib
import signal
from collections.abc import Iterator

from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import LEDGERS_ROOT, Instance, Part
from streaming.sandbox.parts import part_clients, process


def kill(cluster: Cluster, part: Instance) -> None:
    """Kill a part with SIGKILL, like a crash, and wait until its process has ended. Do nothing if it does not run.

    The S3 part may lose writes of its last second.
    """
    process.kill(cluster.home.record(part))


def restart(cluster: Cluster, part: Instance) -> None:
    """Start the part again and wait until it serves. It keeps its ports if they are free."""
    cluster.start(part)


def pause(cluster: Cluster, part: Instance) -> None:
    """Freeze the part (SIGSTOP): it does not answer, and its connections stay open."""
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
    """Until the with block ends, no client may delete a ledger's metadata; everything else works.

    The broker repeats a failed delete from memory for about three minutes, so a ledger becomes an orphan only if the
    broker dies before the permission is restored (crash_with_metadata_fault).
    """
    with part_clients.without_delete_right(cluster.addresses.zookeeper, LEDGERS_ROOT):
        yield


@contextlib.contextmanager
def crash_with_metadata_fault(cluster: Cluster) -> Iterator[None]:
    """Create orphans: in the with block brokers update their lists but can't delete ledgers.

    At its end they are killed; then the permission to delete is restored, and the brokers are started again.
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
    """Start the brokers that don't run, and wait until they serve."""
    cluster.start(*cluster.spec.all_of(Part.BROKER))
