"""Faults during the work, on the real cluster: no request is lost, and no ledger in use is deleted."""

import os
import signal
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from streaming.adapters.memory.store import Faults
from streaming.clients import clients_for
from streaming.clock import Clock, ManualClock, SystemClock
from streaming.config.policies import policy_of
from streaming.config.settings import Settings
from streaming.coordination import identity
from streaming.coordination.epoch import Epoch
from streaming.in_use.loader import InUseLoader
from streaming.sandbox import cluster_faults, ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.orphans import consume_and_trim
from streaming.sandbox.parts import part_clients as sandbox_clients
from streaming.sandbox.reckoning import reckon
from streaming.state.delta.delta_tables import opened
from streaming.sweep.jobs import Job, SweepRules
from streaming.sweep.ledgers import Sweeper
from tests.builders import DAY_MS, data_custom, metadata
from tests.integration.conftest import (
    Deploy,
    Deployment,
    deployment,
    kill,
    killed_at_the_end,
    leak,
    new_topic,
    payload,
    wait_until,
)
from tests.world import MemoryJournal
from udfs.formats.ledger_metadata import serialize_v3
from udfs.paths import managed_ledger_name
from udfs.records import LedgerComponent, LedgerState, LedgerType, Outcome, PendingDelete, Reason

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LEAKED = 300


class Scene:
    """A topic with live ledgers, synthetic leaked ledgers, and requests for both."""

    def __init__(self, cluster: Cluster, service: Deployment, log: Path, *, leaked: int = LEAKED) -> None:
        self.cluster = cluster
        self.service = service
        self.log = log
        self.topic = new_topic("fault")
        topics.fill(cluster, self.topic, 3, ["s"])
        self.messages = topics.read_all(cluster, self.topic)
        # without the current ledger, which a broker replaces when it starts again
        self.listed = topics.data_ledgers(cluster, self.topic)[:-1]
        self.leaked: list[int] = []
        self.requested = 1
        service.request([payload(self.topic, self.listed[0])])
        self.leak(leaked)

    def leak(self, count: int) -> None:
        """Leak ledgers, and request their deletion."""
        leaked = leak(self.cluster, self.topic, count)
        self.leaked += leaked
        self.requested += count
        self.service.request(payload(self.topic, ledger_id) for ledger_id in leaked)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return self.service.start("run", *arguments, log=self.log)

    def wait_for_receipts(self, running: subprocess.Popen[bytes]) -> None:
        """Wait until a service that was just started has written a receipt."""
        before = len(self.service.receipts())
        wait_until(lambda: len(self.service.receipts()) > before, running, self.log)

    def check(self) -> None:
        """Check that each request has one final receipt, each leak is gone, and each live message is readable."""
        final = self.service.final()
        assert len(final) == self.requested
        assert all(len(rows) == 1 for rows in final.values())
        outcomes = Counter(row["outcome"] for rows in final.values() for row in rows)
        assert outcomes["DEAD_LETTER"] == 1
        assert outcomes["DELETED"] + outcomes["ALREADY_GONE"] == len(self.leaked)
        left = ledger_list.every_ledger(self.cluster).keys()
        assert not left & set(self.leaked)
        assert set(self.listed) <= left
        assert topics.read_all(self.cluster, self.topic) == self.messages
        reckoning = reckon(self.service.settings)
        assert (reckoning.wrong, reckoning.open, reckoning.dead_letters) == ([], 0, 1)


@pytest.fixture
def scene(cluster: Cluster, deploy: Deploy, tmp_path: Path) -> Scene:
    return Scene(cluster, deploy(chunk_rows=100), tmp_path / "run.log")


@pytest.fixture(scope="module")
def killed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A scene whose service was killed during a batch, and started again."""
    here = tmp_path_factory.mktemp("killed")
    scene = Scene(cluster, deployment(cluster, here, chunk_rows=100), here / "run.log")
    with killed_at_the_end(scene.start("--until-idle")) as running:
        scene.wait_for_receipts(running)
    assert len(scene.service.final()) < scene.requested, "it was killed after the batch"
    scene.service.console.run("run", "--until-idle")
    return scene


def test_kill_9_during_a_batch_loses_and_doubles_nothing(cluster: Cluster, killed: Scene) -> None:
    killed.check()
    listed = ledger_list.listed_by_bookie(cluster)
    assert not listed & set(killed.leaked)
    assert set(killed.listed) <= listed


@dataclass(frozen=True)
class Battered:
    """A scene whose service was killed twice during a batch; then it slept while a second service took over.

    The sleeper had no right to delete before it slept; ZooKeeper stalled while the second service worked.
    """

    scene: Scene
    reasons: set[str]  # for the leaks that existed when the right was withdrawn
    all_there: bool  # while no service had the right
    sleeper_code: int
    stalled_code: int  # of the service that worked while ZooKeeper stalled
    log: str
    listed_by_bookie: set[int]


@pytest.fixture(scope="module")
def battered(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Battered:
    here = tmp_path_factory.mktemp("battered")
    scene = Scene(cluster, deployment(cluster, here, chunk_rows=100), here / "run.log", leaked=450)
    for _ in range(2):
        with killed_at_the_end(scene.start("--until-idle")) as running:
            scene.wait_for_receipts(running)
    scene.leak(150)
    there = set(scene.leaked) & ledger_list.every_ledger(cluster).keys()

    def reasons() -> set[str]:
        return {row["reason"] for row in scene.service.receipts() if row["ledger_id"] in there}

    with ExitStack() as until_it_sleeps, ExitStack() as until_the_end:
        until_it_sleeps.enter_context(cluster_faults.metadata_fault(cluster))
        sleeper = until_the_end.enter_context(killed_at_the_end(scene.start()))
        wait_until(reasons, sleeper, scene.log)
        os.killpg(sleeper.pid, signal.SIGSTOP)
        kept_reasons, all_there = reasons(), there <= ledger_list.every_ledger(cluster).keys()
        until_it_sleeps.close()
        store, lock = cluster.addresses.zookeeper, _lock_of(scene.service.settings)
        topics.wait_for(lambda: not sandbox_clients.znode_exists(store, lock), "the end of its session", seconds=60)
        stalled_code = _run_while_zookeeper_stalls(scene)
        os.killpg(sleeper.pid, signal.SIGCONT)
        sleeper_code = sleeper.wait(120)
    return Battered(
        scene=scene,
        reasons=kept_reasons,
        all_there=all_there,
        sleeper_code=sleeper_code,
        stalled_code=stalled_code,
        log=scene.log.read_text(),
        listed_by_bookie=ledger_list.listed_by_bookie(cluster),
    )


def _run_while_zookeeper_stalls(scene: Scene) -> int:
    with killed_at_the_end(scene.start("--until-idle")) as running:
        scene.wait_for_receipts(running)
        with cluster_faults.paused(scene.cluster, Part.ZOOKEEPER):
            time.sleep(4)  # its session is 6 s
        code = running.wait(240)
    if code != 0:  # the session was lost: the service stopped by itself, and is started again
        scene.service.console.run("run", "--until-idle")
    return code


def _lock_of(settings: Settings) -> str:
    return f"{settings.zookeeper.own_root}/instances/{settings.service.name}/lock"


@pytest.mark.long
def test_a_zombie_that_slept_through_its_session_can_neither_delete_nor_commit(battered: Battered) -> None:
    assert battered.sleeper_code in (0, 3, 4), battered.log[-3000:]
    battered.scene.check()
    assert not battered.listed_by_bookie & set(battered.scene.leaked)
    assert set(battered.scene.listed) <= battered.listed_by_bookie


@pytest.mark.long
def test_deletes_without_a_right_and_deletes_during_a_stall_of_zookeeper_succeed_later_and_use_up_no_tries(
    battered: Battered,
) -> None:
    assert battered.reasons == {"STORE_REFUSED"}
    assert battered.all_there
    assert battered.stalled_code in (0, 3, 4), battered.log[-3000:]
    battered.scene.check()


def test_a_lost_receipt_is_an_alarm(killed: Scene) -> None:
    service = killed.service
    assert "entries read and accounted for" in service.call("check")
    table = opened(service.settings.state.dir, "receipts")
    assert table is not None
    complete = table.version()
    row = next(row for row in service.receipts() if row["outcome"] == "DELETED")
    table.delete(f"message_id = '{row['message_id']}'")
    try:
        position = ":".join(row["message_id"].split(":")[:2])
        output = service.call("check", code=4)
        assert f"1 entry read without a receipt, such as {position}" in " ".join(output.split())
        assert "ALARM" in service.console.run("run", "--until-idle", code=1)
    finally:
        table.restore(complete)


@pytest.mark.long
def test_the_service_waits_for_a_broker_that_dies_during_a_batch(scene: Scene) -> None:
    with killed_at_the_end(scene.start("--until-idle")) as running:
        scene.wait_for_receipts(running)
        cluster_faults.kill(scene.cluster, Part.BROKER)
        time.sleep(2)
        cluster_faults.restart(scene.cluster, Part.BROKER)
        code = running.wait(240)
    if code != 0:  # the connector may fail its query; nothing was committed, and the next run repeats the batch
        scene.service.console.run("run", "--until-idle")
    scene.check()


@pytest.mark.long
def test_a_worker_and_a_bookie_that_are_killed_during_a_batch_lose_nothing(scene: Scene) -> None:
    with killed_at_the_end(scene.start("--until-idle")) as running:
        scene.wait_for_receipts(running)
        workers = [child for child in psutil.Process(running.pid).children(recursive=True) if _is_python_worker(child)]
        for worker in workers:
            worker.kill()
        assert workers
        cluster_faults.kill(scene.cluster, Part.BOOKIE)
        time.sleep(3)
        cluster_faults.restart(scene.cluster, Part.BOOKIE)
        code = running.wait(240)
    if code != 0:  # the only executor fails with its worker; nothing was committed, and the next run repeats the batch
        scene.service.console.run("run", "--until-idle")
    scene.check()


def _is_python_worker(process: psutil.Process) -> bool:
    try:
        return "streaming.spark.worker_daemon" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


@pytest.mark.long
def test_a_full_disk_of_the_state_directory_stops_deletes_until_there_is_space(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    """The state is on a tmpfs (which requires root) that is filled up while the service works."""
    service = deploy(chunk_rows=100)
    state = Path(service.settings.state.dir)
    state.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(state)], check=False)
    if mounted.returncode:
        pytest.skip("no right to mount a tmpfs")
    try:
        scene = Scene(cluster, service, tmp_path / "run.log")
        running = scene.start("--until-idle")
        try:
            scene.wait_for_receipts(running)
            filler = state / "filler"
            _fill_up(filler)
            time.sleep(10)
            there = set(scene.leaked) & ledger_list.listed_by_bookie(cluster)
            assert there, "all requests were processed before the disk was full"
            time.sleep(5)
            # no delete without a journal entry
            assert set(scene.leaked) & ledger_list.listed_by_bookie(cluster) == there
            filler.unlink()
            code = running.wait(240)
        finally:
            kill(running)
        if code != 0:
            scene.service.console.run("run", "--until-idle")
        scene.check()
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)


def _fill_up(file: Path) -> None:
    with file.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(4096))
        except OSError:
            return


def test_an_owner_that_rolls_over_and_trims_between_read_and_delete_is_read_again(
    cluster: Cluster, deploy: Deploy
) -> None:
    """The executors' sweep gets an in-use set that the real broker has changed since the read."""
    settings = deploy().settings
    topic = new_topic("raced")
    name = managed_ledger_name(topic)
    topics.fill(cluster, topic, 6, ["s"])
    before = topics.data_ledgers(cluster, topic)
    leaked = leak(cluster, topic, 3)
    sweeper, loader = sweeper_of(settings, SystemClock())
    cached = loader.load([f"data:{name}"])

    consume_and_trim(cluster, topic, "s", 3 * topics.ENTRIES_PER_LEDGER)
    topics.publish(cluster, topic, 2 * topics.ENTRIES_PER_LEDGER)
    listed = topics.data_ledgers(cluster, topic)
    messages = topics.read_all(cluster, topic)
    time.sleep(1.1)  # min_age
    ledger_ids = [*before, *listed, *leaked]
    requests = [
        PendingDelete(
            managed_ledger=name,
            component=LedgerComponent.MANAGED_LEDGER,
            ledger_type=LedgerType.LEDGER,
            ledger_id=ledger_id,
        )
        for ledger_id in ledger_ids
    ]
    swept = dict(zip(ledger_ids, sweeper.sweep([Job(request) for request in requests], cached), strict=True))

    assert {swept[ledger_id].verdict.reason for ledger_id in listed} == {Reason.IN_USE}
    assert {swept[ledger_id].verdict.outcome for ledger_id in leaked} == {Outcome.DELETED}
    assert {swept[ledger_id].verdict.outcome for ledger_id in set(before) - set(listed)} == {Outcome.ALREADY_GONE}
    assert all(result.refreshed for result in swept.values())
    left = ledger_list.listed_by_bookie(cluster)
    assert set(listed) <= left
    assert not left & set(leaked)
    assert topics.read_all(cluster, topic) == messages


@pytest.mark.long
def test_an_open_orphan_is_deleted_after_its_quiet_period_and_a_ledger_in_use_or_in_recovery_never(
    cluster: Cluster, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executors' sweep runs with a clock that is days ahead."""
    monkeypatch.setenv("LEDGER_REAPER__SAFETY__OPEN_QUIET_PERIOD", "30d")
    settings = deploy().settings
    topic = new_topic("open")
    name = managed_ledger_name(topic)
    topics.fill(cluster, topic, 4, ["keeper", "leaver"])
    first, second, *_rest = topics.data_ledgers(cluster, topic)
    for subscription in ("keeper", "leaver"):
        topics.consume(cluster, topic, subscription, 3 * topics.ENTRIES_PER_LEDGER)
    cursors = topics.cursor_ledgers(cluster, topic)
    topics.trim(cluster, topic)
    topics.wait_for(lambda: not {first, second} & ledger_list.listed_by_bookie(cluster), "trim")
    with cluster_faults.crash_with_metadata_fault(cluster):  # a broker that stays alive would repeat the delete
        topics.delete_subscription(cluster, topic, "leaver")
    topics.publish(cluster, topic, 1)
    current = topics.data_ledgers(cluster, topic)[-1]
    cursors["keeper"] = topics.cursor_ledgers(cluster, topic)["keeper"]
    # ids of trimmed ledgers, in the states that a dead writer and an interrupted recovery leave
    states = {first: LedgerState.OPEN, second: LedgerState.IN_RECOVERY}
    sandbox_clients.create_znodes(
        cluster.addresses.zookeeper,
        [
            (ledger_list.path_of(ledger_id), serialize_v3(metadata(data_custom(name), state=state)))
            for ledger_id, state in states.items()
        ],
    )

    def reasons_after(days: int) -> dict[int, Reason]:
        clock = ManualClock(SystemClock().now_ms() + days * DAY_MS)
        data = [
            PendingDelete(
                managed_ledger=name,
                component=LedgerComponent.MANAGED_LEDGER,
                ledger_type=LedgerType.LEDGER,
                ledger_id=ledger_id,
            )
            for ledger_id in [*states, current]
        ]
        of_cursors = [
            PendingDelete(
                managed_ledger=name,
                component=LedgerComponent.MANAGED_CURSOR,
                ledger_type=LedgerType.LEDGER,
                ledger_id=ledger_id,
                cursor_name=cursor,
            )
            for cursor, ledger_id in cursors.items()
        ]
        jobs = [Job(request, clock.now_ms() - 3_000) for request in (*data, *of_cursors)]
        swept = sweeper_of(settings, clock)[0].sweep(jobs, {})
        return {job.request.ledger_id: result.verdict.reason for job, result in zip(jobs, swept, strict=True)}

    kept = {second: Reason.NOT_CLOSED, current: Reason.IN_USE, cursors["keeper"]: Reason.IN_USE}
    assert reasons_after(29) == kept | {first: Reason.NOT_CLOSED, cursors["leaver"]: Reason.NOT_CLOSED}
    assert reasons_after(31) == kept | {first: Reason.UNREFERENCED, cursors["leaver"]: Reason.OWNER_GONE}
    left = ledger_list.listed_by_bookie(cluster)
    assert set(kept) <= left
    assert not {first, cursors["leaver"]} & left


def sweeper_of(settings: Settings, clock: Clock) -> tuple[Sweeper, InUseLoader]:
    """Return an executor's sweeper with a journal in memory, and its loader."""
    clients = clients_for(settings)
    epoch = Epoch.bump(clients.store, settings.zookeeper.own_root, settings.service.name)
    loader = InUseLoader(clients.store, clients.broker, clock)
    rules = SweepRules(
        identity.read_layout(clients.store, settings.zookeeper.ledgers_root),
        settings.zookeeper.ledgers_root,
        (epoch.path, epoch.version),
        policy_of(settings),
    )
    return Sweeper(clients.store, loader, MemoryJournal(Faults()), clock, rules), loader
