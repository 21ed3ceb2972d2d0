"""How a first sight of "the owner is gone" travels with a retried request without being forgeable.

The service signs what it saw; a request that brings a sighting of its own making is as if it brought none. What
was seen for one ledger says nothing for another: an owner may be gone, come back with new ledgers, and be unseen again.
The key lives beside the epoch in ZooKeeper: who can read and write there could delete ledgers anyway.
"""

import hmac
from collections.abc import Mapping
from hashlib import sha256

from udfs.records import PendingDelete
from udfs.references import key_of

OWNER_ABSENT_SINCE = "OWNER_ABSENT_SINCE"


def subject_of(request: PendingDelete) -> str:
    """What a sighting is about: the owner, and the ledger (in tiered storage: the upload) that was asked for."""
    upload = request.offload_context.uuid if request.offload_context else ""
    return f"{key_of(request)}#{request.ledger_id}#{upload}"


def signed(secret: bytes, subject: str, since_ms: int) -> str:
    """`<ms>:<hex>`: the value of property OWNER_ABSENT_SINCE."""
    return f"{since_ms}:{_mac(secret, subject, since_ms)}"


def absent_since_ms(secret: bytes, subject: str, properties: Mapping[str, str | None]) -> int | None:
    """Since when we saw this subject's owner gone; None where nothing, nonsense or a forgery is written."""
    text = properties.get(OWNER_ABSENT_SINCE) or ""
    since, _, mac = text.partition(":")
    if not since.isascii() or not since.isdigit() or len(since) > 15:
        return None
    wanted = _mac(secret, subject, int(since))
    return int(since) if hmac.compare_digest(wanted.encode(), mac.encode("utf-8", "replace")) else None


def _mac(secret: bytes, subject: str, since_ms: int) -> str:
    return hmac.new(secret, f"{since_ms}\n{subject}".encode(), sha256).hexdigest()
