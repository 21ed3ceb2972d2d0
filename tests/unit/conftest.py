"""Tables for the audits of these tests."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from streaming.audit.tables import Tables


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    with closing(Tables(tmp_path, Event())) as opened:
        yield opened
