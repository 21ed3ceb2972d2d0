"""Evaluates alert rules and queries on what a real service served, with promtool.

tests/data/scrape.txt is the page of a service on a sandbox. Its first line is the time. To record it again:
`RECORD_SCRAPE=1 pytest -m long tests/integration/test_alerts.py`.
"""

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.alert_rules import RULES
from tests.go_tools import required_tool

RECORDED = Path(__file__).parent / "data" / "scrape.txt"
ALERTS = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@dataclass(frozen=True)
class Scrape:
    """What a service served at a time."""

    text: str
    at_s: float

    @classmethod
    def recorded(cls) -> "Scrape":
        """Return the recorded scrape; its first line is the time."""
        first, _, text = RECORDED.read_text(encoding="utf-8").partition("\n")
        return cls(text, float(first.removeprefix("# at ")))

    def record(self) -> None:
        """Replace the recorded scrape."""
        RECORDED.write_text(f"# at {self.at_s}\n{self.text}", encoding="utf-8")

    @cached_property
    def samples(self) -> dict[str, float]:
        """Series, as promtool writes them -> value."""
        return {
            _series(sample.name, sample.labels): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def value(self, name: str, *labels: str) -> float | None:
        """Return the sum of a metric's series with these labels, as in `class="MISSING"`; None: there are none."""
        found = [
            value
            for series, value in self.samples.items()
            if series.startswith(f"{name}{{") and all(label in series for label in labels)
        ]
        return sum(found) if found else None


GONE = Scrape("", 0)  # no answer

Held = tuple[Scrape, int]  # a scrape, and for how many steps Prometheus gets the same


def firing(*history: Held, step_minutes: int = 1) -> set[str]:
    """Return the alerts that fire at the end of a history."""
    alive = [f'(count(ALERTS{{alertname="{name}",alertstate="firing"}}) > bool 0) or vector(0)' for name in ALERTS]
    values = evaluated(alive, *history, step_minutes=step_minutes)
    return {name for name, value in zip(ALERTS, values, strict=True) if value}


def evaluated(queries: Sequence[str], *history: Held, step_minutes: int = 1) -> list[float]:
    """Return the value of each query at the end of a history; each has a value without labels."""
    steps = sum(n for _scrape, n in history)
    served = [(scrape, n) for scrape, n in history if scrape is not GONE]
    last_s, before = served[-1][0].at_s, steps - [n for _scrape, n in history][-1]
    if history[-1][0] is GONE:
        before -= served[-1][1]
    names = sorted({name for scrape, _n in served for name in scrape.samples})
    test: dict[str, Any] = {
        "interval": f"{step_minutes}m",
        "start_timestamp": int(last_s) - before * step_minutes * 60,
        "input_series": [{"series": name, "values": _values(name, history)} for name in names],
        # promtool prints the value of an expectation that fails
        "promql_expr_test": [
            {
                "expr": query,
                "eval_time": f"{(steps - 1) * step_minutes}m",
                "exp_samples": [{"labels": '{n="no such label"}', "value": 0}],
            }
            for query in queries
        ],
    }
    document = {"rule_files": [str(RULES)], "evaluation_interval": f"{step_minutes}m", "tests": [test]}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "test.yaml"
        path.write_text(json.dumps(document))
        done = subprocess.run(
            [required_tool("promtool"), "test", "rules", path], capture_output=True, text=True, check=False, timeout=300
        )
    return _answers(done.stdout + done.stderr, queries)


def _answers(output: str, queries: Sequence[str]) -> list[float]:
    """Return the values that promtool got instead of the expected."""
    failures = output.split('expr: "')[1:]
    assert len(failures) == len(queries), output[-4000:]
    values = []
    for query, failure in zip(queries, failures, strict=True):
        got = failure.partition("got:")[2].strip()
        assert got.startswith("{} "), f"{query}: {failure[-2000:]}"
        values.append(float(got.split()[1]))
    return values


def _series(name: str, labels: dict[str, str]) -> str:
    return f"{name}{{{','.join(f'{label}={json.dumps(value)}' for label, value in labels.items())}}}"


def _values(name: str, history: Sequence[Held]) -> str:
    values: list[str] = []
    for scrape, n in history:
        value = scrape.samples.get(name)
        if value is not None:
            values += [f"{value:.6f}"] * n
        else:
            values += ["stale", *["_"] * (n - 1)] if values and values[-1] not in ("stale", "_") else ["_"] * n
    return " ".join(values)


def scrape_of(text: str) -> Scrape:
    """Return a scrape that was read now."""
    return Scrape(text, time.time())
