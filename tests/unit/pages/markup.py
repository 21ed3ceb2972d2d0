"""Parses HTML of our pages, and checks that it is well-formed and loads nothing."""

from collections.abc import Iterator
from html.parser import HTMLParser
from xml.etree import ElementTree

_VOID = {"meta", "rect", "line", "circle", "polygon", "polyline"}


class Tags(HTMLParser):
    """The tags that are still open, and what would load or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [
            f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "xlink:href") or name[:2] == "on"
        ]
        self.outside += [tag] if tag in ("script", "link", "img", "iframe") else []
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag


def assert_loads_nothing(text: str) -> None:
    """Fail if the markup is not closed, or loads or runs anything."""
    tags = Tags()
    tags.feed(text)
    assert (tags.open, tags.outside) == ([], [])
    assert "url(" not in text
    assert "@import" not in text


def elements(markup: str, tag: str, css: str = "") -> Iterator[ElementTree.Element]:
    """Yield the elements of a tag, with a CSS class if one is given."""
    for element in ElementTree.fromstring(f"<div>{markup}</div>").iter(tag):
        if not css or css in element.attrib.get("class", "").split():
            yield element


def percents(element: ElementTree.Element) -> dict[str, float]:
    """Return left, width, … of an element's style in percent."""
    sides = (part.split(":") for part in element.attrib["style"].split(";"))
    return {side: float(value.removesuffix("%")) for side, value in sides}
