"""Kills and outages for a service whose state or checkpoints are on the embedded cluster's S3."""

import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.reckoning import reckon
from tests.integration.conftest import Deployment, killed_at_the_end, leak, new_topic, payload, stop, wait_until


def topic_with_leaks(cluster: Cluster, count: int) -> tuple[str, list[int]]:
    """Create a topic, and leak some of its ledgers."""
    topic = new_topic("s3")
    topics.fill(cluster, topic, 3, ["s"])
    return topic, leak(cluster, topic, count)


def kill_repeatedly(cluster: Cluster, service: Deployment, log: Path, *, kills: int) -> tuple[list[int], list[int]]:
    """Kill the service after a chunk of each run, then let it finish: nothing is lost or doubled.

    Returns:
        The leaked ledgers, and the ledgers in use.
    """
    topic, leaked = topic_with_leaks(cluster, 600)
    listed = topics.data_ledgers(cluster, topic)
    service.request([payload(topic, ledger_id) for ledger_id in leaked] + [payload(topic, listed[0])] * 5)

    for _ in range(kills):
        before = len(service.receipts())
        with killed_at_the_end(service.start("run", log=log)) as running:
            wait_until(lambda before=before: len(service.receipts()) > before, running, log)  # type: ignore[misc]
    service.run("run", "--until-idle")

    outcomes = Counter(row["outcome"] for rows in service.final().values() for row in rows)
    assert outcomes["DELETED"] + outcomes["ALREADY_GONE"] == len(leaked)
    assert outcomes["DEAD_LETTER"] == 5
    reckoning = reckon(service.settings)
    assert (reckoning.requests, reckoning.open, reckoning.wrong) == (605, 0, [])
    return leaked, listed


def survive_an_outage_of_s3(
    cluster: Cluster,
    service: Deployment,
    log: Path,
    during_the_outage: Callable[[subprocess.Popen[bytes], Sequence[int]], None],
) -> None:
    """Stop S3 for a while: nothing is lost or processed twice.

    Args:
        during_the_outage: called with the service and the ledgers whose requests are not processed yet.
    """
    topic, leaked = topic_with_leaks(cluster, 60)
    service.request(payload(topic, ledger_id) for ledger_id in leaked[:20])
    with killed_at_the_end(service.start("run", log=log)) as running:
        wait_until(lambda: len(service.final()) == 20, running, log)
        cluster.stop(Part.S3)
        try:
            service.request(payload(topic, ledger_id) for ledger_id in leaked[20:40])
            during_the_outage(running, leaked[20:])
        finally:
            cluster.start(Part.S3)
        service.request(payload(topic, ledger_id) for ledger_id in leaked[40:])
        wait_until(lambda: len(service.final()) == 60, running, log)
        stop(running)

    assert service.outcomes() == Counter({("DELETED", "UNREFERENCED"): 60})
    reckoning = reckon(service.settings)
    assert (reckoning.requests, reckoning.open, reckoning.wrong) == (60, 0, [])
