"""Faults in the middle of the work, on the real cluster: each ends with nothing lost and nothing in use gone."""

import os
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable
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
from streaming.sandbox import clients as sandbox_clients
from streaming.sandbox import faults, ledgers, shell, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.orphans import consume_and_trim
from streaming.sweep.jobs import Job, SweepRules
from streaming.sweep.ledgers import Sweeper
from tests.builders import DAY_MS, data_custom, metadata
from tests.integration.conftest import Deployment, kill, payload, wait_until
from tests.world import MemoryJournal
from udfs.formats.ledger_metadata import serialize_v3
from udfs.paths import managed_ledger_name
from udfs.records import LedgerComponent, LedgerState, LedgerType, Outcome, PendingDelete, Reason

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

Deploy = Callable[..., Deployment]
LEAKED = 300


class Scene:
    """A topic with live ledgers, made-up leaked ones, and requests for both."""

    def __init__(self, cluster: Cluster, service: Deployment, log: Path) -> None:
        self.cluster = cluster
        self.service = service
        self.log = log
        self.topic = f"persistent://public/default/fault-{uuid.uuid4().hex[:8]}"
        topics.fill(cluster, self.topic, 3, ["s"])
        self.messages = topics.read_all(cluster, self.topic)
        # without the one being written: a broker that starts again replaces it
        self.listed = topics.data_ledgers(cluster, self.topic)[:-1]
        first = int(time.time() * 1000) % 1_000_000_000 + 1_000_000
        self.leaked = list(ledgers.make_synthetic(cluster, self.topic, count=LEAKED, first_id=first))
        asked = [*self.leaked, self.listed[0]]
        self.asked = len(asked)
        service.request(payload(self.topic, ledger_id) for ledger_id in asked)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return self.service.start("run", *arguments, log=self.log)

    def wait_for_receipts(self, running: subprocess.Popen[bytes]) -> None:
        wait_until(self.service.receipts, running, self.log)

    def check(self) -> None:
        """Every request has exactly one final receipt, every leak is gone, every live message is read."""
        final = self.service.final()
        assert len(final) == self.asked
        assert all(len(some) == 1 for some in final.values())
        outcomes = Counter(row["outcome"] for some in final.values() for row in some)
        assert outcomes["DEAD_LETTER"] == 1
        assert outcomes["DELETED"] + outcomes["ALREADY_GONE"] == LEAKED
        left = shell.list_ledgers(self.cluster)
        assert not left & set(self.leaked)
        assert set(self.listed) <= left
        assert topics.read_all(self.cluster, self.topic) == self.messages


@pytest.fixture
def scene(cluster: Cluster, deploy: Deploy, tmp_path: Path) -> Scene:
    return Scene(cluster, deploy(chunk_rows=100), tmp_path / "run.log")


def test_a_zombie_that_slept_through_its_session_can_neither_delete_nor_commit(scene: Scene) -> None:
    zombie = scene.start()
    try:
        scene.wait_for_receipts(zombie)
        os.killpg(zombie.pid, signal.SIGSTOP)
        time.sleep(13)  # its session is 6 s
        scene.service.run("run", "--until-idle")
        os.killpg(zombie.pid, signal.SIGCONT)
        assert zombie.wait(120) in (0, 3, 4), scene.log.read_text()[-3000:]
    finally:
        kill(zombie)
    scene.check()


def test_zookeeper_stalling_in_the_middle_is_waited_for_and_uses_up_no_tries(scene: Scene) -> None:
    running = scene.start("--until-idle")
    try:
        scene.wait_for_receipts(running)
        with faults.paused(scene.cluster, Part.ZOOKEEPER):
            time.sleep(4)
        ended = running.wait(240)
    finally:
        kill(running)
    if ended != 0:  # the session was lost: the service stopped by itself, and starts again
        assert ended in (3, 4), scene.log.read_text()[-3000:]
        scene.service.run("run", "--until-idle")
    scene.check()


@pytest.mark.long
def test_a_broker_that_dies_in_the_middle_is_waited_for(scene: Scene) -> None:
    running = scene.start("--until-idle")
    try:
        scene.wait_for_receipts(running)
        faults.kill(scene.cluster, Part.BROKER)
        time.sleep(2)
        faults.restart(scene.cluster, Part.BROKER)
        ended = running.wait(240)
    finally:
        kill(running)
    if ended != 0:  # the connector may give up its query; nothing was committed, so it starts again
        scene.service.run("run", "--until-idle")
    scene.check()


def test_without_the_right_to_delete_requests_are_kept_with_that_reason(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    scene = Scene(cluster, deploy(), tmp_path / "run.log")
    with faults.metadata_fault(cluster):
        running = scene.start()
        try:
            scene.wait_for_receipts(running)
        finally:
            running.terminate()
            running.wait(60)
            kill(running)
    first = scene.service.receipts()
    assert {row["reason"] for row in first if row["ledger_id"] in set(scene.leaked)} == {"STORE_REFUSED"}
    assert set(scene.leaked) <= shell.list_ledgers(cluster)
    scene.service.run("run", "--until-idle")
    scene.check()


@pytest.mark.long
def test_a_worker_and_a_bookie_that_are_killed_in_the_middle_lose_nothing(scene: Scene) -> None:
    running = scene.start("--until-idle")
    try:
        scene.wait_for_receipts(running)
        killed = [each for each in psutil.Process(running.pid).children(recursive=True) if _is_python_worker(each)]
        for each in killed:
            each.kill()
        assert killed
        faults.kill(scene.cluster, Part.BOOKIE)
        time.sleep(3)
        faults.restart(scene.cluster, Part.BOOKIE)
        ended = running.wait(240)
    finally:
        kill(running)
    if ended != 0:  # a single executor gives up with its worker; nothing was committed, so it starts again
        scene.service.run("run", "--until-idle")
    scene.check()


def _is_python_worker(process: psutil.Process) -> bool:
    try:
        return "streaming.spark.worker_daemon" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


@pytest.mark.long
def test_a_full_disk_for_the_state_stops_deleting_until_there_is_room(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    """A file system of its own (tmpfs, which takes root) that is filled up while the service works."""
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
            there = set(scene.leaked) & shell.list_ledgers(cluster)
            assert there, "all was worked off before the disk was full"
            time.sleep(5)
            assert set(scene.leaked) & shell.list_ledgers(cluster) == there  # nothing goes that can't be written down
            filler.unlink()
            ended = running.wait(240)
        finally:
            kill(running)
        if ended != 0:
            scene.service.run("run", "--until-idle")
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


def test_an_owner_that_rolls_over_and_trims_between_look_and_delete_is_read_again(
    cluster: Cluster, deploy: Deploy
) -> None:
    """The very sweep of the executors, with an in-use set that the real broker has made old meanwhile."""
    settings = deploy().settings
    topic = f"persistent://public/default/raced-{uuid.uuid4().hex[:8]}"
    name = managed_ledger_name(topic)
    topics.fill(cluster, topic, 6, ["s"])
    before = topics.data_ledgers(cluster, topic)
    first = int(time.time() * 1000) % 1_000_000_000 + 1_000_000
    leaked = list(ledgers.make_synthetic(cluster, topic, count=3, first_id=first))
    sweeper, loader = _sweeper(settings, SystemClock())
    cached = loader.load([f"data:{name}"])

    consume_and_trim(cluster, topic, "s", 3 * topics.ENTRIES_PER_LEDGER)
    topics.publish(cluster, topic, 2 * topics.ENTRIES_PER_LEDGER)
    listed = topics.data_ledgers(cluster, topic)
    messages = topics.read_all(cluster, topic)
    time.sleep(1.1)  # min_age
    asked = [*before, *listed, *leaked]
    requests = [PendingDelete(name, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, each) for each in asked]
    swept = dict(zip(asked, sweeper.sweep([Job(each) for each in requests], cached), strict=True))

    assert {swept[each].verdict.reason for each in listed} == {Reason.IN_USE}
    assert {swept[each].verdict.outcome for each in leaked} == {Outcome.DELETED}
    assert {swept[each].verdict.outcome for each in set(before) - set(listed)} == {Outcome.ALREADY_GONE}
    assert all(each.refreshed for each in swept.values())
    left = shell.list_ledgers(cluster)
    assert set(listed) <= left
    assert not left & set(leaked)
    assert topics.read_all(cluster, topic) == messages


def test_an_open_orphan_goes_after_its_quarantine_and_no_ledger_in_use_or_in_recovery_ever(
    cluster: Cluster, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very sweep of the executors, days later: with a clock that is ahead."""
    monkeypatch.setenv("LEDGER_REAPER__SAFETY__OPEN_QUARANTINE_DAYS", "30")
    monkeypatch.setenv("LEDGER_REAPER__TWO_PHASE__MAX_RETRY_DELETE_COUNT", "10")
    settings = deploy().settings
    topic = f"persistent://public/default/open-{uuid.uuid4().hex[:8]}"
    name = managed_ledger_name(topic)
    topics.fill(cluster, topic, 4, ["keeper", "leaver"])
    first, second, *_rest = topics.data_ledgers(cluster, topic)
    for subscription in ("keeper", "leaver"):
        topics.consume(cluster, topic, subscription, 3 * topics.ENTRIES_PER_LEDGER)
    cursors = topics.cursor_ledgers(cluster, topic)
    current = topics.data_ledgers(cluster, topic)[-1]
    topics.trim(cluster, topic)
    topics.wait_for(lambda: not {first, second} & shell.list_ledgers(cluster), "trim")
    with faults.metadata_fault(cluster):
        topics.delete_subscription(cluster, topic, "leaver")
    # numbers that the topic gave up, as a writer and a recovery that died would have left them
    made = {first: LedgerState.OPEN, second: LedgerState.IN_RECOVERY}
    sandbox_clients.create_znodes(
        cluster.addresses.zookeeper,
        [(ledgers.path_of(each), serialize_v3(metadata(data_custom(name), state=made[each]))) for each in made],
    )

    def told(days: int) -> dict[int, Reason]:
        clock = ManualClock(SystemClock().now_ms() + days * DAY_MS)
        data = [
            PendingDelete(name, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, each) for each in [*made, current]
        ]
        of_cursors = [
            PendingDelete(name, LedgerComponent.MANAGED_CURSOR, LedgerType.LEDGER, each, cursor_name=cursor)
            for cursor, each in cursors.items()
        ]
        jobs = [Job(each, clock.now_ms() - 3_000) for each in (*data, *of_cursors)]
        swept = _sweeper(settings, clock)[0].sweep(jobs, {})
        return {job.request.ledger_id: each.verdict.reason for job, each in zip(jobs, swept, strict=True)}

    kept = {second: Reason.NOT_CLOSED, current: Reason.IN_USE, cursors["keeper"]: Reason.IN_USE}
    assert told(29) == kept | {first: Reason.NOT_CLOSED, cursors["leaver"]: Reason.NOT_CLOSED}
    assert told(31) == kept | {first: Reason.UNREFERENCED, cursors["leaver"]: Reason.OWNER_GONE}
    left = shell.list_ledgers(cluster)
    assert set(kept) <= left
    assert not {first, cursors["leaver"]} & left


def _sweeper(settings: Settings, clock: Clock) -> tuple[Sweeper, InUseLoader]:
    """As an executor has it, but with its journal in memory."""
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
