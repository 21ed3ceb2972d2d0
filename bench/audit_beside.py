"""Measures the memory of an audit beside the running service, for a host or a container of 4 GiB.

    .venv/bin/python -m bench.audit_beside [--ledgers 1000000] [--leaked 50000]

The service runs on a new cluster with the JVM options of production, and processes requests for leaked ledgers. At the
same time, bench/audit_memory.py audits a simulated ZooKeeper with the memory that an audit beside the service has. It
does so in a process of its own, which therefore has the libraries once more than an audit in the service's process. The
script prints the highest resident memory of each, and the sum of both, with the pages counted once that processes
share.
"""

import json
import sys
import time

from bench import audit_memory
from bench.backlog import configured, messages
from bench.sampler import Sampler
from bench.session import command_line, scratch_cluster
from bench.supervisor import Supervisor, rows_in
from streaming.adapters.pulsar.publish import send_all
from streaming.clients import admin_for
from streaming.config.load import load
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.state.receipts import TABLE
from streaming.topics.setup import ensure_topics

TOPIC = "persistent://public/default/beside"
CHUNK_ROWS, FIRST_ID = 50_000, 1_000_000
_STOP_S, _PATIENCE_S = 60.0, 240.0


def run(cluster: Cluster, ledgers: int, leaked: int) -> None:
    """Measure both at the same time."""
    config = cluster.home.config
    config.write_text(configured(config.read_text(), CHUNK_ROWS))
    settings = load(config)
    topics.fill(cluster, TOPIC, 3, ["s"])
    ids = ledger_list.make_synthetic(cluster, TOPIC, count=leaked, first_id=FIRST_ID)
    with admin_for(settings) as admin:
        ensure_topics(admin, settings)
    send_all(settings.pulsar, settings.topics.requests[0], messages(ids, leaked))
    service = Supervisor(config, cluster.home.root / "service.log").start()
    try:
        with Sampler(service.pid) as of_service:
            with audit_memory.started(ledgers, "--beside", "--without-space") as audit, Sampler(audit.pid) as of_audit:
                audit.wait()
            deadline_s = time.monotonic() + _PATIENCE_S
            while rows_in(settings, TABLE) < leaked and time.monotonic() < deadline_s:
                time.sleep(1)
        peaks = {"service": of_service.peak_mb(), "audit": of_audit.peak_mb()}
        total = sum(peak["shared_once_mb"] for peak in peaks.values())
        print(json.dumps({"ledgers": ledgers, "receipts": rows_in(settings, TABLE), **peaks, "sum_mb": total}))
        if audit.returncode or service.poll() is not None or rows_in(settings, TABLE) < leaked:
            sys.exit(f"the audit ended with {audit.returncode}, the service with {service.poll()}")
    finally:
        service.terminate()
        service.wait(_STOP_S)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--ledgers", type=int, default=1_000_000)
    parser.add_argument("--leaked", type=int, default=50_000)
    options = parser.parse_args()
    with scratch_cluster("beside") as cluster:
        run(cluster, options.ledgers, options.leaked)


if __name__ == "__main__":
    main()
