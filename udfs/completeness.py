"""What the sources of an in-use set said of one owner, as a line for its receipts; and whether that is too little.

`zookeeper=12@7 broker=11 at=1700000000000`: ids named, and the version of the owner's znode; `?` could not be read,
`-` not asked or no such owner. `was=500/480`: believed before, and what is named now is so much less that nothing of
this owner's may be deleted until a person has accepted it.
"""

import re

from udfs.records import Counts, Presence, Reference

_WAS = re.compile(r" was=(-?\d+)/(-?\d+)")
_NOW = re.compile(r"zookeeper=(\d+)@\S+ broker=(\d+|-) ")


def shrunk(before: Counts | None, now: Counts, *, most: float, above: int) -> str:
    """Name the source that names far less than before, in the operator's words; "" where none does.

    most: largest share that may go between two looks (1: any); sources that named `above` ids or fewer are not judged.
    A source that names nothing at all any more has its own rules: absence is proven by both, twice.
    """
    if before is None:
        return ""
    for source, was, is_now in (
        ("ZooKeeper", before.listed, now.listed),
        ("the broker", before.remembered, now.remembered),
    ):
        if was > above and 0 <= is_now < was * (1 - most):
            return f"{source} named {was} ledgers of it, and now {is_now}"
    return ""


def certificate(reference: Reference, believed: Counts | None = None) -> str:
    """Say what was read of the owner; believed: what was, where it is so much more that now is not."""
    if reference.presence is Presence.UNREADABLE:
        read = f"? {reference.detail}"[:300]
    elif reference.presence is Presence.GONE:
        read = "zookeeper=- broker=-"
    else:
        versions = ",".join(str(version) for _path, version in reference.checks[:3])
        more = ",…" if len(reference.checks) > 3 else ""
        broker = reference.counts.remembered
        read = f"zookeeper={reference.counts.listed}@{versions}{more} broker={'-' if broker < 0 else broker}"
    was = "" if believed is None else f" was={believed.listed}/{believed.remembered}"
    return f"{read} at={reference.read_at_ms}{was}"


def believed_by(text: str) -> Counts | None:
    """The counts to compare the next look with; None where the certificate says nothing."""
    if was := _WAS.search(text):
        return Counts(int(was[1]), int(was[2]))
    if now := _NOW.match(text):
        return Counts(int(now[1]), -1 if now[2] == "-" else int(now[2]))
    return None


def is_unread(text: str) -> bool:
    """Whether a source could not be read."""
    return text.startswith("?")
