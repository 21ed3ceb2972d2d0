"""What others wrote can't act on the terminal or in the log: it is shown, character by character."""

import io
import json

import pytest
from rich.table import Table

from streaming.terminal import (
    Terminal,
    age_text,
    cell,
    flush,
    plain,
    plain_lines,
    say,
    say_json,
    say_json_line,
    say_lines,
    size_text,
    some_of,
)

ESCAPE, OVERRIDE = "\x1b[2J\x1b]0;title\x07", "\u202egnp.exe\u2066"
HOSTILE = f"orders[blink]-x {ESCAPE}{OVERRIDE}\r\n2026 INFO forged\x85\u2028\ud800 :bomb: [/]"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("orders-é ✓ 注文", "orders-é ✓ 注文", id="what can be read stays"),
        pytest.param("a\x1b[31mb", "a\\x1b[31mb", id="an escape sequence"),
        pytest.param("a\nb\rc\td", "a\\nb\\rc\\td", id="line breaks and tabs"),
        pytest.param("a\u202eb\u2066c\u200b", "a\\u202eb\\u2066c\\u200b", id="marks of direction and of no width"),
        pytest.param("\x9b31m\x7f\x00", "\\x9b31m\\x7f\\x00", id="control characters of all kinds"),
        pytest.param("\ud800", "\\ud800", id="half of a surrogate pair"),
        pytest.param("[blink]x[/]", "[blink]x[/]", id="markup of rich's"),
    ],
)
def test_a_text_becomes_one_line_of_what_a_terminal_only_prints(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert plain(text).isprintable()


def test_further_lines_of_a_text_are_seen_to_go_on_with_the_first() -> None:
    assert plain_lines("a\nb\n  c\n\nd\x1b") == "a\n    b\n  c\n\n    d\\x1b"


def test_a_line_and_a_text_are_said_on_the_stream_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\nb")
    say_lines("c\nd", err=True)
    assert capsys.readouterr() == ("a\\nb\n", "c\n    d\n")


def test_json_stays_json_and_is_as_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    say_json({"topic": HOSTILE})
    say_json_line(json.dumps({"topic": "plain"}))
    say_json_line(json.dumps({"topic": HOSTILE.replace("\ud800", "")}, ensure_ascii=False))
    out = capsys.readouterr().out
    assert [json.loads(line)["topic"] for line in out.splitlines()] == [HOSTILE, "plain", HOSTILE.replace("\ud800", "")]
    assert all(line.isprintable() and line.isascii() for line in out.splitlines())


def _printed(*what: object) -> str:
    out = io.StringIO()
    Terminal(file=out, width=400, force_terminal=False).print(*what)
    return out.getvalue()


def test_a_table_shows_markup_and_control_characters_as_they_are() -> None:
    table = Table()
    table.add_column("topic")
    table.add_row(cell(HOSTILE))
    table.add_row(HOSTILE.replace("\n", ""))  # forgotten: the console itself still lets nothing through
    shown = _printed(table)
    assert shown.count("orders[blink]-x \\x1b[2J") == 2
    assert ":bomb:" in shown
    assert all(line.isprintable() for line in shown.splitlines())


def test_a_text_on_the_console_shows_what_it_holds_and_keeps_its_lines() -> None:
    shown = _printed(f"a [bold]b[/] {ESCAPE}\n{OVERRIDE}")
    assert shown.splitlines()[0].startswith("a [bold]b[/] \\x1b[2J")
    assert all(line.isprintable() for line in shown.splitlines())
    assert len(shown.splitlines()) == 2


def test_rich_still_moves_the_cursor_itself() -> None:
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=True, color_system="standard")
    console.control(*[])
    console.print(cell("red"), style="red")
    assert out.getvalue().startswith("\x1b[31mred")


class _Closed(io.StringIO):
    def flush(self) -> None:
        raise OSError("no space left on device")


def test_what_can_not_be_handed_on_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flush()
    monkeypatch.setattr("sys.stdout", _Closed())
    assert not flush()


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_have_the_unit_that_fits(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59, "59 s"), (60, "1 min"), (3599, "59 min"), (3660, "1 h 1 min"), (93_784, "1 d 2 h"), (864_000, "10 d")],
)
def test_ages_have_at_most_two_units(seconds: int, text: str) -> None:
    assert age_text(seconds) == text


def test_the_names_after_the_first_few_are_counted() -> None:
    shown = [some_of([1, "b", 3], most) for most in (1, 2, 3, 4)]
    assert shown == ["1 and 2 more", "1, b and 1 more", "1, b, 3", "1, b, 3"]
