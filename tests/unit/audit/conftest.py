"""Output folders for the audits of these tests: on a disk, and on S3."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from streaming.audit.output import Output
from streaming.config.sections import StoreSettings
from streaming.config.stores import located
from streaming.state.filesystem import folder_of
from tests.contract.s3_server import S3Server, s3_running

os.environ.setdefault("AWS_ACCESS_KEY_ID", "any")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "any")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with s3_running() as running:
        yield running


@pytest.fixture
def on_s3(s3_server: S3Server) -> str:
    """The location of a folder in a new bucket."""
    bucket = f"audit-{uuid4().hex[:20]}"
    s3_server.client().create_bucket(Bucket=bucket)
    return located(StoreSettings(endpoint=s3_server.endpoint, region="us-east-1"), f"s3://{bucket}/a/of-me")


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.long)])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Output:
    """Return the folder; `make test` uses S3 only in tests that ask for it, which read and write in every way."""
    location = str(tmp_path) if request.param == "disk" else request.getfixturevalue("on_s3")
    folder = folder_of(location)
    return Output(folder.location, folder.filesystem, folder.root)
