"""Bookies with disks of their own: a full disk, from `No writable ledger dirs` to the command that frees space; and the
directories of three bookies, measured with `du`.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import LEDGERS_ROOT, Further, Home, Part
from streaming.sandbox.parts import part_clients
from tests.integration.conftest import Deployment, config_text, running_cluster
from tests.integration.printed_commands import run_printed
from tests.integration.space_scenes import World, closed_ledgers, du, filled, mounted_disk, new_namespace, service_of

pytestmark = [pytest.mark.cluster, pytest.mark.long]

DISK_BYTES = 768 * 1024 * 1024  # RocksDB preallocates 156 MB of it
OTHER_FILES_BYTES = 380 * 1024 * 1024
ENTRY_BYTES = 1024 * 1024
NEARLY_FULL_BYTES = 24 * 1024 * 1024
READ_ONLY = f"{LEDGERS_ROOT}/available/readonly/bookie-0"
TOPIC, UNUSED = "persistent://public/default/orders", "nobody-uses-it"
LOGGED = "No writable ledger dirs below diskUsageThreshold"  # as in the table of the README

PUBLISH_SECONDS = 25
PUBLISHER = """
import os, sys, pulsar
url, topic, entries, size = sys.argv[1:]
client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
producer = client.create_producer(topic, batching_enabled=False)
for _ in range(int(entries)):
    producer.send(os.urandom(int(size)))
client.close()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose only bookie has a small file system of its own."""
    home = tmp_path_factory.mktemp("full")
    disk = Home(home.resolve()).data(Part.BOOKIE) / "ledgers"
    with mounted_disk(disk, DISK_BYTES):
        # files of others, so that the disk is full soon
        with (disk / "other-files").open("wb") as others:
            os.posix_fallocate(others.fileno(), 0, OTHER_FILES_BYTES)
        with running_cluster(home) as running:
            yield running


@pytest.fixture(scope="module")
def full(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """The cluster, once its bookie is read-only, and a configuration like that of the README."""
    part_clients.subscribe(cluster.serving.pulsar, TOPIC, [UNUSED])
    deadline = time.monotonic() + 300
    while not _is_read_only(cluster):
        assert time.monotonic() < deadline, _disk(cluster)
        if _disk(cluster).free < NEARLY_FULL_BYTES:
            time.sleep(2)  # the bookie checks its disk every 10 s, and ends if the disk has no byte left
        _publish(cluster, 4 if _disk(cluster).free > 2 * NEARLY_FULL_BYTES else 1)
    here = tmp_path_factory.mktemp("service")
    config = here / "local.toml"
    texts = {"name": "full", "chunk_rows": 1000, "home": cluster.home.root, "here": here}
    config.write_text(config_text(cluster, limits="", classes="", **texts))
    return Deployment(config)


def _publish(cluster: Cluster, entries: int) -> bool:
    """Publish messages; return whether the bookie stored them all."""
    # in a process of its own: while the bookie refuses writes, a send of the client does not end at its timeout
    arguments = [cluster.serving.pulsar, TOPIC, str(entries), str(ENTRY_BYTES)]
    try:
        done = subprocess.run([sys.executable, "-c", PUBLISHER, *arguments], timeout=PUBLISH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _disk(cluster: Cluster) -> Any:
    return shutil.disk_usage(cluster.home.data(Part.BOOKIE) / "ledgers")


def _is_read_only(cluster: Cluster) -> bool:
    return part_clients.znode_exists(cluster.addresses.zookeeper, READ_ONLY)


def test_from_no_writable_ledger_dirs_to_the_command_that_frees_space(full: Deployment, cluster: Cluster) -> None:
    assert LOGGED in cluster.home.log(Part.BOOKIE).read_text(errors="replace")
    assert not _publish(cluster, 1)

    # the command that the README's table names beside the line of the log
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (row,) = [line for line in readme.splitlines() if line.startswith("|") and LOGGED in line]
    (command,) = re.findall(r"`ledger-reaper ([^`]*)`", row)
    shown = full.call(*command.split())
    assert "read-only" in shown
    assert "backlog" in shown
    whole = full.document("space")
    (bookie,) = whole["bookies"]
    assert bookie["disk_free"] < 0.02 * bookie["disk_total"]
    used = du(cluster.home.data(Part.BOOKIE) / "ledgers")
    assert bookie["disk_total"] - bookie["disk_free"] == pytest.approx(used, rel=0.01)
    assert bookie["read_only"]
    assert max(whole["causes"], key=lambda row: row["stored"])["cause"] == "backlog"
    backlog = next(fix for fix in whole["fixes"] if fix["cause"] == "backlog")
    clear = backlog["commands"][0]
    assert clear in " ".join(full.call("space").replace("\\\n", " ").split())

    used = _disk(cluster).used
    run_printed(cluster, clear)

    topics.wait_for(lambda: not _is_read_only(cluster), "the bookie to take writes again", seconds=120)
    freed = used - _disk(cluster).used
    assert freed == pytest.approx(backlog["frees_stored"], rel=0.05)
    topics.wait_for(lambda: _publish(cluster, 1), "the topic to be written again", seconds=60)


def test_the_disks_of_three_bookies_are_their_whole_directories(tmp_path: Path) -> None:
    home = Home(tmp_path.resolve() / "home")
    bookies = (Part.BOOKIE, Further(Part.BOOKIE, 2), Further(Part.BOOKIE, 3))
    with ExitStack() as stack:
        for bookie in bookies:
            # `space` takes file systems of one size and one host for the same
            stack.enter_context(mounted_disk(home.data(bookie), DISK_BYTES + bookie.number * 1024 * 1024))
        cluster = stack.enter_context(running_cluster(home.root, counts={Part.BOOKIE: len(bookies)}))
        topic = filled(cluster, new_namespace(cluster, "disks"))
        time.sleep(4)  # bookies flush every second

        document = World(cluster, service_of(cluster, tmp_path)).space()

        by_id = {each["bookie"]: each for each in document["bookies"]}
        used = {bookie: du(home.data(bookie)) for bookie in bookies}
        for bookie in bookies:
            shown = by_id[f"bookie-{bookie.number - 1}"]
            assert shown["disk_total"] - shown["disk_free"] == pytest.approx(used[bookie], rel=0.01)
            # what is not the ledgers' records: the journal, RocksDB, and what entry logs have beside live records
            others = [du(each) for each in home.data(bookie).rglob("*") if each.is_dir() and _is_index_or_journal(each)]
            logs = sum(log.stat().st_blocks * 512 for log in home.data(bookie).rglob("*.log") if _is_entry_log(log))
            assert shown["live"] <= logs
            assert logs + sum(others) == pytest.approx(used[bookie], rel=0.01)
        stored = sum(stored for _one_copy, stored in closed_ledgers(cluster, topic).values())
        assert sum(by_id[each]["live"] for each in by_id) >= stored > 0
        assert document["disks"]["disk_bookies"] == len(bookies)
        assert document["disks"]["disk_used"] == pytest.approx(sum(used.values()), rel=0.01)
        assert document["disks"]["shared"] == 0


def _is_index_or_journal(folder: Path) -> bool:
    return folder.name == "journal" or (folder.parent.name == "current" and (folder / "CURRENT").is_file())


def _is_entry_log(file: Path) -> bool:
    return file.parent.name == "current" and file.read_bytes()[:4] == b"BKLO"
