"""Detects that a topic's ledger list, or its broker, suddenly names far fewer ledgers than before.

Each receipt keeps a line, the certificate, with how many ledgers the two sources of its owner named:
`zookeeper=12@7 broker=11 at=1700000000000`. The number after @ is the version of the owner's znode; `?` means that a
source could not be read, `-` that it was not asked or that the owner does not exist. `was=500/480` at the end means:
the sources named this many before, and now so many fewer that we delete nothing of this owner until an operator has
checked it.
"""

import re

from udfs.records import Counts, Presence, Reference

_WAS = re.compile(r" was=(-?\d+)/(-?\d+)")
_NOW = re.compile(r"zookeeper=(\d+)@\S+ broker=(\d+|-) ")


def shrunk(baseline: Counts | None, now: Counts, *, most: float, above: int) -> str:
    """Name the source that names far fewer ledgers than the baseline; "" if neither does.

    A source that no longer knows the owner (-1) is not judged here: the judge has its own rules for an owner that is
    gone.

    Args:
        baseline: the earlier counts; None: not known, so no source counts as shrunk.
        now: the current counts.
        most: the largest share that may be missing since the last read (1: any).
        above: a source whose baseline is this many ledgers or fewer is not judged.
    """
    if baseline is None or (baseline.listed <= now.listed and baseline.remembered <= now.remembered):
        return ""
    for source, before, after in (
        ("ZooKeeper", baseline.listed, now.listed),
        ("the broker", baseline.remembered, now.remembered),
    ):
        if before > above and 0 <= after < before * (1 - most):
            return f"{source} named {before} ledgers of it, and now {after}"
    return ""


def certificate(reference: Reference, baseline: Counts | None = None) -> str:
    """Write the certificate of an owner. baseline: given only if the owner shrank; it then follows `was=`."""
    if reference.presence is Presence.UNREADABLE:
        read = f"? {reference.detail}"[:300]
    elif reference.presence is Presence.GONE:
        read = "zookeeper=- broker=-"
    else:
        versions = ",".join(str(version) for _path, version in reference.checks[:3])
        more = ",…" if len(reference.checks) > 3 else ""
        broker = reference.counts.remembered
        read = f"zookeeper={reference.counts.listed}@{versions}{more} broker={'-' if broker < 0 else broker}"
    was = "" if baseline is None else f" was={baseline.listed}/{baseline.remembered}"
    return f"{read} at={reference.read_at_ms}{was}"


def baseline_in(text: str) -> Counts | None:
    """Return the counts to compare the next read with; None if the certificate contains none."""
    if was := _WAS.search(text):
        return Counts(int(was[1]), int(was[2]))
    if now := _NOW.match(text):
        return Counts(int(now[1]), -1 if now[2] == "-" else int(now[2]))
    return None


def is_unread(text: str) -> bool:
    """Whether a certificate records a source that could not be read."""
    return text.startswith("?")
