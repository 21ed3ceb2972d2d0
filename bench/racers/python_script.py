"""A serial script as operators publish them: it deletes the ledgers of ZooKeeper that no broker's answer names.

    python python_script.py find|delete ZOOKEEPER ADMIN [--careful]

It lists the ledgers before it asks for references, so that no ledger that is created in between seems unreferenced. A
topic whose statistics can't be read is skipped with a warning. With --careful, the ledgers whose metadata name such a
topic are kept, and all buckets of delayed messages, which the statistics do not name. The file `orphans` of the current
folder has a ledger id in each line.
"""

import sys
from pathlib import Path
from urllib.parse import quote, unquote_plus

import httpx
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

BUCKET = b"pulsar/delayedIndexTopic"


def ledgers(zk: KazooClient) -> dict[int, str]:
    """Return each ledger's path."""
    found = {}
    for first in zk.get_children("/ledgers"):
        if first.isdigit():
            for second in zk.get_children(f"/ledgers/{first}"):
                for name in zk.get_children(f"/ledgers/{first}/{second}"):
                    found[int(first + second + name[1:])] = f"/ledgers/{first}/{second}/{name}"
    return found


def topics(zk: KazooClient) -> list[str]:
    """Return tenant/namespace/persistent/encoded of each topic."""
    found = []
    for tenant in zk.get_children("/managed-ledgers"):
        for namespace in zk.get_children(f"/managed-ledgers/{tenant}"):
            folder = f"{tenant}/{namespace}/persistent"
            if zk.exists(f"/managed-ledgers/{folder}"):
                found += [f"{folder}/{name}" for name in zk.get_children(f"/managed-ledgers/{folder}")]
    return found


def references(http: httpx.Client, topic: str) -> set[int]:
    """Return the ledgers in the broker's statistics of the topic. Raises httpx.HTTPError."""
    tenant, namespace, _domain, name = topic.split("/")
    answer = http.get(f"admin/v2/persistent/{tenant}/{namespace}/{quote(unquote_plus(name), safe='')}/internalStats")
    answer.raise_for_status()
    stats = answer.json()
    ids = {ledger["ledgerId"] for ledger in stats["ledgers"] + (stats.get("schemaLedgers") or [])}
    ids |= {cursor["cursorLedger"] for cursor in stats["cursors"].values()}
    return ids | {(stats.get("compactedLedger") or {}).get("ledgerId", -1)}


def find(zk: KazooClient, admin: str, careful: bool) -> None:
    """Write the file `orphans`."""
    paths = ledgers(zk)
    referenced, failed = set(), []
    with httpx.Client(base_url=admin, follow_redirects=True, timeout=30) as http:
        for topic in topics(zk):
            try:
                referenced |= references(http, topic)
            except httpx.HTTPError as error:
                print(f"skipped: {topic}: {error}", file=sys.stderr)
                failed += [topic.encode(), topic.replace("/persistent/", "/").encode()]  # data, schemas
    orphans = sorted(paths.keys() - referenced)
    if careful:
        orphans = [ledger for ledger in orphans if not is_of(zk, paths[ledger], [*failed, BUCKET])]
    Path("orphans").write_text("".join(f"{ledger}\n" for ledger in orphans))


def is_of(zk: KazooClient, path: str, names: list[bytes]) -> bool:
    """Whether the ledger's metadata contain one of the names."""
    try:
        metadata = zk.get(path)[0]
    except NoNodeError:
        return True
    return any(name in metadata for name in names)


def delete(zk: KazooClient) -> None:
    """Delete the metadata of each ledger of the file `orphans`, as BookKeeper's own delete does."""
    paths = ledgers(zk)
    for ledger in map(int, Path("orphans").read_text().split()):
        if ledger in paths:
            zk.delete(paths[ledger])


def main() -> None:
    what, hosts, admin, *options = sys.argv[1:]
    zk = KazooClient(hosts=hosts)
    zk.start()
    if what == "find":
        find(zk, admin, "--careful" in options)
    else:
        delete(zk)
    zk.stop()


if __name__ == "__main__":
    main()
