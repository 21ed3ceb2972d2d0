"""Sightings: since when an owner has been gone, signed and written into the retry copy of a request.

An owner counts as gone only if we saw it gone twice (udfs.verdicts.judge), so the time of the first sighting travels
with the request. We sign it, and a sighting that we did not sign does not count. A sighting is about one ledger only:
an owner may go, come back with new ledgers, and go again. The key for the signature is beside the epoch in ZooKeeper;
an attacker who can read and write there could delete ledgers anyway. Workers read it there, so it never travels with a
task.
"""

import hmac
from collections.abc import Mapping
from hashlib import sha256

from udfs.owners.references import key_of
from udfs.records import PendingDelete

OWNER_ABSENT_SINCE = "OWNER_ABSENT_SINCE"


def subject_of(request: PendingDelete) -> str:
    """Return the subject of a sighting: the owner and the ledger, upload or message that the request names."""
    return f"{key_of(request)}#{request.ledger_id}#{_exactly(request)}"


def _exactly(request: PendingDelete) -> str:
    if request.snapshot_context is None:
        return request.part or ""
    return f"{request.snapshot_context.kind}/{request.snapshot_context.entry_id}/{request.snapshot_context.key}"


def signed(secret: bytes, subject: str, since_ms: int) -> str:
    """Return the value of property OWNER_ABSENT_SINCE: `<ms>:<hex>`."""
    return f"{since_ms}:{_mac(secret, subject, since_ms)}"


def absent_since_ms(secret: bytes, subject: str, properties: Mapping[str, str | None]) -> int | None:
    """Return since when the owner has been gone; None if the property is absent, nonsense or forged."""
    text = properties.get(OWNER_ABSENT_SINCE) or ""
    since, _, mac = text.partition(":")
    if not since.isascii() or not since.isdigit() or len(since) > 15:
        return None
    expected = _mac(secret, subject, int(since))
    return int(since) if hmac.compare_digest(expected.encode(), mac.encode("utf-8", "replace")) else None


def _mac(secret: bytes, subject: str, since_ms: int) -> str:
    return hmac.new(secret, f"{since_ms}\n{subject}".encode(), sha256).hexdigest()
