"""Plans the upgrade of a store: its size and duration, the reasons to refuse it, and the broker's settings."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from streaming.errors import ConfigError
from streaming.rocketmq.convert.survey import READ_WHILE_RUNNING, Survey, survey_of
from streaming.rocketmq.inspect.sample import Sample, sample_of, slowdown_of
from streaming.rocketmq.progress import seconds
from streaming.rocketmq.store.inventory import Inventory
from streaming.rocketmq.store.locks import is_broker_running
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.rollback_plan import unfinished_rollback
from udfs.rocketmq import metadata as m
from udfs.rocketmq.refusals import Refusal, refusals_of
from udfs.rocketmq.versions import Stage, stages_of, version_of, warnings_of

# Python, the JVM and its workers start in this many times the CPU time that Python and the imports of a command take,
# on two cores. Cores of another speed need another time for both.
_STARTS = 12.0
_START_CPU_SECONDS = 0.5  # if it was not measured
_SCHEDSTAT = Path("/proc/self/schedstat")
_BUSY = 1.5  # a smaller slowdown is not worth a second figure
_READ_FOR_A_UNIT = 32 << 10  # bytes that the system reads of the log for a unit, at most, if its message is larger


class StoreSize(NamedTuple):
    """The contents of a store; 0 for what can't be read."""

    topics: int
    queues: int = 0
    units: int = 0
    live_units: int = 0  # their messages still exist
    log_files: int = 0
    log_bytes: int = 0  # of the files
    log_start: int = 0  # physical offset
    log_end: int = 0  # physical offset


class Plan(NamedTuple):
    """The size of a store, and the reasons not to convert it."""

    store: str
    size: StoreSize
    disk_needed_bytes: int
    disk_free_bytes: int
    seconds_expected: int  # while nothing else runs on this machine
    seconds_if_busy: int  # if the machine stays as busy as it was during the plan
    offsets_file: str
    groups: int
    offsets: int
    refusals: tuple[Refusal, ...]
    notes: tuple[str, ...]
    stages: tuple[Stage, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object, in which the size is not nested."""
        fields = self._asdict()
        flat = {"store": fields.pop("store"), **fields.pop("size")._asdict(), **fields}
        nested = {name: [item._asdict() for item in getattr(self, name)] for name in ("refusals", "stages")}
        return flat | nested | {"notes": list(self.notes), "lmq": self.offsets_file == m.LMQ_OFFSETS_JSON}


def plan_of(
    paths: StorePaths,
    broker_version: str = "",
    start_cpu_seconds: float = _START_CPU_SECONDS,
    schedstat: Path = _SCHEDSTAT,
) -> Plan:
    """Plan the upgrade of a store, and convert a sample of it. It writes nothing into the store, whose broker may run.

    Raises ConfigError for text that is no version.

    Args:
        paths: the store.
        broker_version: as in 5.3.3; "" if unknown.
        start_cpu_seconds: CPU time in which this command has started, imports included.
        schedstat: how long this process ran, and waited for a core.
    """
    version = version_of(broker_version)
    if broker_version and version is None:
        raise ConfigError(f"{broker_version} is no version of RocketMQ: a version has three numbers, such as 5.3.3")
    is_running = is_broker_running(paths)
    survey = survey_of(paths, is_running=is_running)
    inventory, tables = survey.inventory, survey.configuration.tables if survey.configuration else {}
    size = _size_of(inventory, len(survey.facts.topics))
    used_bytes = size.log_end - size.log_start
    sample = sample_of(inventory) if inventory else Sample("", 1.0, 1.0)
    damage = (f"{sample.damage}{READ_WHILE_RUNNING if is_running else ''}",) if sample.damage else ()
    facts = survey.facts._replace(bad_bytes=(*survey.facts.bad_bytes, *damage))
    expected = start_cpu_seconds * _STARTS
    expected += work_seconds(size.live_units, used_bytes, len(os.sched_getaffinity(0)), sample)
    return Plan(
        store=str(paths.store),
        size=size,
        disk_needed_bytes=survey.facts.disk.bytes_needed,
        disk_free_bytes=survey.facts.disk.bytes_free,
        seconds_expected=round(expected),
        seconds_if_busy=round(expected * slowdown_of(schedstat)),
        offsets_file=survey.configuration.files[m.OFFSETS] if survey.configuration else "",
        groups=len(tables[m.GROUPS].get("subscriptionGroupTable", {})) if tables else 0,
        offsets=_offsets(tables[m.OFFSETS]) if tables else 0,
        refusals=tuple(refusals_of(facts)),
        notes=(*filter(None, [unfinished_rollback(paths)]), *_notes(survey, used_bytes), *warnings_of(version)),
        stages=tuple(stages_of(version)),
    )


def _size_of(inventory: Inventory | None, topics: int) -> StoreSize:
    if inventory is None:
        return StoreSize(topics)
    return StoreSize(
        topics=topics,
        queues=len(inventory.queues),
        units=sum(queue.range.end - queue.files.start for queue in inventory.queues),
        live_units=inventory.units,
        log_files=len(inventory.log.files),
        log_bytes=sum(file.size for file in inventory.log.files),
        log_start=inventory.log.start,
        log_end=inventory.log.end,
    )


def work_seconds(units: int, log_bytes: int, cores: int, sample: Sample) -> float:
    """Estimate the duration of a backfill after its start: its work, and one read of the log."""
    read = min(log_bytes, units * _READ_FOR_A_UNIT)
    return units / (sample.units_per_second * cores) + read / sample.log_bytes_per_second


def lines(plan: Plan) -> list[str]:
    """Format the plan for the terminal."""
    size = plan.size
    return [
        f"store            {plan.store}",
        f"queues           {size.queues} of {size.topics} topics",
        f"units            {size.units:,}, and the messages of {size.live_units:,} still exist",
        f"commitlog        {size.log_files} files, {size.log_bytes:,} bytes, from {size.log_start} to {size.log_end}",
        f"offsets          {plan.offsets} in {plan.offsets_file or 'no file'}, {plan.groups} groups",
        f"disk             {plan.disk_needed_bytes:,} bytes are needed, {plan.disk_free_bytes:,} are free",
        f"time             about {seconds(plan.seconds_expected)} with the broker stopped{_if_busy(plan)}",
        *(f"note             {note}" for note in plan.notes),
        *(
            f"stage {stage.stage}          {stage.when}: " + " ".join(f"{k}={v}" for k, v in stage.settings.items())
            for stage in plan.stages
        ),
        *(f"REFUSED          {refusal.code}: {refusal.text}" for refusal in plan.refusals),
    ]


def _if_busy(plan: Plan) -> str:
    if plan.seconds_if_busy < _BUSY * plan.seconds_expected:
        return ""
    return f" and the machine idle, about {seconds(plan.seconds_if_busy)} if the machine stays as busy as now"


def _offsets(table: dict[str, Any]) -> int:
    return len(table.get("offsetTable", {})) + len(table.get("lmqOffsetTable", {}))


def _notes(survey: Survey, log_bytes: int) -> list[str]:
    notes = [
        "a broker that is switched to RocksDB without a backfill reads the whole commitlog before it answers: at the "
        f"50 MB/s that were measured, {seconds(log_bytes / 50_000_000)}",
    ]
    files = survey.configuration.files if survey.configuration else {}
    if files.get(m.OFFSETS) == m.LMQ_OFFSETS_JSON:
        notes.append("with enableLmq=true, such a switch would lose all offsets of all groups; a backfill keeps them")
    if survey.configuration and not files[m.OFFSETS]:
        notes.append("there is no file of offsets: all groups start as new groups")
    for name in files.values():
        if name.endswith(".bak"):
            notes.append(f"{name.removesuffix('.bak')} is missing or empty, so {name} is read, as the broker would")
    return notes
