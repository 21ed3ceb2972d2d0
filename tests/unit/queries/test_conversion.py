"""Checkpoints are converted all or none, from files that Spark wrote, and whatever moment a kill chooses."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streaming import schemas
from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.queries import checkpoints as checkpoints_of
from streaming.queries import conversion
from streaming.queries.checkpoints import changes, committed_positions, is_unfinished, refuse_other_writer
from streaming.queries.conversion import carry_out, interrupted, plan
from streaming.queries.delivery.batches import Batch, unfinished
from streaming.queries.names import queries_of
from streaming.state import waiting
from streaming.state.delta.delta_tables import created, table_path
from streaming.state.filesystem import Folder
from streaming.state.receipts import Receipts
from tests.tasks import Tasks
from udfs import columns as c
from udfs.entry_ranges import EntrySpan, Range
from udfs.formats.spark_offsets import Writer, parse_offsets
from udfs.pulsar_source.offsets import PartitionOffset

DATA = Path(__file__).parents[2] / "data"
CONNECTOR, FRAMES = DATA / "checkpoint-v1", DATA / "checkpoint-frames"
TOPIC, RETRY = "persistent://pulsar/system/kept", "persistent://pulsar/ledger-deletion/kept-RETRY"
LAST = f"{TOPIC}-partition-3"


def _at(ledger: int, entry: int) -> PartitionOffset:
    return PartitionOffset(at=(ledger, entry), seen=(ledger, entry), after=(ledger, entry))


EMPTY = {f"{TOPIC}-partition-{number}": _at(number, -1) for number in range(3)}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path, str(shutil.copytree(CONNECTOR, tmp_path / "checkpoints")))


def settings_in(folder: Path, checkpoints: str, more: str = "") -> Settings:
    file = folder / "config.toml"
    file.write_text(
        f'[topics]\nrequests = ["{TOPIC}"]\nretry = "{RETRY}"\n[state]\ndir = "{folder / "state"}"\n'
        f'[checkpoints]\ndir = "{checkpoints}"\n{more}'
    )
    return load(file)


@pytest.fixture
def pulsar() -> MemoryPulsar:
    return stored()


def stored() -> MemoryPulsar:
    """The topics of the stored checkpoints: 4:1356 was read, and in the retry topic 9:1281."""
    pulsar = MemoryPulsar()
    pulsar.known_namespaces.add("pulsar/ledger-deletion")
    for topic in (TOPIC, RETRY):
        pulsar.create_partitioned_topic(topic, 4)
        for number in range(4):
            pulsar.partition(f"{topic}-partition-{number}").ledgers = {number: 0}
    pulsar.partition(LAST).ledgers = {1356: 7, 1400: 3}
    pulsar.partition(f"{RETRY}-partition-0").ledgers = {1281: 10, 1290: 2}
    return pulsar


def receipts(settings: Settings, *entries: tuple[str, int, int]) -> None:
    made = [_row(schemas.RECEIPT, entry) | {c.CHUNK: 1} for entry in entries]
    tasks: Any = Tasks(pa.Table.from_pylist(made, schema=schemas.RECEIPT))
    spark: Any = None
    Receipts(spark, settings.state_dir).append(tasks, 1)


def retries(settings: Settings, *entries: tuple[str, int, int]) -> None:
    from deltalake import write_deltalake

    path = table_path(settings.state_dir, waiting.TABLE)
    made = pa.Table.from_pylist([_row(schemas.WAITING, entry) for entry in entries], schema=schemas.WAITING)
    write_deltalake(created(path, schemas.WAITING, "waiting"), made, mode="append")


def _row(schema: pa.Schema, entry: tuple[str, int, int]) -> dict[str, Any]:
    return dict.fromkeys(schema.names) | dict(zip((c.SOURCE, c.POSITION_LEDGER, c.POSITION_ENTRY), entry, strict=True))


def checkpoint(settings: Settings, query: str = "requests") -> Path:
    return Path(settings.checkpoints.dir, query, "v1")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def convert(settings: Settings, pulsar: MemoryPulsar, writer: Writer) -> None:
    carry_out(settings, plan(settings, pulsar, writer, "1"))


def frames_in(folder: Path, number: int) -> dict[str, PartitionOffset]:
    return dict(parse_offsets((folder / "offsets" / str(number)).read_text()).frames)


def started(settings: Settings, end: str) -> None:
    """Start another batch of the requests."""
    offsets = checkpoint(settings) / "offsets"
    (offsets / "1").write_text((offsets / "0").read_text().replace("[8,-52,10,16,4,24,3]", end))


def test_a_committed_checkpoint_of_the_connector_is_read_on_from_its_position(
    settings: Settings, pulsar: MemoryPulsar
) -> None:
    before = {query: files(checkpoint(settings, query)) for query in ("requests", "retry")}
    convert(settings, pulsar, Writer.FRAMES)
    folder = checkpoint(settings)
    assert files(folder).keys() == {"metadata", "offsets/0", "commits/0"}
    assert frames_in(folder, 0) == EMPTY | {LAST: PartitionOffset(at=(1356, 4), seen=(1400, 2), after=(1356, 4))}
    retry = frames_in(checkpoint(settings, "retry"), 2)[f"{RETRY}-partition-0"]
    assert retry == PartitionOffset(at=(1290, -1), seen=(1290, 1), after=(1290, -1)), "past the end of a closed ledger"
    for query, contents in before.items():
        assert files(checkpoint(settings, query).with_name("v1-before-1")) == contents
        for name in ("metadata", *(name for name in contents if name.startswith("commits"))):
            assert (checkpoint(settings, query) / name).read_bytes() == contents[name]
    assert not Path(settings.checkpoints.dir, "converting.json").exists()
    assert plan(settings, pulsar, Writer.FRAMES, "2").checkpoints == (), "once"


def test_the_first_batch_has_all_entries_that_may_have_a_receipt(settings: Settings, pulsar: MemoryPulsar) -> None:
    receipts(settings, (LAST, 1356, 3), (LAST, 1400, 0), (f"{TOPIC}-other-partition-3", 1400, 2))
    convert(settings, pulsar, Writer.FRAMES)
    folder = checkpoint(settings)
    assert is_unfinished(str(folder))
    assert frames_in(folder, 1) == EMPTY | {
        LAST: PartitionOffset(
            at=(1400, 0), seen=(1400, 2), after=(1356, 4), spans=(EntrySpan(1356, 5, 6), EntrySpan(1400, 0, 0))
        )
    }
    assert not is_unfinished(str(checkpoint(settings, "retry")))


def test_retries_that_wait_are_in_the_first_batch(settings: Settings, pulsar: MemoryPulsar) -> None:
    partition = f"{RETRY}-partition-0"
    retries(settings, (partition, 1290, 0))
    convert(settings, pulsar, Writer.FRAMES)
    assert unfinished(str(checkpoint(settings, "retry"))) == Batch(3, {partition: Range((1290, -1), (1290, 0))})


def test_a_batch_that_was_started_is_the_first_batch(settings: Settings, pulsar: MemoryPulsar) -> None:
    started(settings, "[8,-8,10,16,1,24,3]")  # 1400:1
    receipts(settings, (LAST, 1356, 5))
    convert(settings, pulsar, Writer.FRAMES)
    assert unfinished(str(checkpoint(settings))) == Batch(1, {LAST: Range((1356, 4), (1400, 1))})


def test_the_first_batch_of_all_is_repeated_after_a_batch_that_reads_nothing(
    settings: Settings, pulsar: MemoryPulsar
) -> None:
    (checkpoint(settings) / "commits" / "0").unlink()
    convert(settings, pulsar, Writer.FRAMES)
    folder = checkpoint(settings)
    assert committed_positions(str(folder))[LAST] == (1356, -1)
    assert unfinished(str(folder)) == Batch(1, {LAST: Range((1356, -1), (1356, 4))})


def test_there_and_back_the_connector_continues_where_it_was(settings: Settings, pulsar: MemoryPulsar) -> None:
    before = files(checkpoint(settings))
    receipts(settings, (LAST, 1400, 0))
    convert(settings, pulsar, Writer.FRAMES)
    carry_out(settings, plan(settings, pulsar, Writer.CONNECTOR, "2"))
    after = files(checkpoint(settings))
    assert after == {name: before[name] for name in ("metadata", "offsets/0", "commits/0")}
    assert frames_in(checkpoint(settings).with_name("v1-before-2"), 1)


def test_a_batch_of_pulsar_frames_that_was_started_is_planned_again_by_the_connector(
    tmp_path: Path, pulsar: MemoryPulsar
) -> None:
    settings = settings_in(tmp_path, str(shutil.copytree(FRAMES, tmp_path / "checkpoints")))
    for number, ledgers in enumerate(({4: 0}, {6: 2}, {8: 0}, {10: 7})):
        pulsar.partition(f"{TOPIC}-partition-{number}").ledgers = dict(ledgers)
    convert(settings, pulsar, Writer.CONNECTOR)
    assert committed_positions(str(checkpoint(settings))) == {LAST: (10, 4)}
    assert not is_unfinished(str(checkpoint(settings)))


@pytest.mark.parametrize("partitions", [None, 2])
def test_a_partition_that_is_gone_keeps_its_position(
    settings: Settings, pulsar: MemoryPulsar, partitions: int | None
) -> None:
    pulsar.delete_topic(TOPIC)
    if partitions:
        pulsar.create_partitioned_topic(TOPIC, partitions)
    convert(settings, pulsar, Writer.FRAMES)
    assert frames_in(checkpoint(settings), 0)[LAST] == _at(1356, 4)


def test_what_cannot_be_proven_is_refused_for_all_checkpoints(settings: Settings, pulsar: MemoryPulsar) -> None:
    pulsar.partition(LAST).ledgers = {1300: 7}
    pulsar.partition(f"{RETRY}-partition-0").ledgers = {1200: 7}
    before = files(Path(settings.checkpoints.dir))
    with pytest.raises(SafetyError, match=r"(?s)nothing was converted:.*requests/v1.*1300.*retry/v1.*1200"):
        plan(settings, pulsar, Writer.FRAMES, "1")
    assert files(Path(settings.checkpoints.dir)) == before


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda folder: (folder / "metadata").unlink(), id="no metadata"),
        pytest.param(
            lambda folder: (folder / "offsets" / "0").rename(folder / "offsets" / "2"), id="a batch is missing"
        ),
        pytest.param(lambda folder: (folder / "offsets" / "0").unlink(), id="committed and not started"),
        pytest.param(
            lambda folder: shutil.copy(FRAMES / "requests" / "v1" / "offsets" / "1", folder / "offsets"),
            id="of two writers",
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused(
    settings: Settings, pulsar: MemoryPulsar, damage: Callable[[Path], object]
) -> None:
    damage(checkpoint(settings))
    with pytest.raises(SafetyError, match=r"requests/v1 (is damaged|has batches of)"):
        plan(settings, pulsar, Writer.CONNECTOR, "1")


def test_without_an_answer_nothing_is_converted(settings: Settings, pulsar: MemoryPulsar) -> None:
    def fails(*_: object) -> None:
        raise UnavailableError("no broker")

    pulsar.faults.before(fails)
    with pytest.raises(UnavailableError, match="no broker"):
        plan(settings, pulsar, Writer.FRAMES, "1")


class KilledError(BaseException):
    """The process was killed."""


def kill_at_each_effect(monkeypatch: pytest.MonkeyPatch) -> Iterable[int]:
    """Count the effects of a conversion, and raise KilledError at each in turn, until a conversion ends."""
    count = dies_at = 0

    def dying(effect: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == dies_at:
                raise KilledError
            return effect(*args, **kwargs)

        return run

    with monkeypatch.context() as killing:
        killing.setattr(Folder, "write", dying(Folder.write))
        killing.setattr(Folder, "delete", dying(Folder.delete))
        killing.setattr(conversion, "_empty", dying(conversion._empty))
        while count >= dies_at:
            count, dies_at = 0, dies_at + 1
            yield dies_at


def test_a_killed_conversion_leaves_the_old_checkpoints_or_is_completed(
    tmp_path: Path, pulsar: MemoryPulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints_of, "has_connector", lambda: True)
    ends, old = [], files(CONNECTOR)
    for dies_at in kill_at_each_effect(monkeypatch):
        root = Path(shutil.copytree(CONNECTOR, tmp_path / str(dies_at) / "checkpoints"))
        settings = settings_in(root.parent, str(root))
        planned = plan(settings, pulsar, Writer.FRAMES, "1")
        try:
            carry_out(settings, planned)
        except KilledError:
            if interrupted(settings) is None:
                assert files(root) == old, "nothing has happened"
                refuse_other_writer(settings)
                continue
            with pytest.raises(ConfigError, match="was interrupted"):
                refuse_other_writer(settings)
            again = interrupted(settings)
            assert again is not None
            assert again.checkpoints == planned.checkpoints
            carry_out(settings, again)
        ends.append(files(root))
    assert len(ends) > 10
    assert all(end == ends[-1] for end in ends)


@pytest.mark.parametrize("has_connector", [True, False])
def test_a_start_on_the_other_pyspark_is_refused_and_names_the_command(
    settings: Settings, pulsar: MemoryPulsar, monkeypatch: pytest.MonkeyPatch, has_connector: bool
) -> None:
    monkeypatch.setattr(checkpoints_of, "has_connector", lambda: has_connector)
    if has_connector:
        convert(settings, pulsar, Writer.FRAMES)
    before = files(Path(settings.checkpoints.dir))
    with pytest.raises(ConfigError, match=r"(?s)nothing was read or deleted.*`ledger-reaper checkpoints convert`"):
        refuse_other_writer(settings)
    for query in queries_of(settings):
        (fault,) = checkpoints_of.changes_of(settings, query, lambda _topic: 4)
        assert "`ledger-reaper checkpoints convert`" in fault
    assert files(Path(settings.checkpoints.dir)) == before
    convert(settings, pulsar, Writer.CONNECTOR if has_connector else Writer.FRAMES)
    refuse_other_writer(settings)
    assert changes(settings, lambda _topic: 4) == []


def test_a_damaged_plan_is_never_carried_out(settings: Settings) -> None:
    Path(settings.checkpoints.dir, "converting.json").write_text(json.dumps({"writer": "pulsar-frames"}))
    with pytest.raises(SafetyError, match=r"converting\.json can't be read"):
        interrupted(settings)
