"""A ledger's znode goes by a guarded delete or not at all, in the fake as on the real thing."""

import re

from streaming.errors import SafetyError

_LEDGER_LEAF = re.compile(r"/\d{2,4}/L\d{4}")


def refuse_ledgers(path: str) -> None:
    """Raise SafetyError where path has the shape of a BookKeeper ledger's znode."""
    if _LEDGER_LEAF.search(path):
        raise SafetyError(f"{path} is a ledger: it may only be deleted together with a check of its owner")
