"""What can go wrong with a real cluster, on demand: crashes, stalls, and metadata that may not be deleted."""

import contextlib
import signal
from collections.abc import Iterator

from streaming.sandbox import clients, process
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import LEDGERS_ROOT, Part


def kill(cluster: Cluster, part: Part) -> None:
    """Kill -9, as a crash would; returns when nothing of the process is left. No-op if it does not run.

    The S3 part keeps its objects over a gentle stop only: what it got in its last second may be lost.
    """
    process.kill(cluster.home.record(part))


def restart(cluster: Cluster, part: Part) -> None:
    """Start the part again, on its old ports where they are free; returns when it serves."""
    cluster.start(part)


def pause(cluster: Cluster, part: Part) -> None:
    """Freeze the part (SIGSTOP): it answers nothing, its connections stay open."""
    process.send(cluster.home.record(part), signal.SIGSTOP)


def resume(cluster: Cluster, part: Part) -> None:
    """Let a frozen part go on (SIGCONT)."""
    process.send(cluster.home.record(part), signal.SIGCONT)


@contextlib.contextmanager
def paused(cluster: Cluster, part: Part) -> Iterator[None]:
    """Freeze the part until the end."""
    pause(cluster, part)
    try:
        yield
    finally:
        resume(cluster, part)


@contextlib.contextmanager
def metadata_fault(cluster: Cluster) -> Iterator[None]:
    """Until the end, nobody has the right to delete a ledger's metadata; all else works.

    The broker goes on trying in memory for about three minutes: what it failed to delete meanwhile becomes an
    orphan only if it dies before the end (crash_with_metadata_fault).
    """
    with clients.without_delete_right(cluster.addresses.zookeeper, LEDGERS_ROOT):
        yield


@contextlib.contextmanager
def crash_with_metadata_fault(cluster: Cluster) -> Iterator[None]:
    """The window in which orphans are born: the broker updates its lists, can't delete, and dies.

    On leaving, the unmodified broker is killed before the right to delete returns, then started again.
    """
    try:
        with metadata_fault(cluster):
            yield
            kill(cluster, Part.BROKER)
    finally:
        restart(cluster, Part.BROKER)
