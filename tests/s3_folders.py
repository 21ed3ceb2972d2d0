"""Fixtures for folders on S3. A conftest imports both, and sets the credentials of its processes."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from streaming.config.sections import StoreSettings
from streaming.config.stores import located
from tests.contract.s3_server import S3Server, s3_running


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with s3_running() as running:
        yield running


@pytest.fixture
def on_s3(s3_server: S3Server) -> str:
    """The location of a folder in a new bucket."""
    bucket = f"folder-{uuid4().hex[:20]}"
    s3_server.client().create_bucket(Bucket=bucket)
    return located(StoreSettings(endpoint=s3_server.endpoint, region="us-east-1"), f"s3://{bucket}/a/of-me")
