"""A start tests whether the store refuses to overwrite before it writes state, and deletes the test object."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from streaming import schemas
from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.memory.store import MemoryBroker, MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.adapters.s3.calls import S3Settings
from streaming.adapters.s3.if_none_match import refuses_to_overwrite
from streaming.check.preflight import Line, Status, check
from streaming.cli.main import app as cli
from streaming.cli.options import NoStateError
from streaming.clients import Clients
from streaming.clock import SystemClock
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.coordination.overwriting import require_no_overwriting
from streaming.deletion.instance import begin_instance
from streaming.errors import ConfigError, UnavailableError
from streaming.state.notes import hold
from streaming.state.receipts import Receipts
from tests.builders import ROOT, put
from tests.contract.s3_server import S3Server, s3_running
from tests.services import command_clients_of
from tests.tasks import Tasks
from udfs import columns as c
from udfs.paths import BROKERS


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
    listing = server.client().list_object_versions(Bucket=bucket)
    return [*listing.get("Versions", []), *listing.get("DeleteMarkers", [])]


@pytest.mark.parametrize("has_versions", [False, True])
def test_a_store_that_refuses_to_overwrite_is_accepted(
    server: S3Server, settings: Settings, bucket: str, has_versions: bool
) -> None:
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
    with pytest.raises(ConfigError, match="overwrites an object in spite of If-None-Match") as refused:
        require_no_overwriting(settings)
    assert f"s3://{bucket}/of/me, {server.endpoint}" in str(refused.value)
    assert _versions(server, bucket) == []


def test_a_store_without_if_none_match_is_refused(server: S3Server, settings: Settings) -> None:
    server.answer(
        "NotImplemented", status="501 Not Implemented", times=9, match=lambda environ: "HTTP_IF_NONE_MATCH" in environ
    )
    bucket = settings.state.dir.split("/")[2]
    assert not refuses_to_overwrite(S3Settings(endpoint=server.endpoint, bucket=bucket), "of/me")


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


def test_a_missing_or_forbidden_bucket_is_refused_with_its_cause(
    server: S3Server, settings: Settings, bucket: str
) -> None:
    server.answer("AccessDenied", status="403 Forbidden", times=1)
    with pytest.raises(ConfigError, match=r"can't be written: .*AccessDenied"):
        require_no_overwriting(settings)
    server.client().delete_bucket(Bucket=bucket)
    with pytest.raises(ConfigError, match="there is no bucket"):
        require_no_overwriting(settings)


def test_a_store_that_does_not_answer_is_unavailable(
    server: S3Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.coordination.overwriting._SECONDS", 0.5)
    server.stop()
    with pytest.raises(UnavailableError):
        require_no_overwriting(settings)


@pytest.fixture
def world(server: S3Server, bucket: str, tmp_path: Path) -> tuple[Settings, MemoryStore]:
    config = tmp_path / "all.toml"
    config.write_text(
        f'[zookeeper]\nledgers_root = "{ROOT}"\n[safety]\nexclusive_bookkeeper = true\n'
        f'[state]\ndir = "s3://{bucket}/of/me"\n[checkpoints]\ndir = "{tmp_path}/checkpoints"\n'
        f'[s3]\nendpoint = "{server.endpoint}"\n'
    )
    tree = MemoryTree(SystemClock())
    put(tree, f"{ROOT}/LAYOUT", b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
    put(tree, f"{ROOT}/INSTANCEID", b"id")
    put(tree, BROKERS)
    MemoryStore(tree).create(f"{BROKERS}/broker-1:8080", b"{}", ephemeral=True)
    return load(config), MemoryStore(tree)


def test_no_service_starts_on_a_store_that_overwrites(
    server: S3Server, bucket: str, world: tuple[Settings, MemoryStore]
) -> None:
    settings, store = world
    clients, pulsar = Clients(store, MemoryBroker()), MemoryPulsar()
    server.overwrites = True
    with pytest.raises(ConfigError, match="overwrites"), begin_instance(settings, clients, pulsar, threading.Event()):
        pass
    assert _versions(server, bucket) == []
    server.overwrites = False
    with begin_instance(settings, clients, pulsar, threading.Event()):
        pass
    assert "of/me/cluster.json" in server.keys(bucket)


def test_the_preflight_runs_the_same_test_and_leaves_nothing(
    server: S3Server, bucket: str, world: tuple[Settings, MemoryStore]
) -> None:
    settings, store = world
    pulsar = MemoryPulsar()
    clients = command_clients_of(store, pulsar)

    def state_on_s3() -> Line:
        return next(line for line in check(settings, clients, SystemClock()) if line.what == "state on S3")

    assert state_on_s3().status is Status.OK
    server.overwrites = True
    refused = state_on_s3()
    assert (refused.status, refused.exit_code) == (Status.PROBLEM, ConfigError.exit_code)
    assert "overwrites an object" in refused.says
    assert _versions(server, bucket) == []


def test_receipts_are_shown_from_s3(server: S3Server, bucket: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[state]\ndir = "s3://{bucket}/of/me"\n[s3]\nendpoint = "{server.endpoint}"\n')
    nothing = CliRunner().invoke(cli, ["receipts", "--config", str(config)])
    assert isinstance(nothing.exception, NoStateError)
    assert f"s3://{bucket}/of/me does not exist" in str(nothing.exception)
    settings = load(config)
    table = Receipts(None, settings.state_dir)  # type: ignore[arg-type]
    row = dict.fromkeys(schemas.RECEIPT.names) | {c.CHUNK: 1, c.LEDGER_ID: 7, c.OUTCOME: "DELETED", c.AT_MS: 1}
    row |= {c.REASON: "DELETED", c.ORIGIN_MESSAGE_ID: "1:2:0"}
    rows: Any = Tasks(pa.Table.from_pylist([row], schema=schemas.RECEIPT))
    table.append(rows, 1)
    hold.note(settings.state_dir, "paused by an operator", now_ms=1)

    shown = CliRunner().invoke(cli, ["receipts", "--config", str(config), "--json"])

    assert shown.exit_code == 0
    assert '"ledger_id": 7' in shown.stdout
    assert "paused by an operator" in shown.output


def test_a_disk_is_not_tested(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[state]\ndir = "{tmp_path}/state"\n')
    require_no_overwriting(load(config))
    assert not (tmp_path / "state").exists()
