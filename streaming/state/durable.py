"""Writes of local files that survive a crash of the machine."""

import os
from pathlib import Path


def durable_write(path: Path, text: str) -> None:
    """Write a file. A reader, and a start after a crash, finds the complete new file, the old one, or none."""
    aside = path.with_name(f".{path.name}.aside")
    aside.write_text(text, encoding="utf-8")
    flush(aside)  # before the rename, so that no name ever refers to a file that is not on the disk
    aside.replace(path)
    flush(path.parent)


def flush(path: str | Path) -> None:
    """Return after a local file, or the names in a local folder, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
