"""Undelete of objects, in buckets with and without versions."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.s3.objects import S3Objects
from streaming.clients import objects_for
from streaming.clock import SystemClock
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import ConfigError
from streaming.ports import Unreadable
from streaming.state.journal import ObjectEntry, ParquetJournal
from streaming.undo.restore_objects import undo_objects
from streaming.undo.undo_report import Undone, UndoResult, UndoSelection
from tests.builders import TOPIC, UUID, gone
from tests.contract.s3_server import S3Server, s3_running
from tests.services import command_clients_of
from udfs.formats.offload_index import index_name, object_name
from udfs.offload_drivers import Bucket

KEYS = (object_name(UUID, 5), index_name(UUID, 5))
FIVE = UndoSelection(ledger_id=5)


class World:
    """A bucket with a pair in it, a configuration that allows the bucket, and a journal."""

    def __init__(self, server: S3Server, folder: Path, *, versioned: bool) -> None:
        self.client: Any = server.client()
        self.bucket = Bucket(endpoint=server.endpoint, name=f"undo-{uuid4().hex[:20]}", region="us-east-1")
        self.client.create_bucket(Bucket=self.bucket.name)
        if versioned:
            on = {"Status": "Enabled"}
            self.client.put_bucket_versioning(Bucket=self.bucket.name, VersioningConfiguration=on)
        self.versions = {key: self.put(key) for key in KEYS}
        self.folder = folder
        self.settings = self.configured(self.bucket.name)
        self.journal()

    def put(self, key: str) -> str:
        answer = self.client.put_object(Bucket=self.bucket.name, Key=key, Body=key.encode())
        return str(answer.get("VersionId", ""))

    def configured(self, allowed: str) -> Settings:
        credentials = self.folder / "credentials"
        credentials.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
        config = self.folder / "config.toml"
        config.write_text(
            f'[state]\ndir = "{self.folder}/state"\n[tiered_storage]\ncredentials_file = "{credentials}"\n'
            f'allowed = [{{ endpoint = "{self.bucket.endpoint}/", bucket = "{allowed}" }}]\n'
        )
        return load(config)

    def journal(self) -> None:
        entry = ObjectEntry(
            ledger_id=5,
            uuid=UUID,
            bucket=self.bucket,
            objects=tuple(self.versions.items()),
            index=b"index",
            user_metadata={},
            reference=gone(),
        )
        ParquetJournal(str(self.folder / "state"), "requests", 1, SystemClock()).write_objects([entry])

    def delete(self) -> None:
        for key in KEYS:
            self.client.delete_object(Bucket=self.bucket.name, Key=key)

    def stored(self) -> list[str]:
        return [each["Key"] for each in self.client.list_objects_v2(Bucket=self.bucket.name).get("Contents", ())]

    def undo(self, wanted: UndoSelection = FIVE, *, dry_run: bool = False) -> list[Undone]:
        return [each.status for each in self.results(wanted, dry_run=dry_run)]

    def results(self, wanted: UndoSelection = FIVE, *, dry_run: bool = False) -> list[UndoResult]:
        clients = command_clients_of(MemoryStore(), objects=partial(objects_for, self.settings))
        return undo_objects(self.settings, clients, wanted, dry_run=dry_run).results


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    with s3_running() as server:
        yield server


@pytest.fixture
def world(s3_server: S3Server, tmp_path: Path) -> World:
    created = World(s3_server, tmp_path, versioned=True)
    created.delete()
    return created


def test_a_deleted_object_is_restored_once(world: World) -> None:
    assert world.undo(dry_run=True) == [Undone.WOULD_PUT_BACK] * 2
    assert world.stored() == []

    assert world.undo() == [Undone.PUT_BACK] * 2
    assert world.undo() == [Undone.EXISTS] * 2

    assert world.stored() == sorted(KEYS)
    content = world.client.get_object(Bucket=world.bucket.name, Key=KEYS[0])["Body"].read()
    assert content == KEYS[0].encode()


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(UndoSelection(topic=TOPIC), id="by the managed ledger's name"),
        pytest.param(UndoSelection(topic="persistent://public/default/orders"), id="by the topic's name"),
        pytest.param(UndoSelection(ledger_id=5, since_ms=1), id="by id and time"),
    ],
)
def test_deletes_are_chosen_by_the_operators_criteria(world: World, wanted: UndoSelection) -> None:
    assert world.undo(wanted) == [Undone.PUT_BACK] * 2


@pytest.mark.parametrize(
    "wanted",
    [
        UndoSelection(ledger_id=6),
        UndoSelection(topic="persistent://public/default/payments"),
        UndoSelection(since_ms=2**50),
    ],
)
def test_deletes_without_a_journal_entry_are_reported(world: World, wanted: UndoSelection) -> None:
    with pytest.raises(ConfigError, match="journal"):
        world.undo(wanted)


def test_an_object_that_was_stored_again_is_unchanged(world: World) -> None:
    newer = world.put(KEYS[0])

    assert world.undo() == [Undone.EXISTS, Undone.PUT_BACK]
    assert world.client.head_object(Bucket=world.bucket.name, Key=KEYS[0])["VersionId"] == newer


def test_a_version_that_a_lifecycle_rule_deleted_is_lost(world: World) -> None:
    world.client.delete_object(Bucket=world.bucket.name, Key=KEYS[0], VersionId=world.versions[KEYS[0]])

    assert world.undo() == [Undone.FAILED, Undone.PUT_BACK]


def test_an_object_in_a_bucket_without_versions_is_lost(s3_server: S3Server, tmp_path: Path) -> None:
    world = World(s3_server, tmp_path, versioned=False)
    world.delete()

    assert world.undo() == [Undone.FAILED] * 2
    assert ["lost" in each.detail for each in world.results()] == [True] * 2


def test_an_object_that_the_store_does_not_show_is_not_reported_as_existing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as S3 answers without s3:ListBucket (tests/contract/test_s3_faults.py sees such an answer)
    refused = Unreadable("HeadObject: 403 Forbidden")
    monkeypatch.setattr(S3Objects, "head_many", lambda _store, keys: [refused] * len(keys))

    assert world.undo() == [Undone.FAILED] * 2
    assert ["403 Forbidden" in each.detail for each in world.results()] == [True] * 2


def test_a_bucket_that_is_no_longer_allowed_is_not_changed(world: World) -> None:
    world.settings = world.configured("another-bucket")

    assert world.undo() == [Undone.FAILED] * 2
    assert world.stored() == []
