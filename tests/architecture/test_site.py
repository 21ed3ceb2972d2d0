"""The documentation site: its generated pages are those of the code, and each link leads somewhere on this host."""

from pathlib import Path

import pytest

from streaming import errors
from tests import doc_site


@pytest.mark.parametrize("page", doc_site.generated_pages(), ids=lambda page: page.name)
def test_a_generated_page_is_what_the_code_generates(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == doc_site.generated_pages()[page], "run `make pages`"


def test_the_site_has_no_dead_link_no_orphan_page_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    assert doc_site.faults(doc_site.build(tmp_path)) == []
    assert doc_site.misread(tmp_path) == []
    commands = (tmp_path / "site" / "commands.html").read_text(encoding="utf-8")
    assert "&lt;debug|info|warning|error&gt;</code>" in commands.replace("&#124;", "|")
    assert "\\|" not in commands


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="gone.html">', "index.html: gone.html"),
        ('<a href="other.html#gone">', "index.html: other.html#gone"),
        ('<img src="https://example.com/a.png">', "index.html loads https://example.com/a.png"),
        ('<link rel="stylesheet" href="//example.com/a.css">', "index.html loads //example.com/a.css"),
        ("", "no page names other.html"),
    ],
)
def test_the_check_of_the_site_finds(body: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text('<a id="here" href="index.html">')
    sound = '<a href="other.html#here"><a href="https://example.com">' if body else ""
    (tmp_path / "index.html").write_text(sound + body)
    assert doc_site.faults(tmp_path) == [fault]


def test_the_page_of_commands_explains_every_exit_code() -> None:
    codes = {each.exit_code for each in vars(errors).values() if hasattr(each, "exit_code")} | {0}
    rows = (doc_site.DOCS / "commands.md").read_text(encoding="utf-8").split("| exit code |")[1].split("\n\n")[0]
    assert codes <= {int(row.split("|")[1]) for row in rows.splitlines()[2:-1]}
    assert "| 130, 143 |" in rows
