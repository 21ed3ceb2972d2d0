"""What waits: behind the newest committed batch, or behind the subscription before the first one."""

from pathlib import Path

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.ports import Pulsar, StoredMessage
from streaming.reconcile.backlog import backlog_of
from udfs.formats.internal_stats import Position


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    base = load(None)
    dirs = {"state": tmp_path, "checkpoints": tmp_path / "checkpoints"}
    return base.model_copy(
        update={name: getattr(base, name).model_copy(update={"dir": str(path)}) for name, path in dirs.items()}
    )


def _counted(settings: Settings, memory: MemoryPulsar) -> int:
    counted = backlog_of(settings, Pulsar(memory, memory))
    assert counted["topics"][settings.topics.retry] == 0
    return int(counted["messages"])


def test_before_the_first_batch_what_the_subscription_has_not_acknowledged_waits(settings: Settings) -> None:
    topic = settings.topics.requests[0]
    partition = f"{topic}-partition-0"
    memory = MemoryPulsar()
    assert _counted(settings, memory) == 0
    memory.store(partition, (5, 0))
    assert _counted(settings, memory) == 0
    for _ in range(3):
        memory.publish(partition)
    assert _counted(settings, memory) == 3
    memory.ensure_subscription(topic, settings.topics.subscription)
    memory.partition(partition).cursors[settings.topics.subscription] = (5, 1)
    assert _counted(settings, memory) == 1


@pytest.mark.parametrize(
    ("entries", "of_each", "expected"),
    [
        pytest.param(1, 7, 7, id="one entry of a batch"),
        pytest.param(1000, 2, 2000, id="as many entries as are read"),
        pytest.param(1001, 2, 2002, id="one more is taken to be like them"),
        pytest.param(5000, 1, 5000, id="many single ones"),
    ],
)
def test_a_producers_batches_count_by_their_messages(
    settings: Settings, entries: int, of_each: int, expected: int
) -> None:
    partition = f"{settings.topics.requests[0]}-partition-0"
    memory = MemoryPulsar()
    memory.store(partition, (5, entries))

    def message(entry: Position) -> StoredMessage:
        return StoredMessage(partition, 5, entry[0], entry[1], 0, "", b"", {})

    memory.partition(partition).messages = [
        message((entry, index)) for entry in range(entries) for index in range(of_each)
    ]
    assert _counted(settings, memory) == expected
