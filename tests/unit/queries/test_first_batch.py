"""The first batch on "pulsar-frames" has all messages with receipts: later batches are not compared with receipts."""

import shutil
from pathlib import Path

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.config.settings import Settings
from streaming.queries import checkpoints as checkpoints_of
from streaming.queries.checkpoints import committed_positions, is_unfinished, refuse_other_writer
from streaming.queries.delivery.batches import Batch, unfinished
from streaming.queries.first_batch import fix_first_batches
from streaming.queries.names import queries_of
from tests.unit.queries.test_conversion import (
    FRAMES,
    LAST,
    RETRY,
    TOPIC,
    KilledError,
    checkpoint,
    files,
    frames_in,
    kill_at_each_effect,
    receipts,
    retries,
    settings_in,
    stored,
)
from udfs.entry_ranges import EntrySpan, Range

OTHER = f"{TOPIC}-partition-1"


@pytest.fixture(autouse=True)
def _on_pyspark_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints_of, "has_connector", lambda: False)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The requests were read up to 10:4, and a batch up to 10:5 and 6:1 was started."""
    return settings_in(tmp_path, str(shutil.copytree(FRAMES, tmp_path / "checkpoints")))


@pytest.fixture
def pulsar() -> MemoryPulsar:
    return _stored()


def _stored() -> MemoryPulsar:
    pulsar = stored()
    for number, ledgers in enumerate(({4: 0}, {6: 3}, {8: 0}, {10: 7, 12: 5})):
        pulsar.partition(f"{TOPIC}-partition-{number}").ledgers = dict(ledgers)
    return pulsar


def _fix(settings: Settings, pulsar: MemoryPulsar) -> None:
    fix_first_batches(settings, pulsar, queries_of(settings))


def test_a_checkpoint_that_was_lost_starts_with_all_messages_that_have_receipts(
    tmp_path: Path, pulsar: MemoryPulsar
) -> None:
    settings = settings_in(tmp_path, str(tmp_path / "none"))
    receipts(settings, (LAST, 10, 2), (LAST, 12, 1), (f"{TOPIC}-other-partition-0", 4, 9))
    retries(settings, (f"{RETRY}-partition-0", 1281, 3))
    _fix(settings, pulsar)
    folder = checkpoint(settings)
    assert unfinished(str(folder)) == Batch(1, {LAST: Range((-1, -1), (12, 1))})
    assert frames_in(folder, 1)[LAST].spans == (EntrySpan(10, 0, 6), EntrySpan(12, 0, 1))
    assert unfinished(str(checkpoint(settings, "retry"))) == Batch(
        1, {f"{RETRY}-partition-0": Range((-1, -1), (1281, 3))}
    )
    refuse_other_writer(settings)
    assert files(folder).keys() == {"metadata", "offsets/0", "offsets/1", "commits/0"}


def test_a_batch_that_was_started_is_extended(settings: Settings, pulsar: MemoryPulsar) -> None:
    (checkpoint(settings) / "offsets" / ".1.crc").write_bytes(b"of the batch before")
    receipts(settings, (LAST, 12, 1))
    _fix(settings, pulsar)
    assert unfinished(str(checkpoint(settings))) == Batch(
        1, {LAST: Range((10, 4), (12, 1)), OTHER: Range((6, -1), (6, 1))}
    )
    assert not (checkpoint(settings) / "offsets" / ".1.crc").exists()


def test_a_checkpoint_without_a_started_batch_gets_one(settings: Settings, pulsar: MemoryPulsar) -> None:
    (checkpoint(settings) / "offsets" / "1").unlink()
    receipts(settings, (LAST, 12, 1))
    _fix(settings, pulsar)
    assert unfinished(str(checkpoint(settings))) == Batch(1, {LAST: Range((10, 4), (12, 1))})
    assert frames_in(checkpoint(settings), 1)[LAST].after == (10, 4)


def test_the_first_batch_of_all_is_extended(settings: Settings, pulsar: MemoryPulsar) -> None:
    (checkpoint(settings) / "offsets" / "1").unlink()
    (checkpoint(settings) / "commits" / "0").unlink()
    receipts(settings, (LAST, 12, 1))
    _fix(settings, pulsar)
    assert committed_positions(str(checkpoint(settings)))[LAST] == (10, -1)
    assert unfinished(str(checkpoint(settings))) == Batch(1, {LAST: Range((10, -1), (12, 1))})


@pytest.mark.parametrize("entry", [(LAST, 10, 5), (OTHER, 6, 1), (f"{TOPIC}-partition-0", 3, 7)])
def test_nothing_changes_if_the_first_batch_has_them_or_they_are_gone(
    settings: Settings, pulsar: MemoryPulsar, entry: tuple[str, int, int]
) -> None:
    before = files(checkpoint(settings))
    receipts(settings, entry)
    _fix(settings, pulsar)
    assert files(checkpoint(settings)) == before


def test_what_is_deleted_needs_no_batch(tmp_path: Path, pulsar: MemoryPulsar) -> None:
    settings = settings_in(tmp_path, str(tmp_path / "none"))
    receipts(settings, (LAST, 9, 2), (OTHER, 5, 0))
    pulsar.delete_topic(TOPIC)
    _fix(settings, pulsar)
    assert not checkpoint(settings).exists()


def test_the_connector_needs_none(settings: Settings, pulsar: MemoryPulsar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints_of, "has_connector", lambda: True)
    receipts(settings, (LAST, 12, 1))
    before = files(checkpoint(settings))
    _fix(settings, pulsar)
    assert files(checkpoint(settings)) == before


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_killed_start_is_completed_by_the_next(
    tmp_path: Path, pulsar: MemoryPulsar, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    ends = []
    for dies_at in kill_at_each_effect(monkeypatch):
        root = tmp_path / str(dies_at) / "checkpoints"
        root.parent.mkdir()
        if not is_lost:
            shutil.copytree(FRAMES, root)
        settings = settings_in(root.parent, str(root))
        receipts(settings, (LAST, 12, 1))
        try:
            _fix(settings, pulsar)
        except KilledError:
            _fix(settings, pulsar)
        assert is_unfinished(str(checkpoint(settings)))
        ends.append(unfinished(str(checkpoint(settings))))
    assert len(ends) > 1
    assert all(end == ends[-1] for end in ends)
