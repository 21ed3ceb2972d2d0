"""Output folders for the audits of these tests: on a disk, and on S3."""

from pathlib import Path

import pytest

from streaming.audit.output import Output
from streaming.state.filesystem import folder_of


@pytest.fixture(params=["disk", "s3"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Output:
    location = str(tmp_path) if request.param == "disk" else request.getfixturevalue("on_s3")
    folder = folder_of(location)
    return Output(folder.location, folder.filesystem, folder.root)
