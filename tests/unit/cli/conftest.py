"""A terminal for the tests of commands that ask."""

import os
import pty
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard input is a terminal; bytes written to the file descriptor are the operator's input."""
    person, ours = pty.openpty()
    with open(ours) as stdin:  # noqa: PTH123  a descriptor, no path
        monkeypatch.setattr(sys, "stdin", stdin)
        yield person
    os.close(person)
