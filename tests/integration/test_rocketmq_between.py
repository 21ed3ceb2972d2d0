"""A broker in file mode after the conversion of its store, and in RocksDB mode later, has all its messages."""

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.errors import ReaperError
from streaming.sandbox.rocketmq.broker_home import RocketPart, StoreMode
from streaming.sandbox.rocketmq.server import RocketMQ, down, up
from tests.integration.rocket_client import Queue, RocketClient
from tests.integration.rocket_dying import BACK
from tests.integration.test_rocketmq import ledger_reaper

pytestmark = [pytest.mark.cluster, pytest.mark.long]
QUEUES: list[Queue] = [("Orders", number) for number in range(4)]
LMQ: list[Queue] = [("%LMQ%left", 0)]


@pytest.fixture(params=["5.3.3", "5.5.0"], ids=lambda version: f"v{version}")
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RocketMQ]:
    try:
        # sample configurations contain this setting, but no broker reads it
        nowhere = {"storePathConsumeQueue": str(tmp_path / "nowhere")}
        yield up(tmp_path, request.param, mode=StoreMode.FILE, broker_settings=nowhere)
        assert not (tmp_path / "nowhere").exists()
    finally:
        down(tmp_path)


def test_a_broker_indexes_messages_that_it_wrote_in_files_after_the_conversion(server: RocketMQ) -> None:
    store = str(server.store)
    with RocketClient(server) as client:
        client.topic("Orders", 4)
        names = set(client.send("Orders", "before", 300, queues=4, bytes=2500))
        client.send("Orders", "light", 5, queue=0, lmq=LMQ[0][0])
        client.take("readers", QUEUES, each=11)
        client.close()
        server.stop_broker()
        ledger_reaper("rocketmq", "backfill", "--yes", "--store", store)
        server.start_broker(StoreMode.FILE)
        names |= set(client.send("Orders", "between", 900, queues=4, bytes=2500))  # over several files of the log
        client.send("Orders", "lighter", 5, queue=1, lmq=LMQ[0][0])
        before = client.dump([*QUEUES, *LMQ])
        client.close()
        server.stop_broker()

        server.start_broker(StoreMode.ROCKSDB)

        after = client.dump([*QUEUES, *LMQ])
        assert after == before
        assert names <= {each.name for queue in QUEUES for each in after[queue].messages}
        assert Counter(len(content.messages) == content.end for content in after.values()) == {True: 5}
        sent = client.send("Orders", "after", 4, queues=4)
        assert {(("Orders", queue), offset) for queue, offset in sent.values()} == {
            (queue, before[queue].end) for queue in QUEUES
        }
        taken = client.take("readers", QUEUES)
        # the groups' offsets are those of the conversion or later: they miss nothing
        assert {each.read.name for each in taken} >= {f"between-{number}" for number in range(900)} | set(sent)
        client.close()
        server.stop_broker()
        *_, checked = map(json.loads, ledger_reaper("rocketmq", "check", "--json", "--store", store).splitlines())
        assert checked["ok"], checked


def test_a_topic_that_is_created_again_in_rocksdb_keeps_its_new_messages_in_files(server: RocketMQ) -> None:
    store, again = str(server.store), [("Again", 0), ("Again", 1)]
    with RocketClient(server) as client:
        client.topic("Orders", 4)
        client.topic("Again", 2)
        client.send("Orders", "before", 80, queues=4)
        client.send("Again", "old", 30, queues=2)
        client.close()
        server.stop_broker()
        ledger_reaper("rocketmq", "backfill", "--yes", "--store", store)
        server.start_broker(StoreMode.ROCKSDB)
        client.delete("Again")
        client.topic("Again", 2)
        names = set(client.send("Again", "new", 10, queues=2))
        client.send("Orders", "after", 20, queues=4)
        before = client.dump([*QUEUES, *again])
        client.close()
        server.stop_broker()
        *_, checked = map(json.loads, ledger_reaper("rocketmq", "check", "--json", "--store", store).splitlines())
        assert checked["ok"], checked

        ledger_reaper("rocketmq", "rollback", "--yes", "--store", store)
        server.start_broker(StoreMode.FILE)

        # 5.3.3 continues the count, and a file broker also shows messages of the topic's earlier incarnation in the log
        after = client.dump([*QUEUES, *again])
        assert all(after[queue].end == before[queue].end for queue in before)
        assert all(set(before[queue].messages) <= set(after[queue].messages) for queue in before)
        assert names <= {each.name for queue in again for each in after[queue].messages}
        client.send("Again", "last", 2, queues=2)
        assert {queue: end for queue, (_first, end) in client.ends(again).items()} == {
            queue: before[queue].end + 1 for queue in again
        }


def test_queues_whose_files_were_deleted_are_restored_from_rocksdb(server: RocketMQ) -> None:
    store, light = server.store, [*QUEUES, *LMQ]
    with RocketClient(server) as client:
        client.topic("Orders", 4)
        client.send("Orders", "before", 300, queues=4, bytes=2500)
        client.send("Orders", "light", 5, queue=0, lmq=LMQ[0][0])
        client.take("readers", QUEUES, each=11)
        client.close()
        server.stop_broker()
        ledger_reaper("rocketmq", "backfill", "--yes", "--store", str(store))
        server.start_broker(StoreMode.ROCKSDB)
        client.send("Orders", "after", 100, queues=4, bytes=2500)
        client.send("Orders", "lighter", 5, queue=1, lmq=LMQ[0][0])
        client.take("readers", QUEUES, each=7)
        before, offsets = client.dump(light), client.offsets("readers", QUEUES)
        client.close()
        server.stop_broker()
        folders = [each for each in (store / "consumequeue").iterdir() if each.is_dir()]
        assert {"Orders", LMQ[0][0]} <= {each.name for each in folders}
        for folder in folders:  # like an operator who needed the space
            shutil.rmtree(folder)

        conf = str(server.home.conf(RocketPart.BROKER))
        ledger_reaper("rocketmq", "rollback", "--yes", "--store", str(store), "--broker-conf", conf)
        server.start_broker(StoreMode.FILE)

        assert client.dump(light) == before
        assert client.offsets("readers", QUEUES) == offsets
        sent = client.send("Orders", "last", 4, queues=4)
        assert {(("Orders", queue), offset) for queue, offset in sent.values()} == {
            (queue, before[queue].end) for queue in QUEUES
        }
        expected = {m.name for queue in QUEUES for m in before[queue].messages if m.offset >= offsets[queue]} | set(
            sent
        )
        assert Counter(each.read.name for each in client.take("readers", QUEUES)) == Counter(expected)


def test_no_broker_starts_in_file_mode_on_a_rollback_that_was_killed(server: RocketMQ) -> None:
    store = server.store
    with RocketClient(server) as client:
        client.topic("Orders", 4)
        names = set(client.send("Orders", "before", 80, queues=4))
        client.send("Orders", "light", 5, queue=0, lmq=LMQ[0][0])
        client.close()
        server.stop_broker()
        ledger_reaper("rocketmq", "backfill", "--yes", "--store", str(store))
        server.start_broker(StoreMode.ROCKSDB)
        names |= set(client.send("Orders", "after", 80, queues=4))
        client.send("Orders", "lighter", 5, queue=1, lmq=LMQ[0][0])
        client.take("readers", QUEUES, each=7)
        before, offsets = client.dump([*QUEUES, *LMQ]), client.offsets("readers", QUEUES)
        client.close()
        server.stop_broker()

        for effect in BACK:
            words = [sys.executable, "-m", "tests.integration.rocket_dying", effect]
            completed = subprocess.run(
                [*words, "rocketmq", "rollback", "--yes", "--store", str(store)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert completed.returncode == -signal.SIGKILL, (effect, completed.stderr)
            with pytest.raises(ReaperError, match="ended before it served"):
                server.start_broker(StoreMode.FILE)
            log = server.home.own_log("store.log").read_text(encoding="utf-8", errors="replace")
            assert "LEDGER_REAPER_ROLLBACK_HAS_NOT_ENDED" in log, effect
            assert not (store / "abort").exists(), effect
        ledger_reaper("rocketmq", "rollback", "--yes", "--store", str(store))
        server.start_broker(StoreMode.FILE)

        assert client.dump([*QUEUES, *LMQ]) == before
        assert client.offsets("readers", QUEUES) == offsets
        assert Counter(each.name for queue in QUEUES for each in before[queue].messages) == Counter(
            [*names, *(f"light-{number}" for number in range(5)), *(f"lighter-{number}" for number in range(5))]
        )


def test_a_copy_is_converted_beside_the_broker_without_changes_to_its_store(
    server: RocketMQ, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store, conf = server.store, str(server.home.conf(RocketPart.BROKER))
    folder = tmp_path_factory.mktemp("copies")
    copy, linked = folder / "copy", folder / "linked"
    with RocketClient(server) as client:
        client.topic("Orders", 4)
        client.send("Orders", "before", 300, queues=4, bytes=2500)
        client.close()
        server.stop_broker()
        subprocess.run(["cp", "-a", "--sparse=always", str(store), str(copy)], check=True)
        server.start_broker(StoreMode.FILE)

        assert "RUNNING" in refused("plan", "--store", str(store), "--broker-conf", conf, code=0)
        assert "runs" in refused("backfill", "--yes", "--store", str(store), "--broker-conf", conf)
        ledger_reaper("rocketmq", "backfill", "--yes", "--store", str(copy), "--broker-conf", conf)
        assert check(copy, "--broker-conf", conf)["units"] == 300
        subprocess.run(["cp", "-a", "--sparse=always", str(store), str(linked)], check=True)
        (linked / "abort").unlink()
        shutil.rmtree(linked / "consumequeue")
        (linked / "consumequeue").symlink_to(store / "consumequeue")
        assert "consumequeue" in refused("backfill", "--yes", "--store", str(linked))

        assert not (store / "ledger-reaper").exists()
        assert not [path for path in (store / "consumequeue").iterdir() if path.is_file()]
        names = set(client.send("Orders", "after", 40, queues=4))
        after = client.dump(QUEUES)
        assert names <= {each.name for queue in QUEUES for each in after[queue].messages}
        assert sum(content.end for content in after.values()) == 340


def test_a_light_queue_with_a_slash_is_reported_by_a_rollback_to_files(server: RocketMQ) -> None:
    store = str(server.store)
    with RocketClient(server) as client:
        client.topic("Orders", 4)
        client.send("Orders", "before", 80, queues=4)
        client.close()
        server.stop_broker()
        ledger_reaper("rocketmq", "backfill", "--yes", "--store", store)
        server.start_broker(StoreMode.ROCKSDB)
        client.send("Orders", "light", 5, queue=0, lmq="%LMQ%left/right")
        before = client.dump([*QUEUES, ("%LMQ%left/right", 0)])
        assert len(before["%LMQ%left/right", 0].messages) == 5
        client.close()
        server.stop_broker()
        check(server.store)

        output = ledger_reaper("rocketmq", "rollback", "--yes", "--store", store)
        server.start_broker(StoreMode.FILE)

        assert "'%LMQ%left/right' has 5 messages in RocksDB, and gets no file queue" in output
        assert client.dump(QUEUES) == {queue: before[queue] for queue in QUEUES}
        client.send("Orders", "last", 4, queues=4)
        assert {queue: end for queue, (_first, end) in client.ends(QUEUES).items()} == {
            queue: before[queue].end + 1 for queue in QUEUES
        }


def check(store: Path, *arguments: str) -> dict[str, int]:
    """Run `check`, which must find nothing; return its summary."""
    output = ledger_reaper("rocketmq", "check", "--json", "--store", str(store), *arguments)
    summary: dict[str, int] = json.loads(output.splitlines()[-1])
    assert summary["ok"], summary
    return summary


def refused(*words: str, code: int = 4) -> str:
    """Run a command that must end with this code; return its output."""
    command = [sys.executable, "-m", "streaming", "rocketmq", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
