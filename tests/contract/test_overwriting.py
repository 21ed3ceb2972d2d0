"""Whether a store refuses to overwrite is tried out before any state is written there, and nothing is left of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.coordination.overwriting import require_no_overwriting
from streaming.errors import ConfigError, UnavailableError
from tests.contract.s3_server import S3Server, s3_running


@pytest.fixture
def server() -> Iterator[S3Server]:
    with s3_running() as running:
        yield running


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    name = f"state-{uuid4().hex[:20]}"
    server.client().create_bucket(Bucket=name)
    return name


@pytest.fixture
def settings(server: S3Server, bucket: str, tmp_path: Path) -> Settings:
    config = tmp_path / "config.toml"
    config.write_text(f'[state]\ndir = "s3://{bucket}/of/me"\n[s3]\nendpoint = "{server.endpoint}"\n')
    return load(config)


def _versions(server: S3Server, bucket: str) -> list[Any]:
    found = server.client().list_object_versions(Bucket=bucket)
    return [*found.get("Versions", []), *found.get("DeleteMarkers", [])]


@pytest.mark.parametrize("has_versions", [False, True])
def test_a_store_that_refuses_is_taken(server: S3Server, settings: Settings, bucket: str, has_versions: bool) -> None:
    if has_versions:
        server.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert "refuses to overwrite when asked" in require_no_overwriting(settings)
    assert _versions(server, bucket) == []


@pytest.mark.parametrize("has_versions", [False, True])
def test_a_store_that_overwrites_is_refused(
    server: S3Server, settings: Settings, bucket: str, has_versions: bool
) -> None:
    if has_versions:
        server.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    server.overwrites = True
    with pytest.raises(ConfigError, match="overwrites an object although we ask it not to") as refused:
        require_no_overwriting(settings)
    assert f"s3://{bucket}/of/me, {server.endpoint}" in str(refused.value)
    assert _versions(server, bucket) == []


def test_a_store_that_does_not_know_the_question_is_refused(server: S3Server, settings: Settings) -> None:
    server.answer(
        "NotImplemented", status="501 Not Implemented", times=9, match=lambda environ: "HTTP_IF_NONE_MATCH" in environ
    )
    with pytest.raises(ConfigError, match="overwrites"):
        require_no_overwriting(settings)


@pytest.mark.parametrize("overwrites", [False, True])
def test_a_lost_answer_changes_nothing(server: S3Server, settings: Settings, bucket: str, overwrites: bool) -> None:
    server.overwrites = overwrites
    lost: list[bool] = []

    def first_put(environ: dict[str, Any]) -> bool:
        if environ["REQUEST_METHOD"] != "PUT" or lost:
            return False
        lost.append(True)
        key = environ["PATH_INFO"].lstrip("/").partition("/")[2]
        server.fill(bucket, {key: environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))})
        return True

    server.answer("SlowDown", match=first_put)
    if overwrites:
        with pytest.raises(ConfigError, match="overwrites"):
            require_no_overwriting(settings)
    else:
        require_no_overwriting(settings)
    assert lost
    assert _versions(server, bucket) == []


def test_a_bucket_that_is_not_there_or_not_ours_is_told(server: S3Server, settings: Settings, bucket: str) -> None:
    server.answer("AccessDenied", status="403 Forbidden", times=1)
    with pytest.raises(ConfigError, match=r"can't be written: .*AccessDenied"):
        require_no_overwriting(settings)
    server.client().delete_bucket(Bucket=bucket)
    with pytest.raises(ConfigError, match="there is no bucket"):
        require_no_overwriting(settings)


def test_a_store_that_is_away_is_no_answer(
    server: S3Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.coordination.overwriting._SECONDS", 0.5)
    server.stop()
    with pytest.raises(UnavailableError):
        require_no_overwriting(settings)


def test_a_disk_is_not_asked(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[state]\ndir = "{tmp_path}/state"\n')
    require_no_overwriting(load(config))
    assert not (tmp_path / "state").exists()
