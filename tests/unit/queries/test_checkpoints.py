"""The contents of a checkpoint, read from stored ones that Spark wrote with the connector and with "pulsar-frames"."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import ConfigError, UnavailableError
from streaming.queries import checkpoints as checkpoints_of
from streaming.queries.checkpoints import (
    changes,
    committed_positions,
    is_unfinished,
    partitions_of,
    refuse_changes,
)

KEPT = Path(__file__).parents[2] / "data" / "checkpoint-v1"
FRAMES = Path(__file__).parents[2] / "data" / "checkpoint-frames"
TOPIC = "persistent://pulsar/system/kept"


@pytest.fixture(autouse=True)
def _on_pyspark_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints_of, "has_connector", lambda: True)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT, tmp_path / "checkpoints"))


def _settings(checkpoints: Path, *requests: str) -> Settings:
    file = checkpoints.parent / "config.toml"
    file.write_text(f'[topics]\nrequests = {json.dumps(requests)}\n[checkpoints]\ndir = "{checkpoints}"\n')
    return load(file)


def _has(count: int | None) -> Callable[[str], int | None]:
    return lambda _topic: count


def test_the_committed_position_is_the_newest_batchs_and_unread_partitions_have_none(checkpoints: Path) -> None:
    assert committed_positions(str(checkpoints / "requests" / "v1")) == {f"{TOPIC}-partition-3": (1356, 4)}
    assert partitions_of(str(checkpoints / "requests" / "v1")) == {f"{TOPIC}-partition-{n}" for n in range(4)}


def test_a_batch_that_was_started_and_not_committed_does_not_count(checkpoints: Path) -> None:
    offsets = checkpoints / "requests" / "v1" / "offsets"
    begun = (offsets / "0").read_text().replace("[8,-52,10,16,4", "[8,-52,10,16,5")
    (offsets / "1").write_text(begun)
    assert committed_positions(str(checkpoints / "requests" / "v1"))[f"{TOPIC}-partition-3"] == (1356, 4)
    assert is_unfinished(str(checkpoints / "requests" / "v1"))
    assert not is_unfinished(str(checkpoints / "retry" / "v1"))


def test_a_checkpoint_of_pulsar_frames_is_read() -> None:
    checkpoint = str(FRAMES / "requests" / "v1")
    assert committed_positions(checkpoint) == {
        f"{TOPIC}-partition-0": (4, -1),
        f"{TOPIC}-partition-1": (6, -1),
        f"{TOPIC}-partition-2": (8, -1),
        f"{TOPIC}-partition-3": (10, 4),
    }
    assert partitions_of(checkpoint) == {f"{TOPIC}-partition-{n}" for n in range(4)}
    assert is_unfinished(checkpoint)


def test_without_a_read_there_is_no_position(tmp_path: Path) -> None:
    assert committed_positions(str(tmp_path / "nothing")) == {}
    assert not is_unfinished(str(tmp_path / "nothing"))


def test_a_damaged_checkpoint_is_reported_as_damaged(checkpoints: Path) -> None:
    (checkpoints / "requests" / "v1" / "offsets" / "0").write_text("v1\n{}\n{")
    with pytest.raises(UnavailableError, match="Damaged"):
        committed_positions(str(checkpoints / "requests" / "v1"))


@pytest.mark.parametrize(
    ("topics", "partitions", "why"),
    [
        pytest.param((TOPIC,), 4, "", id="as it was"),
        pytest.param((TOPIC,), 9, "", id="more partitions are read from their beginning"),
        pytest.param((TOPIC, f"{TOPIC}-more"), 4, "", id="a further topic has a checkpoint of its own"),
        pytest.param((TOPIC,), 3, "has read partition 3", id="a partition less"),
        pytest.param((TOPIC,), None, "has no partitions now", id="no topic any more"),
        pytest.param((f"{TOPIC}-more", TOPIC), 4, f"has read {TOPIC}, which is not", id="another topic first"),
        pytest.param((f"{TOPIC}-more",), 4, f"has read {TOPIC}, which is not", id="the topic taken out"),
    ],
)
def test_a_checkpoint_is_resumed_if_its_topics_have_not_changed(
    checkpoints: Path, topics: tuple[str, ...], partitions: int | None, why: str
) -> None:
    settings = _settings(checkpoints, *topics)
    faults = [fault for fault in changes(settings, _has(partitions)) if "/requests/" in fault]
    assert [why in fault and "How to retire one" in fault for fault in faults] == ([True] if why else [])


def test_changes_stop_the_start(checkpoints: Path) -> None:
    with pytest.raises(ConfigError, match="do not fit the topics"):
        refuse_changes(_settings(checkpoints, f"{TOPIC}-more"), _has(4))
