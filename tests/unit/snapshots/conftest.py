from pathlib import Path

import pytest

from streaming.state.filesystem import Folder, folder_of


@pytest.fixture
def journal(tmp_path: Path) -> Folder:
    return folder_of(str(tmp_path / "journal"))
