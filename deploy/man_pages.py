"""Writes a man page of each command from its help: `python deploy/man_pages.py FOLDER`."""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from streaming.cli.main import program

PROGRAM = "ledger-reaper"
_FILES = (
    ("/etc/ledger-reaper/config.toml", "The configuration, if neither --config nor LEDGER_REAPER_CONFIG names another"),
)


def man_pages() -> dict[str, str]:
    """Return the man pages: file name -> text in roff."""
    top = program()
    commands = {name: command for name, command in top.commands.items() if not command.hidden}
    return {
        f"{PROGRAM}.1": _page(PROGRAM, top, commands),
        **{f"{PROGRAM}-{name}.1": _page(f"{PROGRAM} {name}", command, {}) for name, command in commands.items()},
    }


def _page(title: str, command: Any, own_pages: dict[str, Any]) -> str:
    """Return a command's page; the commands of a group are sections of it, and `own_pages` are referred to."""
    page = title.replace(" ", "-")
    first, *_ = _paragraphs(command.help)
    sections = {} if own_pages else getattr(command, "commands", {})
    return "\n".join(
        (
            f'.TH "{_escaped(page.upper())}" "1" "" "{PROGRAM} {version(PROGRAM)}" "{PROGRAM}"',
            ".SH NAME",
            # apropos(1) shows this line
            f"{_escaped(page)} \\- {_escaped(first.split('. ')[0].rstrip('.:').replace('`', ''))}",
            *_described(title, command),
            *_listed("COMMANDS", own_pages),
            *(
                line
                for name, inner in sections.items()
                for line in (
                    f'.SH "{_escaped(f"{title} {name}".removeprefix(PROGRAM).strip().upper())}"',
                    *_described(f"{title} {name}", inner, "SS"),
                )
            ),
            ".SH FILES",
            *(line for file, text in _FILES for line in (".TP", f"\\fI{_escaped(file)}\\fR", _formatted(text))),
            *((".SH SEE ALSO", f"\\fB{PROGRAM}\\fR(1)") if title != PROGRAM else ()),
            "",
        )
    )


def _described(title: str, command: Any, heading: str = "SH") -> Iterator[str]:
    """Yield synopsis, description and options of one command."""
    context = command.context_class(command, info_name=title)
    usage = " ".join(word for word in command.collect_usage_pieces(context))
    yield from (f".{heading} SYNOPSIS", f"\\fB{_escaped(title)}\\fR {_escaped(usage)}", f".{heading} DESCRIPTION")
    for paragraph in _paragraphs(command.help):
        yield from _text(paragraph)
    records = {"ARGUMENTS": [], "OPTIONS": []}  # type: dict[str, list[tuple[str, str]]]
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            records["OPTIONS" if parameter.param_type_name == "option" else "ARGUMENTS"].append(record)
    for kind, rows in records.items():
        if rows:
            yield f".{heading} {kind}"
        for name, text in rows:
            yield from (".TP", f"\\fB{_escaped(name)}\\fR", _formatted(text))


def _listed(title: str, commands: dict[str, Any]) -> Iterator[str]:
    if commands:
        yield f".SH {title}"
    for name, command in commands.items():
        yield from (".TP", f"\\fB{_escaped(f'{PROGRAM}-{name}')}\\fR(1)", _formatted(_paragraphs(command.help)[0]))


def _paragraphs(text: str) -> list[str]:
    return re.split(r"\n\s*\n", text.strip())


def _text(paragraph: str) -> Iterator[str]:
    """Yield a paragraph of Markdown; the items of a list are indented."""
    items = re.split(r"(?:^|\n)[-*] ", paragraph)
    if items[0]:
        yield from (".PP", _formatted(items[0]))
    for item in items[1:]:
        yield from (".IP \\(bu 2", _formatted(item))


def _formatted(text: str) -> str:
    """Return Markdown as one line of roff: `code` is bold."""
    line = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", _escaped(" ".join(text.split())))
    return f"\\&{line}" if line.startswith((".", "'")) else line


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


def main() -> None:
    """Write the pages into the folder that the command line names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in man_pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
