"""The settlement of a dead letter is remembered as long as any letter of that age is stored."""

from pathlib import Path

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.dlq.expiry import expire
from streaming.ports import Pulsar
from streaming.state.settlements import SettlementFolder
from tests.builders import DAY_MS, NOW_MS


@pytest.mark.parametrize(
    ("stored_days_ago", "forgotten"),
    [
        pytest.param(None, 1, id="no letter is stored"),
        pytest.param(1, 1, id="only young letters are stored"),
        pytest.param(500, 0, id="a letter is stored that is older than the write-off"),
    ],
)
def test_a_write_off_is_forgotten_only_after_the_letters(
    tmp_path: Path, stored_days_ago: int | None, forgotten: int
) -> None:
    base = load(None)
    state = base.state.model_copy(update={"dir": str(tmp_path), "dead_letters_days": 365})
    settings = base.model_copy(update={"state": state})
    clock = ManualClock(NOW_MS - (stored_days_ago or 0) * DAY_MS)
    memory = MemoryPulsar(clock)
    memory.ensure_namespace(settings.topics.dead_letter)
    memory.create_partitioned_topic(settings.topics.dead_letter, 2)
    memory.ensure_subscription(settings.topics.dead_letter, settings.topics.subscription)
    if stored_days_ago is not None:
        memory.publish(f"{settings.topics.dead_letter}-partition-1")
    clock.advance((stored_days_ago or 0) * DAY_MS)
    SettlementFolder(settings.state.dir).write_off(NOW_MS - 400 * DAY_MS, [])

    assert expire(settings, Pulsar(memory, memory), NOW_MS) == forgotten

    (cursor,) = memory.partition(f"{settings.topics.dead_letter}-partition-1").cursors.values()
    assert cursor[1] == (0 if stored_days_ago == 500 else -1)
