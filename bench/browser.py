"""Photographs HTML files with Debian's Chromium, as the pages look on a screen of a given width and theme."""

import re
import subprocess
import tempfile
from pathlib import Path

_SCHEME = {"dark": 0, "light": 1}  # Blink's preferredColorScheme
_MEASURE = (
    "<script>document.title=`wide ${document.documentElement.scrollWidth} of ${innerWidth}, "
    "high ${document.documentElement.scrollHeight}`</script>"
)


def size_of(page: Path, width: int) -> tuple[int, int]:
    """Return how wide and high (px) a page is on a screen of this width: wider than it if the page scrolls sideways."""
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(folder) / "measured.html"
        measured.write_text(page.read_text() + _MEASURE)
        dom = _chromium(measured, width, 900, "light", "--dump-dom")
    found = re.search(r"wide (\d+) of (\d+), high (\d+)", dom)
    if found is None or int(found[2]) != width:
        raise RuntimeError(f"Chromium did not show {page} {width} px wide")
    return int(found[1]), int(found[3])


def photograph(page: Path, picture: Path, *, width: int, height: int, theme: str) -> None:
    """Write a PNG of the page's first `height` px; theme: light or dark."""
    _chromium(page, width, height, theme, f"--screenshot={picture}")


def _chromium(page: Path, width: int, height: int, theme: str, action: str) -> str:
    with tempfile.TemporaryDirectory() as profile:
        return subprocess.run(
            [
                "chromium-headless-shell",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                f"--blink-settings=preferredColorScheme={_SCHEME[theme]}",
                f"--window-size={width},{height}",
                action,
                page.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
