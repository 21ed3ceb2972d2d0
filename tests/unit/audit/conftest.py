"""Output folders for the audits of these tests: on a disk, and on S3."""

import os
from pathlib import Path

import pytest

from streaming.audit.output import Output
from streaming.state.filesystem import folder_of
from tests.s3_folders import on_s3, s3_server  # noqa: F401  pytest finds fixtures by their names here

os.environ.setdefault("AWS_ACCESS_KEY_ID", "any")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "any")


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.long)])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Output:
    """Return the folder; `make test` uses S3 only in tests that ask for it, which read and write in every way."""
    location = str(tmp_path) if request.param == "disk" else request.getfixturevalue("on_s3")
    folder = folder_of(location)
    return Output(folder.location, folder.filesystem, folder.root)
