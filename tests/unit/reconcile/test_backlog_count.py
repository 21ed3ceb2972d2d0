"""Requests that wait: after the newest committed batch, or after the subscription before the first batch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streaming import schemas
from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.ports import Pulsar, StoredMessage
from streaming.queries.checkpoints import location_of
from streaming.reconcile.backlog_count import MOST_LANES, backlog_of
from streaming.schemas import RETRY
from streaming.state.receipts import Receipts
from tests.tasks import Tasks
from tests.unit.reconcile.rows import write_rows
from udfs import columns as c
from udfs.formats.internal_stats import Position
from udfs.records import Outcome
from udfs.requests.retry import ORIGIN_MESSAGE_ID


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
        return StoredMessage(
            partition=partition,
            ledger_id=5,
            entry_id=entry[0],
            batch_index=entry[1],
            publish_ms=0,
            key="",
            payload=b"",
            properties={},
        )

    memory.partition(partition).messages = [
        message((entry, index)) for entry in range(entries) for index in range(of_each)
    ]
    assert _counted(settings, memory) == expected


def _chunk(settings: Settings, number: int, *origins: str) -> None:
    """Commit a chunk of receipts that delay these requests."""
    nothing: Any = None
    about = {c.CHUNK: number, c.OUTCOME: str(Outcome.RETRY)}
    rows = [dict.fromkeys(schemas.RECEIPT.names) | about | {c.ORIGIN_MESSAGE_ID: origin} for origin in origins]
    tasks: Any = Tasks(pa.Table.from_pylist(rows, schema=schemas.RECEIPT))
    Receipts(nothing, settings.state.dir).append(tasks, number)


def _waits(settings: Settings, entry: int, origin: str) -> None:
    about = {c.MESSAGE_PROPERTIES: [(ORIGIN_MESSAGE_ID, origin)], c.READY_MS: 5}
    write_rows(Path(settings.state.dir), "waiting", [(7, entry, -1)], about=about)


def test_a_retry_counts_from_its_receipt_until_its_copy_waits_and_once_from_then_on(settings: Settings) -> None:
    def retries() -> int:
        counted = backlog_of(settings, Pulsar(MemoryPulsar(), MemoryPulsar()))
        assert counted["messages"] == counted["topics"][settings.topics.retry]
        return int(counted["messages"])

    _chunk(settings, 1, "a", "b")
    assert retries() == 2
    _waits(settings, 1, "a")
    assert retries() == 2
    _waits(settings, 2, "b")
    assert retries() == 2
    # the second try of "a": its old row stays until it is pruned, and its new copy is not published yet
    _chunk(settings, 2, "a")
    write_rows(Path(settings.state.dir), "receipts", [(7, 1, -1)], about={c.CHUNK: 2, c.ORIGIN_MESSAGE_ID: "a"})
    assert retries() == 2
    _waits(settings, 3, "a")
    assert retries() == 2


def test_messages_that_arrive_during_the_count_count(settings: Settings) -> None:
    """A batch of RETRY is committed, and its message waits, after the topic's end was read and before the rest."""
    topic = settings.topics.retry
    memory = MemoryPulsar()
    memory.store(f"{topic}-partition-0", (5, 0))
    memory.publish(f"{topic}-partition-0", properties={ORIGIN_MESSAGE_ID: "a"})
    moved: list[str] = []

    def move(operation: str, names: Sequence[str]) -> None:
        if operation == "last_positions" and not moved and topic in names:
            moved.append(operation)
            _waits(settings, 1, "a")
            memory.ensure_subscription(topic, settings.topics.subscription)
            memory.partition(f"{topic}-partition-0").cursors[settings.topics.subscription] = (5, 0)
            checkpoint = Path(location_of(settings, RETRY))
            for folder in ("offsets", "commits"):
                (checkpoint / folder).mkdir(parents=True)
            position = [8, 5, 16, 0]  # MessageIdData of 5:0
            (checkpoint / "offsets" / "0").write_text(f'v1\n{{}}\n{{"{topic}-partition-0": {position}}}')
            (checkpoint / "commits" / "0").write_text("v1\n{}")

    memory.faults.before(move)
    assert backlog_of(settings, Pulsar(memory, memory))["messages"] >= 1
    assert moved


def test_messages_wait_in_lanes_until_the_subscription_acknowledges_them(settings: Settings) -> None:
    lane, other = (f"persistent://{tenant}/ledger-deletion/__ledger_deletion" for tenant in ("acme", "rival"))
    memory = MemoryPulsar()
    memory.store(f"{lane}-partition-0", (5, 0))
    memory.store(f"{other}-partition-0", (6, 0))
    for _ in range(3):
        memory.publish(f"{lane}-partition-0")
    memory.ensure_subscription(lane, settings.topics.subscription)
    gone = "persistent://gone/ledger-deletion/__ledger_deletion-partition-0"
    lanes = [f"{lane}-partition-0", f"{other}-partition-0", gone]

    def counted(*more: str) -> dict[str, Any]:
        return backlog_of(settings, Pulsar(memory, memory), lanes=[*lanes, *more])

    first = counted()
    assert (first["messages"], first["topics"].get(lane), first["topics"].get(other)) == (3, 3, None)
    assert first["lanes_not_counted"] == 1
    memory.partition(f"{lane}-partition-0").cursors[settings.topics.subscription] = (5, 1)
    assert counted()["messages"] == 1
    # another tenant's many lanes
    asked: list[str] = []
    memory.faults.before(lambda operation, names: asked.extend(names) if operation == "internal_stats" else None)
    many = counted(*(f"persistent://a/n{number}/__ledger_deletion-partition-0" for number in range(1000)))
    assert (many["topics"][lane], len([each for each in asked if "__ledger_deletion-" in each])) == (1, MOST_LANES)
    assert many["lanes_not_counted"] == 1003 - 2


def test_brokers_that_do_not_answer_about_lanes_are_not_asked_about_each(settings: Settings) -> None:
    memory = MemoryPulsar()
    asked: list[str] = []

    def hang(operation: str, names: Sequence[str]) -> None:
        if operation == "internal_stats" and "__ledger_deletion-" in names[0] and "pulsar" not in names[0]:
            asked.extend(names)
            raise UnavailableError("no answer")

    memory.faults.before(hang)
    lanes = [f"persistent://t{number}/ledger-deletion/__ledger_deletion-partition-0" for number in range(50)]
    assert backlog_of(settings, Pulsar(memory, memory), lanes=lanes)["lanes_not_counted"] == 50
    assert asked == sorted(lanes)[:3]
