"""A stop: no running part waits for another, parts that do not end are interrupted, and waits of the start end."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.deletion.supervision.supervisor import LEAVE_S, Checks, Supervisor
from streaming.errors import SafetyError, StopRequestedError, UnavailableError
from streaming.queries.life import FallbackResult, QueryTools
from streaming.queries.running import RunningQueries
from streaming.topics.setup import ensure_topics

TOPICS = tuple(f"persistent://pulsar/ledger-deletion/r{n}" for n in range(3))


def pulsar(settings: Settings) -> MemoryPulsar:
    """Our topics exist, and another service holds their subscription."""
    memory = MemoryPulsar()
    for topic in (*settings.topics.requests, settings.topics.retry, settings.topics.dead_letter):
        memory.ensure_namespace(topic)
        memory.create_partitioned_topic(topic, 4)
    memory.held.add(settings.topics.subscription)
    return memory


class PaperStream:
    """A query that ends when `ends` is set."""

    def __init__(self, ends: threading.Event, on_stop: Callable[[], object]) -> None:
        self._ends = ends
        self._on_stop = on_stop
        self.is_active = True

    def stop(self) -> None:
        self._on_stop()
        assert self._ends.wait(30)
        self.is_active = False


class Jobs:
    """The Spark calls of _stop."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.sparkContext = self

    def cancelAllJobs(self) -> None:  # noqa: N802  Spark's name
        self.cancelled.set()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "config.toml"
    listed = ", ".join(f'"{topic}"' for topic in TOPICS)
    file.write_text(f'[topics]\nrequests = [{listed}]\n[checkpoints]\ndir = "{tmp_path}/checkpoints"\n')
    return load(file)


def _queries(settings: Settings, streams: list[PaperStream]) -> RunningQueries:
    left = iter(streams)
    tools = QueryTools(
        admin=pulsar(settings),
        start=lambda _query: cast("Any", next(left)),
        restart=lambda _name: None,
        fallback=lambda _query: FallbackResult(has_news=False),
    )
    queries = RunningQueries(settings, tools)
    queries.start()
    return queries


def _stop(jobs: Jobs, queries: RunningQueries, leave_s: float = LEAVE_S) -> None:
    """Stop these queries; no retry is at work."""
    quiet: Any = _Quiet()
    supervisor = Supervisor(queries=queries, due=quiet, upkeep=quiet, find_gaps=list)
    supervisor.stop(cast("SparkSession", jobs), leave_s=leave_s)


def test_a_query_that_waits_for_another_keeps_that_from_being_stopped_no_longer(settings: Settings) -> None:
    last = threading.Event()
    at_once = threading.Event()
    at_once.set()
    streams = [PaperStream(last, lambda: None) for _ in TOPICS] + [PaperStream(at_once, last.set)]
    jobs = Jobs()
    _stop(jobs, _queries(settings, streams))
    assert not any(each.is_active for each in streams)
    assert not jobs.cancelled.is_set()


def test_queries_that_do_not_end_are_interrupted_even_without_a_running_retry(settings: Settings) -> None:
    jobs = Jobs()
    streams = [PaperStream(jobs.cancelled, lambda: None) for _ in range(len(TOPICS) + 1)]
    _stop(jobs, _queries(settings, streams), leave_s=0.05)
    assert not any(each.is_active for each in streams)


def test_a_start_that_waits_for_a_held_subscription_ends_at_a_stop(settings: Settings) -> None:
    stop = threading.Event()
    admin = pulsar(settings)
    admin.faults.before(lambda operation, _: stop.set() if operation == "ensure_subscription" else None)
    with pytest.raises(StopRequestedError):
        ensure_topics(admin, settings, stop)


class _Quiet:
    """Queries and a due loop without work. found: whether a lookup finds a new topic to read."""

    failure = None
    is_alive = True

    def __init__(self, *found: bool) -> None:
        self._found = list(found)

    def check_once(self) -> dict[str, Exception]:
        return {}

    def look_up(self) -> bool:
        return self._found.pop(0) if self._found else False

    def check(self) -> None:
        pass

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def join(self, _timeout_s: float) -> bool:
        return True


def test_a_run_ends_if_its_master_ends_spark_so_that_it_is_started_again() -> None:
    parts: Any = _Quiet()
    supervisor = Supervisor(queries=parts, due=parts, upkeep=parts, find_gaps=list)
    is_over = Checks(is_idle=lambda: False, stuck=dict, needs_operator=lambda: "", is_spark_over=lambda: True)
    supervisor.watch(threading.Event(), is_over)
    with pytest.raises(UnavailableError, match="start again") as ended:
        supervisor.raise_failure(())
    assert ended.value.exit_code == 3


def test_a_stop_ends_well_though_spark_is_over(settings: Settings) -> None:
    class Over(Jobs):
        def cancelAllJobs(self) -> None:  # noqa: N802  as above
            super().cancelAllJobs()
            raise RuntimeError("Cannot call methods on a stopped SparkContext")

    jobs = Over()
    streams = [PaperStream(jobs.cancelled, lambda: None) for _ in range(len(TOPICS) + 1)]
    _stop(jobs, _queries(settings, streams), leave_s=0.05)
    assert not any(each.is_active for each in streams)


@pytest.mark.parametrize("found", [(), (True,)], ids=["at once", "after a topic that is read from now on"])
def test_a_run_until_idle_ends_as_refused_where_a_person_has_to_act(found: tuple[bool, ...]) -> None:
    parts: Any = _Quiet(*found)
    supervisor = Supervisor(queries=parts, due=parts, upkeep=parts, find_gaps=list)
    paused = Checks(is_idle=lambda: False, stuck=dict, needs_operator=lambda: "paused: maintenance")
    supervisor.watch(threading.Event(), paused)
    with pytest.raises(SafetyError, match="waits for the operator: paused: maintenance") as ended:
        supervisor.raise_failure(())
    assert ended.value.exit_code == 4
