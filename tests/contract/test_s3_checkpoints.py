"""The service's own reads and writes of checkpoints, on an S3 store."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from streaming.check import questions as preflight
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.coordination.identity import ClusterIdentity
from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.queries import checkpoints as checkpoints_of
from streaming.queries.checkpoints import (
    committed_positions,
    is_unfinished,
    left_behind,
    location_of,
    refuse_changes,
    root_of,
)
from streaming.queries.conversion import carry_out, interrupted, plan
from tests.contract.s3_server import S3Server, s3_running
from tests.unit.queries.test_conversion import RETRY, KilledError, kill_at_each_effect, stored
from udfs.formats.spark_offsets import Writer

KEPT = Path(__file__).parent.parent / "data" / "checkpoint-v1"
FRAMES = KEPT.parent / "checkpoint-frames"
TOPIC = "persistent://pulsar/system/kept"
HERE = ClusterIdentity(
    instance_id="instance", ledgers_root="/ledgers", layout="hierarchical", pulsar_cluster="pulsar", service_name="main"
)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_running() as running:
        yield running


@pytest.fixture
def settings(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    bucket = f"checkpoints-{uuid4().hex[:20]}"
    server.client().create_bucket(Bucket=bucket)
    config = tmp_path / "config.toml"
    config.write_text(
        f'[topics]\nrequests = ["{TOPIC}"]\nretry = "{RETRY}"\n[state]\ndir = "{tmp_path / "state"}"\n'
        f'[checkpoints]\ndir = "s3a://{bucket}/mine"\n[s3]\nendpoint = "{server.endpoint}"\n'
    )
    return load(config)


@pytest.fixture
def kept(server: S3Server, settings: Settings) -> Settings:
    """A store with checkpoints as Spark 3.5 and Spark 4.3 wrote them."""
    bucket, _, folder = settings.checkpoints.dir.removeprefix("s3a://").partition("/")
    files = (path for path in KEPT.rglob("*") if path.is_file())
    server.fill(bucket, {f"{folder}/{path.relative_to(KEPT)}": path.read_bytes() for path in files})
    frames = FRAMES / "requests"
    files = (path for path in frames.rglob("*") if path.is_file())
    server.fill(bucket, {f"{folder}/requests-frames/{path.relative_to(frames)}": path.read_bytes() for path in files})
    return settings


def test_positions_are_read_like_from_a_disk(kept: Settings, tmp_path: Path) -> None:
    on_disk = Path(shutil.copytree(KEPT, tmp_path / "checkpoints"))

    for query in ("requests", "retry"):
        local = str(on_disk / query / "v1")
        assert committed_positions(location_of(kept, query)) == committed_positions(local)
        assert is_unfinished(location_of(kept, query)) == is_unfinished(local)
    assert committed_positions(location_of(kept, "requests")) == {f"{TOPIC}-partition-3": (1356, 4)}
    assert committed_positions(location_of(kept, "never-started")) == {}
    frames = "requests-frames"
    assert committed_positions(location_of(kept, frames)) == committed_positions(str(FRAMES / "requests" / "v1"))
    assert is_unfinished(location_of(kept, frames))
    assert len(left_behind(kept, [], lambda _topic: 4)) == 1


def test_checkpoints_are_converted_and_back(
    server: S3Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like on a disk, and killed at each effect: tests/unit/queries/test_conversion.py."""
    bucket, _, folder = settings.checkpoints.dir.removeprefix("s3a://").partition("/")
    pulsar, ends = stored(), []
    for dies_at in kill_at_each_effect(monkeypatch):
        for key in list(server.keys(bucket)):
            server.client().delete_object(Bucket=bucket, Key=key)
        filled = {str(path.relative_to(KEPT)): path.read_bytes() for path in KEPT.rglob("*") if path.is_file()}
        server.fill(bucket, {f"{folder}/{name}": content for name, content in filled.items()})
        planned = plan(settings, pulsar, Writer.FRAMES, "1")
        try:
            carry_out(settings, planned)
        except KilledError:
            if (again := interrupted(settings)) is None:
                continue
            carry_out(settings, again)
        assert interrupted(settings) is None
        assert committed_positions(location_of(settings, "requests"))[f"{TOPIC}-partition-3"] == (1356, 4)
        assert committed_positions(location_of(settings, "retry"))[f"{RETRY}-partition-0"] == (1290, -1)
        ends.append({key for key in server.keys(bucket) if not key.endswith("/")})
        assert dies_at
    assert len(ends) > 10
    assert all(end == ends[-1] for end in ends)
    carry_out(settings, plan(settings, pulsar, Writer.CONNECTOR, "2"))
    assert committed_positions(location_of(settings, "requests")) == {f"{TOPIC}-partition-3": (1356, 4)}


def test_a_changed_topic_is_refused(kept: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints_of, "has_connector", lambda: True)
    refuse_changes(kept, lambda _topic: 4)
    with pytest.raises(ConfigError, match=r"s3a://checkpoints-.*/mine/requests/v1 has read partition 3"):
        refuse_changes(kept, lambda _topic: 3)


def test_a_cluster_and_its_receipts_are_recorded(settings: Settings) -> None:
    root = root_of(settings)
    assert not identity.compare(HERE, root)

    identity.hold(HERE, root)
    identity.hold(HERE, root)
    identity.hold_state("receipts-1", root)
    identity.hold_state("receipts-1", root)

    assert identity.compare(HERE, root)
    with pytest.raises(SafetyError, match=r"^s3://checkpoints-\w+/mine belongs to another cluster"):
        identity.hold(replace(HERE, instance_id="another"), root)
    with pytest.raises(SafetyError, match=r"that s3://checkpoints-\w+/mine was created with"):
        identity.hold_state("receipts-2", root)


def test_the_preflight_leaves_nothing_behind(server: S3Server, settings: Settings) -> None:
    bucket = settings.checkpoints.dir.split("/")[2]
    with pytest.raises(preflight.Notice, match="mine does not exist yet; the first start creates it"):
        preflight.directory(root_of(settings))
    assert list(server.keys(bucket)) == []
    identity.hold(HERE, root_of(settings))
    before = list(server.keys(bucket))
    assert "mine exists" in preflight.directory(root_of(settings))
    assert list(server.keys(bucket)) == before


def test_no_service_starts_without_its_bucket(server: S3Server, settings: Settings) -> None:
    server.client().delete_bucket(Bucket=settings.checkpoints.dir.split("/")[2])

    with pytest.raises(UnavailableError):
        identity.hold(HERE, root_of(settings))
    with pytest.raises(ConfigError, match="there is no bucket"):
        preflight.directory(root_of(settings))


def test_a_store_that_refuses_reads_is_no_empty_checkpoint(server: S3Server, kept: Settings) -> None:
    server.answer("AccessDenied", status="403 Forbidden", times=1000)
    try:
        with pytest.raises(UnavailableError):
            committed_positions(location_of(kept, "requests"))
        with pytest.raises(UnavailableError):
            left_behind(kept, [], lambda _topic: 4)
        with pytest.raises(UnavailableError):
            identity.compare(HERE, root_of(kept))
        with pytest.raises(ConfigError, match="can't be checked"):
            preflight.directory(root_of(kept))
    finally:
        server.heal()
