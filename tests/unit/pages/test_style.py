"""Texts and marks of all pages have enough contrast (WCAG 2: 4.5 for texts, 3 for marks) in both themes."""

import re

import pytest

from streaming.pages.style import STYLE

LIGHT, DARK = (dict(re.findall(r"--(\w+):(#\w+)", rules)) for rules in re.findall(r":root\{([^}]*)\}", STYLE))
TEXTS = ("ink", "dim", "bad", "loss", "ok")
MARKS = ("bad", "use", "tier", "c1", "c2", "c3", "c4", "c5")
LEAF = 0.3  # share of the mark's colour in an area of the treemap


def _channels(colour: str) -> tuple[float, ...]:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    return tuple(int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))


def _contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    def luminance(channels: tuple[float, ...]) -> float:
        linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["paper", "bg"])
def test_texts_and_marks_contrast_with_the_ground(theme: dict[str, str], ground: str) -> None:
    colours = {name: _channels(colour) for name, colour in theme.items()}
    assert {name for name in TEXTS if _contrast(colours[name], colours[ground]) < 4.5} == set()
    assert {name for name in MARKS if _contrast(colours[name], colours[ground]) < 3} == set()


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_names_contrast_with_the_areas_of_the_treemap(theme: dict[str, str]) -> None:
    colours = {name: _channels(colour) for name, colour in theme.items()}
    assert f"color-mix(in srgb,var(--mark) {LEAF:.0%},var(--paper))" in STYLE
    for mark in MARKS:
        pairs = zip(colours[mark], colours["paper"], strict=True)
        area = tuple(LEAF * value + (1 - LEAF) * paper for value, paper in pairs)
        assert _contrast(colours["ink"], area) >= 4.5, mark
