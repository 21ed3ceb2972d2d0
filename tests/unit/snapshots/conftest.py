from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from streaming.audit.stages import Engine
from streaming.audit.tables import Tables
from streaming.audit.workers import Workers
from streaming.state.filesystem import Folder, folder_of


@pytest.fixture
def journal(tmp_path: Path) -> Folder:
    return folder_of(str(tmp_path / "journal"))


@pytest.fixture
def engine(tables: Tables) -> Iterator[Engine]:
    stop = Event()
    with closing(Workers(stop=stop, most=1)) as workers:
        yield Engine(tables=tables, workers=workers, stop=stop)
