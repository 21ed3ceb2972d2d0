"""The commands of docs/tutorial.md find what docs/examples/fill_sandbox.py stored, and free it."""

import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from streaming.sandbox import topics
from tests.integration.conftest import running_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.long]

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024


def test_the_tutorial_leads_from_both_causes_to_freed_bytes(tmp_path: Path) -> None:
    home = tmp_path / "lr"

    def printed(*command: str) -> list[dict[str, Any]]:
        ran = subprocess.run(
            [sys.executable, "-m", "streaming", *command],
            cwd=tmp_path,
            env=os.environ | {"LEDGER_REAPER_CONFIG": str(home / "local.toml"), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            check=True,
        )
        return [json.loads(line) for line in ran.stdout.splitlines()] if "--json" in command else []

    def stored() -> dict[str, int]:
        [space] = printed("space", "--json")
        return {cause["cause"]: cause["stored"] for cause in space["causes"]}

    with running_cluster(home) as cluster:
        example = runpy.run_path(str(ROOT / "docs/examples/fill_sandbox.py"))
        example["main"](home)
        before = stored()
        assert before["backlog"] > 38 * MIB
        assert before["unreferenced"] > 55 * MIB

        printed("audit", "--out", "audit")
        printed("audit", "--out", "audit", "--last", "--publish", "--tenant", "public", "--yes")
        printed("run", "--until-idle")
        deleted = printed("receipts", "--topic", "orders", "--outcome", "DELETED", "--limit", "1000", "--json")
        assert len({receipt["ledger_id"] for receipt in deleted}) >= 60

        topics.admin(cluster, "DELETE", f"{topics.resource(example['CARTS'])}/subscription/last-years-report")
        printed("space", "--collect", "--yes")
        deadline = time.monotonic() + 120
        while sum(bookie["reclaimed"] or 0 for bookie in _bookies(printed)) < 60 * MIB:
            assert time.monotonic() < deadline, _bookies(printed)
            time.sleep(3)
        after = stored()
        assert after["backlog"] + after.get("unreferenced", 0) < 10 * MIB


def _bookies(printed: Any) -> list[dict[str, Any]]:
    [space] = printed("space", "--json")
    bookies: list[dict[str, Any]] = space["bookies"]
    return bookies
