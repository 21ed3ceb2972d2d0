"""Evaluates alert rules and queries on what a real service served, with promtool.

tests/data/scrapes has pages of services on a sandbox. The first line of each is the time. To record them again:
`RECORD_SCRAPE=1 pytest -m long tests/integration/test_alerts*.py`.
"""

import json
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.alert_rules import RULES
from tests.go_tools import required_tool

RECORDED = Path(__file__).parent / "data" / "scrapes"
# times that a service renews as long as it works
_RENEWED = re.compile(
    "ledger_reaper_(.+_read|accounts_checked|watcher_last_scan|snapshot_guard_pass)_timestamp_seconds"
)
_TIMES = re.compile(r"ledger_reaper_\w+_timestamp_seconds|process_start_time_seconds")
ALERTS = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@dataclass(frozen=True)
class Scrape:
    """What a service served at a time."""

    text: str
    at_s: float
    growth: Mapping[str, float] = field(default_factory=dict)  # metric -> by how much it grows in a second from then on

    @classmethod
    def recorded(cls) -> "list[Scrape]":
        """Return the recorded scrapes."""
        scrapes = []
        for file in sorted(RECORDED.glob("*.txt")):
            first, _, text = file.read_text(encoding="utf-8").partition("\n")
            scrapes.append(cls(text, float(first.removeprefix("# at "))))
        return scrapes

    def record(self, name: str) -> None:
        """Replace a recorded scrape."""
        (RECORDED / f"{name}.txt").write_text(f"# at {self.at_s}\n{self.text}", encoding="utf-8")

    @cached_property
    def samples(self) -> dict[str, float]:
        """Series, as promtool writes them -> value."""
        return {
            _series(sample.name, sample.labels): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def working(self, *without: str) -> "Scrape":
        """Return it for a history in which the service continues to read facts, check and scan, except `without`."""
        renewed = {name for name in map(_metric_of, self.samples) if _RENEWED.fullmatch(name)}
        return replace(self, growth={**self.growth, **dict.fromkeys(renewed - {*without}, 1.0)})

    def growing(self, counter: str, since: "Scrape") -> "Scrape":
        """Return it for a history in which a counter continues to grow as it has grown since another scrape."""
        grown = (self.value(counter) or 0.0) - (since.value(counter) or 0.0)
        return replace(self, growth={**self.growth, counter: grown / (self.at_s - since.at_s)})

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
    """Return the value of each query at the end of a history; each has a value without labels.

    A scrape counts as taken when it appears in the history: its times move with it, unless the scrape before has them.
    """
    steps = sum(n for _scrape, n in history)
    test: dict[str, Any] = {
        "interval": f"{step_minutes}m",
        "start_timestamp": int(history[0][0].at_s),
        "input_series": _input_series(history, step_minutes * 60),
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


def _metric_of(series: str) -> str:
    return series.partition("{")[0]


def _input_series(history: Sequence[Held], step_s: int) -> list[dict[str, str]]:
    names = sorted({name for scrape, _n in history for name in scrape.samples})
    return [{"series": name, "values": _values(name, history, step_s)} for name in names]


def _values(name: str, history: Sequence[Held], step_s: int) -> str:
    """Return a series' values as promtool writes them."""
    metric, at_s = _metric_of(name), history[0][0].at_s
    values: list[str] = []
    before: tuple[float, float] | None = None  # in the last scrape that had it, and after its part
    for scrape, n in history:
        raw = scrape.samples.get(name)
        if raw is not None:
            value = raw
            if raw and _TIMES.fullmatch(metric):
                value = before[1] if before and before[0] == raw else raw + at_s - scrape.at_s
            growth = scrape.growth.get(metric, 0.0) * step_s if raw else 0.0
            values.append(f"{value:.6f}+{growth:.6f}x{n - 1}")
            before = raw, value + growth * n
        else:
            is_first = bool(values) and not values[-1].startswith(("stale", "_"))
            values += ["stale", *([f"_x{n - 1}"] if n > 1 else [])] if is_first else [f"_x{n}"]
        at_s += n * step_s
    return " ".join(values)


def scrape_of(text: str) -> Scrape:
    """Return a scrape that was read now."""
    return Scrape(text, time.time())
