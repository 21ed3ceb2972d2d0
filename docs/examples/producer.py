"""Drops a ledger as PIP-186 wants it: the request is durable before the ledger leaves its owner's list."""

import sys
from collections.abc import Callable

from ledger_reaper_client import LedgerComponent, LedgerDeletionService, LedgerType, Settings


def drop(service: LedgerDeletionService, topic: str, ledger_id: int, take_off_the_list: Callable[[], None]) -> str:
    """Send the request, then take the ledger off the list. If the first step raises, the ledger stays on the list."""
    sent = service.send_pending_delete_ledger(topic, ledger_id, None, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER)
    take_off_the_list()  # a crash before this line costs nothing: the sweep keeps what is listed
    return sent


if __name__ == "__main__":
    with LedgerDeletionService(Settings(sys.argv[1], sys.argv[2], lanes="tenant")) as service:
        print(drop(service, sys.argv[3], int(sys.argv[4]), lambda: None))
