"""`ledger-reaper space`: its options, exit codes and files, and the collection that it asks bookies for."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from streaming import clients
from streaming.cli.main import app
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from tests.unit.cli.test_confirmation import config_at
from tests.unit.space.reports import CARTS, CARTS_0, EMPTY, REPORT, UNKNOWN
from udfs.space.space_report import SpaceReport
from udfs.space.view import Filters


class Measured:
    """Stands in for streaming/space/reading/measure.py."""

    def __init__(self, report: SpaceReport) -> None:
        self.report = report
        self.asked: list[Mapping[str, Any]] = []

    def space_of(self, _settings: object, *, progress: Callable[[str, int], None], **asked: Any) -> SpaceReport:
        progress("ledgers", 5)
        progress("ledgers", 9)
        self.asked.append(asked)
        return self.report


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    fake = Measured(REPORT)
    module = ModuleType("streaming.space.reading.measure")
    module.space_of = fake.space_of  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return fake


def run(tmp_path: Path, *options: str, config: str = "") -> Result:
    file = tmp_path / "config.toml"
    file.write_text(f'[state]\ndir = "state"\n{config}')
    return CliRunner().invoke(app, ["space", *options, "--config", str(file)])


def test_the_default_shows_causes_bookies_and_commands(measured: Measured, tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.exit_code == 0, result.exception
    for text in ("By cause", "Largest subscriptions", "Bookies", "pulsar-admin topics clear-backlog"):
        assert text in result.stdout
    assert measured.asked == [{"reads_per_second": 50_000, "bookies": (), "filters": Filters()}]
    assert result.stderr.splitlines() == ["reading ledgers"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml"], "without --out, no file is written"


def test_an_incomplete_result_is_shown_and_ends_with_4(measured: Measured, tmp_path: Path) -> None:
    measured.report = replace(REPORT, unknown=(UNKNOWN,))
    for options in ((), ("--json",)):
        result = run(tmp_path, *options)
        assert isinstance(result.exception, SafetyError)
        assert result.exception.exit_code == 4
        assert "no right" in result.stdout


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_name_that_selects_nothing_is_questioned(measured: Measured, tmp_path: Path, form: tuple[str, ...]) -> None:
    measured.report = EMPTY
    result = run(tmp_path, "--topic", "shop/prod/cartz", *form)
    assert result.exit_code == 0, result.exception
    assert result.stderr.splitlines()[1:] == [
        "topic persistent://shop/prod/cartz does not exist, or stores nothing: check the name"
    ]
    measured.report = REPORT
    assert "check the name" not in run(tmp_path, "--tenant", REPORT.shares[0].topic.split("/")[2]).stderr


def test_an_empty_cluster_is_no_error(measured: Measured, tmp_path: Path) -> None:
    measured.report = EMPTY
    for by in ("cause", "tenant", "namespace", "topic", "subscription", "bookie"):
        for options in ((), ("--json",), ("--out", str(tmp_path / by))):
            result = run(tmp_path, "--by", by, *options)
            assert result.exit_code == 0, result.exception


@pytest.mark.parametrize(
    "name",
    [CARTS, "shop/prod/carts", "shop/prod/persistent/carts", CARTS_0],
)
def test_a_topic_may_be_named_in_every_form(measured: Measured, tmp_path: Path, name: str) -> None:
    fields = json.loads(run(tmp_path, "--json", "--by", "topic", "--topic", name).stdout)
    expected = {CARTS_0} if name == CARTS_0 else {CARTS_0, f"{CARTS}-partition-1"}
    assert {row["topic"] for row in fields["rows"]} == expected
    assert fields["totals"]["stored"] == sum(row["stored"] for row in fields["rows"])
    assert measured.asked[0]["filters"] == Filters(topic=CARTS_0 if name == CARTS_0 else CARTS)


def test_a_bookie_and_a_rate_are_passed_on(measured: Measured, tmp_path: Path) -> None:
    run(tmp_path, "--bookie", "http://a:1", "--bookie", "http://b:1", "--reads-per-second", "7", "--tenant", "shop")
    assert measured.asked == [
        {"reads_per_second": 7, "bookies": ("http://a:1", "http://b:1"), "filters": Filters(tenant="shop")}
    ]


def test_the_price_of_the_configuration_is_shown(measured: Measured, tmp_path: Path) -> None:
    config = '[space]\nprice_per_gb_month = 2\ncurrency = "EUR"\n'
    fields = json.loads(run(tmp_path, "--json", config=config).stdout)
    assert fields["totals"]["price_per_month"] == pytest.approx(fields["totals"]["stored"] / 1e9 * 2, abs=1e-4)
    assert (fields["currency"], "EUR" in run(tmp_path, config=config).stdout) == ("EUR", True)
    assert json.loads(run(tmp_path, "--json").stdout)["totals"]["price_per_month"] is None
    assert isinstance(run(tmp_path, config="[space]\nprice_per_gb_month = -1\n").exception, ConfigError)


def test_a_folder_gets_the_page_and_the_history(measured: Measured, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert json.loads(run(tmp_path, "--json", "--out", str(out)).stdout)["growth"] is None
    measured.report = replace(REPORT, at_ms=REPORT.at_ms + 60_000, shares=REPORT.shares[1:])
    assert "Growth in 1 min" in run(tmp_path, "--out", str(out)).stdout
    assert sorted(path.name for path in out.iterdir()) == ["space-history.jsonl", "space.html"]
    run(tmp_path, "--out", str(out), "--tenant", "shop")
    assert len((out / "space-history.jsonl").read_text().splitlines()) == 2, "a run with filters is not recorded"


def test_the_result_is_printed_even_if_the_folder_cannot_be_written(measured: Measured, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(tmp_path, "--out", str(tmp_path / "file" / "out"))
    assert isinstance(result.exception, UnavailableError)
    assert "By cause" in result.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--compact",), "Add --collect"),
        (("--yes",), "Add --collect"),
        (("--collect", "--yes", "--by", "topic"), "Leave out --collect"),
        (("--collect", "--yes", "--topic", "a/b/c"), "Leave out --collect"),
        (("--by", "colour"), "one of cause, tenant"),
        (("--topic", "a/b/c", "--tenant", "x"), "leave out --tenant"),
        (("--topic", "a/b/c", "--namespace", "a/x"), "leave out --namespace"),
        (("--topic", "a/b"), "--topic"),
        (("--namespace", "shop"), "shop/prod"),
        (("--collect",), "--yes answers the question beforehand"),
    ],
)
def test_invalid_options_are_refused(measured: Measured, tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    result = run(tmp_path, *options)
    assert isinstance(result.exception, ConfigError), result.output
    assert says in str(result.exception)
    assert measured.asked == []


class FakeBookies:
    def __init__(self) -> None:
        self.collected: list[tuple[str, bool]] = []

    def registered(self) -> dict[str, str]:
        return {"b": "http://b:8000", "a": "http://a:8000", "c": ""}

    def collect(self, url: str, *, compact: bool) -> None:
        if url.startswith("http://down"):
            raise UnavailableError("it does not answer")
        if url.startswith("http://old"):
            raise RefusedError("it would compact")
        self.collected.append((url, compact))


@pytest.fixture
def bookies(monkeypatch: pytest.MonkeyPatch) -> FakeBookies:
    fake = FakeBookies()

    @contextmanager
    def command_clients(_settings: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(bookies=fake)

    monkeypatch.setattr(clients, "command_clients", command_clients)
    return fake


@pytest.mark.parametrize("compact", [False, True])
def test_bookies_collect_and_compact_only_on_request(bookies: FakeBookies, tmp_path: Path, *, compact: bool) -> None:
    result = run(tmp_path, "--collect", "--yes", *(["--compact"] if compact else []))
    assert result.exit_code == 0, result.exception
    assert bookies.collected == [("http://a:8000", compact), ("http://b:8000", compact)]


def test_the_question_has_the_number_of_bookies(
    bookies: FakeBookies, terminal: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.write(terminal, b"n\n")
    with pytest.raises(SafetyError, match="nothing was done"):
        app(["space", "--collect", "--compact", "--config", str(config_at(tmp_path))], standalone_mode=False)
    asked = capsys.readouterr().err
    assert "Ask 2 bookies to collect garbage now and to rewrite entry logs" in asked
    assert bookies.collected == []


def test_a_bookie_that_is_down_does_not_stop_the_others(bookies: FakeBookies, tmp_path: Path) -> None:
    urls = ("--bookie", "http://down:1", "--bookie", "http://a:8000")
    result = run(tmp_path, "--collect", "--yes", "--json", *urls)
    assert isinstance(result.exception, UnavailableError)
    assert json.loads(result.stdout) == {
        "version": 1,
        "collected": ["http://a:8000"],
        "compact": False,
        "failed": {"http://down:1": "it does not answer"},
    }


def test_a_bookie_that_refuses_is_no_outage(bookies: FakeBookies, tmp_path: Path) -> None:
    result = run(tmp_path, "--collect", "--yes", "--bookie", "http://old:1", "--bookie", "a")
    assert isinstance(result.exception, RefusedError)
    assert bookies.collected == [("http://a:8000", False)], "a bookie may be named by its id"


def test_a_bookie_that_is_not_registered_is_refused(bookies: FakeBookies, tmp_path: Path) -> None:
    for name in ("c", "x"):
        result = run(tmp_path, "--collect", "--yes", "--bookie", name)
        assert isinstance(result.exception, ConfigError)
        assert "registered are a, b" in str(result.exception)


def test_a_report_of_no_bookie_is_refused(measured: Measured, tmp_path: Path) -> None:
    measured.report = EMPTY
    assert isinstance(run(tmp_path, "--bookie", "x").exception, ConfigError)


def test_no_bookie_with_an_http_server_can_be_asked(
    bookies: FakeBookies, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bookies, "registered", lambda: {"a": ""})
    result = run(tmp_path, "--collect", "--yes")
    assert "httpServerEnabled" in str(result.exception)
