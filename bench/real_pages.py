"""Writes the reports of a real cluster, and photographs them: for README's picture, and to view after a change.

    python -m bench.real_pages --home DIR --out DIR [--picture docs/space.png]

The cluster in --home is new: three bookies, with a backlog, retention, tiered storage and leaked ledgers of three
tenants. The pages are those of `audit` (with its chapter about space), `space` and `snapshots audit`. --picture is the
top of `space`'s page. It takes about four minutes.
"""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

from bench.browser import photograph, size_of
from bench.session import command_line
from streaming.sandbox import cluster as clusters
from streaming.sandbox import cluster_faults, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part

_COMPLETE = (0, 4)  # exit codes of a result; 4: an operator must check it
_PICTURE = (1000, 760)  # width and height in px
_MESSAGE = 60_000
_ORDERS, _CARTS, _PAYMENTS = (f"persistent://shop/prod/{name}" for name in ("orders", "carts", "payments"))
_EVENTS, _ACCESS = "persistent://analytics/web/events", "persistent://ops/logs/access"
_NAMESPACES = {"shop": ["prod"], "analytics": ["web"], "ops": ["logs"]}


def _create(cluster: Cluster) -> None:
    every = json.loads(topics.admin(cluster, "GET", "clusters"))
    for tenant, names in _NAMESPACES.items():
        topics.admin(cluster, "PUT", f"tenants/{tenant}", {"allowedClusters": every, "adminRoles": []})
        for name in names:
            topics.admin(cluster, "PUT", f"namespaces/{tenant}/{name}")
    keep = {"retentionTimeInMinutes": 10_080, "retentionSizeInMB": 10_240}
    topics.admin(cluster, "POST", "namespaces/ops/logs/retention", keep)
    topics.fill(cluster, _PAYMENTS, 12, ["billing"], entry_bytes=_MESSAGE)
    with cluster_faults.crash_with_metadata_fault(cluster):
        topics.delete_topic(cluster, _PAYMENTS)
    topics.fill(cluster, _EVENTS, 14, ["dashboard"], entry_bytes=_MESSAGE)
    topics.offload(cluster, _EVENTS)


def _grow(cluster: Cluster) -> None:
    topics.fill(cluster, _ORDERS, 16, ["warehouse", "old-report"], entry_bytes=_MESSAGE)
    topics.consume(cluster, _ORDERS, "warehouse", 16 * topics.ENTRIES_PER_LEDGER)
    topics.fill(cluster, _CARTS, 8, ["recommend"], entry_bytes=_MESSAGE)
    topics.consume(cluster, _CARTS, "recommend", 3 * topics.ENTRIES_PER_LEDGER)
    topics.fill(cluster, _ACCESS, 10, ["search"], entry_bytes=_MESSAGE)
    topics.consume(cluster, _ACCESS, "search", 10 * topics.ENTRIES_PER_LEDGER)


def _run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "streaming", *arguments], check=False, capture_output=True, text=True)
    if done.returncode not in _COMPLETE:
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def _photograph(page: Path, folder: Path, name: str) -> None:
    for width, theme in product((400, 1200), ("light", "dark")):
        wide, high = size_of(page, width)
        photograph(page, folder / f"{name}-{width}-{theme}.png", width=width, height=min(high, 12_000), theme=theme)
        if wide > width:
            raise SystemExit(f"{page} is {wide} px wide on a screen of {width} px")


def main() -> None:
    """Run everything."""
    parser = command_line(__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    chosen = parser.parse_args()
    out = chosen.out
    out.mkdir(parents=True, exist_ok=True)
    try:
        cluster = clusters.up(chosen.home, counts={Part.BOOKIE: 3})
        config = ["--config", str(cluster.home.config)]
        for step in (_create, _grow, _grow):
            step(cluster)
            for command in ("space", "audit"):
                quick = ["--recheck-seconds", "1"] if command == "audit" else []
                _run(command, *config, *quick, "--out", str(out / command))
        _run("snapshots", "audit", *config, "--recheck-seconds", "1", "--out", str(out / "snapshots"))
    finally:
        clusters.down(chosen.home)
    for name, page in (("space", "space.html"), ("audit", "report.html"), ("snapshots", "report.html")):
        _photograph(out / name / page, out, name)
    if chosen.picture:
        width, height = _PICTURE
        photograph(out / "space" / "space.html", chosen.picture, width=width, height=height, theme="light")


if __name__ == "__main__":
    main()
