"""A real RocketMQ is followed while its broker crashes, its files expire, and its disk fills up."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streaming.rocketmq.store.log_files import commitlog_of
from streaming.sandbox.rocketmq.broker_home import StoreMode
from streaming.sandbox.rocketmq.broker_settings import COMMIT_LOG_FILE_BYTES
from streaming.sandbox.rocketmq.server import RocketMQ, down, up
from tests.integration.rocket_client import Content, Queue, RocketClient
from tests.integration.rocket_dying import CUT_OFF, FIRST, LATER
from tests.integration.rocket_follow import Following
from tests.integration.test_rocketmq import ledger_reaper

pytestmark = [pytest.mark.cluster, pytest.mark.long]
QUEUES: list[Queue] = [("Orders", number) for number in range(4)]
LMQ: list[Queue] = [("%LMQ%left", 0)]
ALL = [*QUEUES, *LMQ]
# expired files are deleted within seconds
RETENTION = {"cleanResourceInterval": "1000", "deleteCommitLogFilesInterval": "10"}


@pytest.fixture(params=["5.3.3", "5.5.0"], ids=lambda version: f"v{version}")
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RocketMQ]:
    try:
        yield up(tmp_path, request.param, mode=StoreMode.FILE, broker_settings=RETENTION)
    finally:
        down(tmp_path)


@pytest.fixture
def client(server: RocketMQ) -> Iterator[RocketClient]:
    with RocketClient(server) as opened:
        opened.topic("Orders", 4)
        yield opened


def sent(client: RocketClient, prefix: str, count: int = 400) -> set[str]:
    """Send messages to all queues, about a file of the log."""
    names = set(client.send("Orders", prefix, count, queues=4, bytes=2500))
    return names | set(client.send("Orders", f"{prefix}-light", 5, queue=0, lmq=LMQ[0][0]))


def log_files(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def run(command: str, store: Path, *words: str, code: int = 0) -> str:
    return ledger_reaper("rocketmq", command, "--store", str(store), *words, code=code)


def check(store: Path) -> None:
    *_, summary = map(json.loads, run("check", store, "--json").splitlines())
    assert summary["ok"], summary


def converted(server: RocketMQ, client: RocketClient) -> dict[Queue, Content]:
    """Stop the broker, finish with `backfill`, check, and start it in RocksDB; return its content before."""
    before = client.dump(ALL)
    client.close()
    server.stop_broker()
    result = json.loads(run("backfill", server.store, "--yes", "--json"))
    assert result["resumed"], result
    check(server.store)
    server.start_broker(StoreMode.ROCKSDB)
    assert client.dump(ALL) == before
    return before


def names_in(contents: dict[Queue, Content]) -> Counter[str]:
    return Counter(message.name for queue in QUEUES for message in contents[queue].messages)


def lose_the_end(store: Path, lost: int) -> int:
    """Write zeros from the middle of a record on, like a power cut before the last pages of a log were written.

    The broker must be dead, and the store is the test's own.

    Returns:
        The position of the first zero.
    """
    log = commitlog_of(store / "commitlog")
    cut = log.end - lost
    for file in log.files:
        start = max(cut - file.start, 0)
        if start < file.size:
            with Path(file.path).open("r+b") as handle:
                handle.seek(start)
                handle.write(bytes(file.size - start))
    return cut


@pytest.mark.parametrize("lost", [700_001, 1_900_003], ids=["in one file", "over a roll"])
def test_a_broker_that_crashes_and_loses_the_end_of_its_log_is_followed_from_the_new_end(
    server: RocketMQ, client: RocketClient, lost: int
) -> None:
    for number in range(6):
        sent(client, f"before{number}")
    with Following(server) as following:
        following.until_caught_up()
        sent(client, "followed")
        following.until_caught_up()
        reached = following.end
        server.kill_broker()
        cut = lose_the_end(server.store, lost)
        assert cut < reached
        following.until_printed("has cut off the end of its log")
        client.close()
        server.start_broker()
        assert commitlog_end(client) <= cut
        after = sent(client, "after") | sent(client, "later")
        following.until_caught_up()
    before = converted(server, client)
    names = names_in(before)
    assert after <= names.keys()
    assert max(names.values()) == 1
    assert all(content.end == len(content.messages) for content in before.values()), "a queue has a hole"


def commitlog_end(client: RocketClient) -> int:
    """Return the position of the last message that the broker has."""
    return max(message.physical for content in client.dump(ALL).values() for message in content.messages)


def test_a_broker_that_is_killed_under_load_is_still_followed(server: RocketMQ, client: RocketClient) -> None:
    names = sent(client, "before")
    with Following(server) as following:
        following.until(lambda: bool(following.lags))
        for number in range(3):
            names |= sent(client, f"round{number}", 300)
            server.kill_broker()  # kill -9: its writes are kept, and another may have been in progress
            client.close()
            server.start_broker()
        names |= sent(client, "after")
        following.until_caught_up()
    assert names_in(converted(server, client)) == Counter(names)


def dies(server: RocketMQ, client: RocketClient | None, effect: str) -> set[str]:
    """Run `follow` until it dies at this effect, while a given client continues to send."""
    names = set[str]()
    words = ("--until-caught-up",) if effect == "before the close" else ()
    with Following(server, *words, dying=effect) as following:
        deadline = time.monotonic() + 240
        while following.process.poll() is None:
            assert time.monotonic() < deadline, (effect, following.output[-9:])
            time.sleep(0.2)
            if client is not None and following.lags:
                names |= sent(client, f"{effect}-{len(names)}".replace(" ", "-"), 40)
        assert following.wait() == -signal.SIGKILL, (effect, following.output[-9:])
    return names


def test_follow_that_is_killed_at_each_of_its_effects_leaves_no_hole(server: RocketMQ, client: RocketClient) -> None:
    names = sent(client, "before")
    for effect in FIRST | LATER:
        names |= sent(client, effect.replace(" ", "-"), 40) | dies(server, client, effect)
        is_there = (server.store / "ledger-reaper" / "follow" / "consumequeue" / "CURRENT").exists()
        assert is_there == (effect in LATER or effect == "in its place"), effect
    with Following(server, "--until-caught-up") as following:
        assert following.wait() == 0, following.output
    assert names_in(converted(server, client)) == Counter(names)


def test_follow_that_is_killed_while_it_returns_to_the_new_end_returns_again(
    server: RocketMQ, client: RocketClient
) -> None:
    for number in range(4):
        sent(client, f"before{number}")
    with Following(server, "--until-caught-up") as following:
        assert following.wait() == 0, following.output
    client.close()
    server.kill_broker()
    lose_the_end(server.store, 700_001)
    for effect in CUT_OFF:
        dies(server, None, effect)
    server.start_broker()
    after = sent(client, "after")
    with Following(server, "--until-caught-up") as following:
        assert following.wait() == 0, following.output
    before = converted(server, client)
    assert after <= names_in(before).keys()
    assert max(names_in(before).values()) == 1
    assert all(content.end == len(content.messages) for content in before.values()), "a queue has a hole"


def until_all_is_deleted(server: RocketMQ) -> None:
    """Wait until a broker that was ordered to delete files has completed all 20 passes, which include new files."""
    log, deadline = server.home.own_log("store.log"), time.monotonic() + 240
    while "manualDeleteFileSeveralTimes: 0 " not in log.read_text(encoding="utf-8", errors="replace"):
        assert time.monotonic() < deadline, f"{log} contains no deletion, or no end of it"
        time.sleep(0.5)
    time.sleep(2)  # the broker logs this before it deletes


def test_files_that_expire_while_they_are_followed_are_gone_afterwards(server: RocketMQ, client: RocketClient) -> None:
    for number in range(4):
        sent(client, f"before{number}")
    with Following(server) as following:
        following.until_caught_up()
        oldest = log_files(server.store)[0]
        sent(client, "followed")
        following.until_caught_up()
        client.ask({"do": "expire"})
        until_all_is_deleted(server)
        assert not oldest.exists()
        names = sent(client, "after")
        following.until_caught_up()
    before = converted(server, client)
    assert names <= names_in(before).keys()
    assert all(content.first > 0 for queue, content in before.items() if queue in QUEUES)


def test_after_files_expired_unread_follow_starts_from_scratch(server: RocketMQ, client: RocketClient) -> None:
    sent(client, "before")
    with Following(server) as following:
        following.until_caught_up()
        following.process.send_signal(signal.SIGSTOP)
        unread = int(log_files(server.store)[-1].name)
        for number in range(6):
            sent(client, f"unread{number}")
        client.ask({"do": "expire"})
        until_all_is_deleted(server)
        assert int(log_files(server.store)[0].name) > unread + COMMIT_LOG_FILE_BYTES
        following.process.send_signal(signal.SIGCONT)
        following.until_printed("starting over")
        names = sent(client, "after")
        following.until_caught_up()
    assert names <= names_in(converted(server, client)).keys()


@contextmanager
def small_disk(where: Path, megabytes: int) -> Iterator[Path]:
    """Mount a separate disk; skip the test if this machine does not allow it."""
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(where)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no mounts")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def fill(disk: Path, percent: float, kilobytes: int = 0) -> Path:
    """Write a file so that this share of the disk is used, except for some kilobytes."""
    status, file = os.statvfs(disk), disk / "filler"
    free = int(status.f_bavail - status.f_blocks * (100 - percent) / 100) * status.f_frsize - kilobytes * 1000
    with file.open("wb") as handle:
        os.posix_fallocate(handle.fileno(), 0, max(free, 1))
    return file


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_a_disk_that_fills_up_ends_follow_before_the_broker_deletes_messages(tmp_path: Path, version: str) -> None:
    with small_disk(tmp_path / "disk", 400) as disk:
        try:
            server = up(disk / "home", version, mode=StoreMode.FILE)
            with RocketClient(server) as client:
                client.topic("Orders", 4)
                names = sent(client, "before")
                with Following(server) as following:
                    following.until_caught_up()
                    filler = fill(disk, 83.7)
                    assert following.wait() == 4, following.output
                assert any("deletes messages early" in line for line in following.output), following.output
                names |= sent(client, "in-between")
                filler.unlink()
                with Following(server, "--until-caught-up") as following:
                    assert following.wait() == 0, following.output
                assert names_in(converted(server, client)) == Counter(names)
        finally:
            down(disk / "home")


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_a_full_disk_stops_every_command_and_leaves_the_store_as_it_was(tmp_path: Path, version: str) -> None:
    with small_disk(tmp_path / "disk", 400) as disk:
        try:
            server = up(disk / "home", version, mode=StoreMode.FILE)
            with RocketClient(server) as client:
                client.topic("Orders", 4)
                names = sent(client, "before", 2000)
                client.close()
                server.stop_broker()
                before = hashes(server.store)
                failed = 0
                for kilobytes in (0, 40, 100, 250, 1000):
                    if filled_up(disk, server.store, kilobytes):
                        break
                    failed += 1
                    assert before.items() <= hashes(server.store).items(), f"with {kilobytes} kB"
                    assert not (server.store / "consumequeue" / "CURRENT").exists()
                assert failed > 1
                (disk / "filler").unlink()
                if not (server.store / "consumequeue" / "CURRENT").exists():
                    run("backfill", server.store, "--yes")
                check(server.store)
                server.start_broker(StoreMode.ROCKSDB)
                names |= sent(client, "after", 2000)
                before_rollback = client.dump(ALL)
                client.close()
                server.stop_broker()
                fill(disk, 100)
                assert "the disk is full" in ledger_reaper_errors("rollback", "--yes", "--store", str(server.store))
                (disk / "filler").unlink()
                check(server.store)
                run("rollback", server.store, "--yes")
                server.start_broker(StoreMode.FILE)
                assert client.dump(ALL) == before_rollback
                assert names_in(before_rollback) == Counter(names)
        finally:
            down(disk / "home")


def hashes(store: Path) -> dict[str, int]:
    """Return the hashes of all the broker's files in the store that matter."""
    return {
        str(path.relative_to(store)): hash(path.read_bytes())
        for part in ("commitlog", "consumequeue", "config")
        for path in sorted((store / part).rglob("*"))
        if path.is_file()
    }


def filled_up(disk: Path, store: Path, kilobytes: int) -> bool:
    """Run `backfill`, and leave only this much of the disk after it has read the store; return whether it succeeded."""
    (disk / "filler").unlink(missing_ok=True)
    words = [*_PROGRAM, "rocketmq", "backfill", "--store", str(store), "--yes", "--rows-per-file", "1000"]
    output = []
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            output.append(line)
            if "reading the store" in line:
                time.sleep(0.3)
                fill(disk, 100, kilobytes)
        code = process.wait(120)
    assert code in (0, 3, 4), output
    assert not code or any("the disk is full" in line or "NO_SPACE" in line for line in output), output
    return code == 0


def ledger_reaper_errors(*words: str) -> str:
    completed = subprocess.run(
        [*_PROGRAM, "rocketmq", *words], capture_output=True, text=True, timeout=1200, check=False
    )
    assert completed.returncode not in (0, 1), completed.stderr  # 1: an unexpected error
    return completed.stderr


_PROGRAM = [sys.executable, "-m", "streaming"]


def test_a_store_that_is_copied_while_it_is_used_is_complete_or_refused_with_a_reason(
    server: RocketMQ, client: RocketClient, tmp_path: Path
) -> None:
    sent(client, "before")
    with Following(server) as following:
        following.until_caught_up()
        copies = [copied(server, client, tmp_path, number) for number in range(3)]
        following.until_caught_up()
    for copy in copies:
        assert "ABORT" in ledger_reaper_errors("plan", "--store", str(copy))
        assert "ABORT" in ledger_reaper_errors("backfill", "--yes", "--store", str(copy))
        (copy / "abort").unlink()  # as an impatient operator would
        assert_converted_or_refused(copy)
    converted(server, client)
    for number in range(3, 6):
        copy = copied(server, client, tmp_path, number)
        completed = subprocess.run(
            [*_PROGRAM, "rocketmq", "check", "--store", str(copy), "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert completed.returncode in (0, 3, 4), completed.stderr
        assert "Traceback" not in completed.stderr


def copied(server: RocketMQ, client: RocketClient, tmp_path: Path, number: int) -> Path:
    """Copy the store while the broker receives messages."""
    copy = tmp_path / f"copy{number}"
    with subprocess.Popen(["cp", "-a", "--sparse=always", str(server.store), str(copy)]) as process:
        while process.poll() is None:
            sent(client, f"copied{number}-{time.monotonic_ns()}", 40)
    (copy / "lock").unlink(missing_ok=True)
    return copy


def assert_converted_or_refused(copy: Path) -> None:
    """Either the conversion and the check complete, or the command refuses the copy with a message."""
    words = [*_PROGRAM, "rocketmq", "backfill", "--yes", "--store", str(copy)]
    completed = subprocess.run(words, capture_output=True, text=True, check=False)
    if completed.returncode == 4 and "--restart" in completed.stderr:
        completed = subprocess.run([*words, "--restart"], capture_output=True, text=True, check=False)
    assert "Traceback" not in completed.stderr
    assert completed.returncode in (0, 3, 4), completed.stderr
    if completed.returncode:
        assert not (copy / "consumequeue" / "CURRENT").exists()
        return
    checked = subprocess.run(
        [*_PROGRAM, "rocketmq", "check", "--store", str(copy)], capture_output=True, text=True, check=False
    )
    assert checked.returncode in (0, 4), checked.stderr
