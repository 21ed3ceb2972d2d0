"""Fills a sandbox in the ways in which clusters get full: `python docs/examples/fill_sandbox.py HOME`, two minutes.

`carts` has a subscription that no consumer uses any more. While the broker drops old ledgers of `orders`, it is killed:
the ledgers are no longer in the topic's list, and no broker deletes them.
"""

import sys
from pathlib import Path

from streaming.sandbox import cluster, orphans, topics

CARTS = "persistent://public/default/carts"
ORDERS = "persistent://public/default/orders"
MESSAGE_BYTES = 100_000  # ten messages fill a ledger of the sandbox


def main(home: Path) -> None:
    """Fill the sandbox below `home`."""
    sandbox = cluster.attach(home)
    topics.fill(sandbox, CARTS, 40, ["last-years-report"], entry_bytes=MESSAGE_BYTES)
    leaked = orphans.orphan_everything(sandbox, [ORDERS], ledgers=60, entry_bytes=MESSAGE_BYTES)
    print(f"carts has 40 unread ledgers, and {len(leaked[ORDERS].data)} ledgers of orders leaked")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
