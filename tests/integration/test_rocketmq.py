"""A real RocketMQ moves from files to RocksDB and back with stores that only `ledger-reaper rocketmq` converted."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from streaming.sandbox.home import HOST
from streaming.sandbox.parts import process
from streaming.sandbox.rocketmq.broker_home import RocketHome, RocketPart, StoreMode
from streaming.sandbox.rocketmq.server import RocketMQ, down, up
from tests.integration import rocket_load as load
from tests.integration.rocket_client import Queue, RocketClient, Taken
from tests.integration.rocket_compare import SECONDS, check_delayed, content_once, differences
from udfs.rocketmq.json_text import has_lines, parse, pretty

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@dataclass
class World:
    """A RocketMQ, its client, and the content before the last conversion."""

    server: RocketMQ
    client: RocketClient
    recorded: load.Recorded
    files: dict[str, tuple[str, str]] = field(default_factory=dict)  # each as the broker wrote it, and as exported

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run `ledger-reaper rocketmq ARGUMENTS` with the store; return its output."""
        return ledger_reaper("rocketmq", *arguments, "--store", str(self.server.store), code=code)

    def stop(self) -> None:
        """Stop the broker, and forget its clients."""
        self.client.close()
        self.server.stop_broker()

    def check(self) -> None:
        """Check the stopped store with our own command."""
        *_, summary = map(json.loads, self.run("check", "--json").splitlines())
        assert summary["ok"], summary


def ledger_reaper(*arguments: str, code: int = 0) -> str:
    """Run a command; return its output. Fail unless the exit code is `code`."""
    command = [sys.executable, "-m", "streaming", *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert completed.returncode == code, (
        f"{' '.join(arguments)}: {completed.returncode}\n{completed.stdout}\n{completed.stderr}"
    )
    return completed.stdout


@pytest.fixture(scope="module", params=["5.3.3", "5.5.0"], ids=lambda version: f"v{version}")
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A store that a file broker has filled; the broker is stopped."""
    root = tmp_path_factory.mktemp("rocketmq")
    server = RocketMQ(RocketHome(root))
    try:
        up(root, request.param, mode=StoreMode.FILE, broker_settings=load.BROKER_SETTINGS)
        with RocketClient(server) as client:
            world = World(server, client, load.fill(server, client))
            world.stop()
            load.expire_oldest_file(server, world.recorded)
            yield world
    finally:
        down(root)
        assert not [part for part in RocketPart if server.runs(part)]


@pytest.fixture(scope="module")
def upgraded(loaded: World) -> World:
    """The same store, converted and checked only by our commands, and served from RocksDB."""
    loaded.run("backfill", "--yes")
    loaded.check()
    out = loaded.server.home.root / "exported"
    loaded.run("export", "--out", str(out))
    for path in sorted(out.iterdir()):
        loaded.files[path.name] = ((loaded.server.store / "config" / path.name).read_text(), path.read_text())
    loaded.server.start_broker(StoreMode.ROCKSDB)
    return loaded


def test_exported_files_have_the_brokers_content_and_format(upgraded: World) -> None:
    assert len(upgraded.files) == 3
    for name, (theirs, ours) in upgraded.files.items():
        broker_table, our_table = parse(theirs), parse(ours)
        assert our_table.pop("dataVersion")["counter"] == broker_table.pop("dataVersion")["counter"] + 1
        broker_table.pop(
            "pullOffsetTable", None
        )  # of 5.5.0: only its statistics read this table, and RocksDB does not have it
        for table in (our_table, broker_table):  # the broker writes sets as lists in any order
            table["groupTopicMap"] = {group: sorted(each) for group, each in table.get("groupTopicMap", {}).items()}
        assert our_table == broker_table, name
        assert pretty(parse(theirs), in_lines=has_lines(theirs)) == theirs, name
        assert has_lines(ours) == has_lines(theirs), name


def test_the_sandbox_reports_its_addresses_and_starts_no_second_broker(upgraded: World) -> None:
    server = upgraded.server
    version, home = server.spec.version, str(server.home.root)

    facts = json.loads(ledger_reaper("sandbox", "up", "--rocketmq", version, "--home", home, "--json"))
    ledger_reaper("sandbox", "up", "--rocketmq", version, "--store", "file", "--home", home, code=2)
    ledger_reaper("sandbox", "up", "--home", home, code=2)

    assert facts == json.loads(ledger_reaper("sandbox", "status", "--home", home, "--json"))
    assert (facts["running"], facts["mode"], facts["store"]) == (True, "rocksdb", str(server.store))
    assert facts["name_server"] == server.spec.name_server


def test_the_broker_is_reachable_only_in_its_network_namespace(upgraded: World) -> None:
    holder = process.find(upgraded.server.home.network)
    if upgraded.server.spec.address == HOST:
        pytest.skip("this machine can't create network namespaces")

    assert holder is not None
    spaces = {Path(f"/proc/{pid}/ns/net").readlink() for pid in (holder.pid, _pid(upgraded.server, RocketPart.BROKER))}
    assert len(spaces) == 1
    assert spaces != {Path("/proc/self/ns/net").readlink()}


def _pid(server: RocketMQ, part: RocketPart) -> int:
    running = process.find(server.home.record(part))
    assert running is not None
    return running.pid


def test_every_old_message_is_read_by_its_offset(upgraded: World) -> None:
    content = upgraded.client.dump(load.QUIET)

    assert differences(upgraded.recorded.content, content) == []


def test_times_lead_to_the_offsets_of_the_file_broker(upgraded: World) -> None:
    queues = [queue for queue in load.QUIET if queue in upgraded.recorded.times]

    assert upgraded.client.times(queues, upgraded.recorded.stamps) == upgraded.recorded.times


def test_every_group_keeps_its_offset(upgraded: World) -> None:
    offsets = {group: upgraded.client.offsets(group, queues) for group, queues in load.GROUPS.items()}

    assert offsets == upgraded.recorded.offsets


@pytest.mark.parametrize("group", ["orders-a", "orders-b"])
def test_a_group_continues_exactly_after_its_last_message(upgraded: World, group: str) -> None:
    earlier = {each.read.name for each in upgraded.recorded.taken[group]}

    taken = upgraded.client.take(group, load.ORDERS)

    names = [each.read.name for each in taken]
    everything = {f"orders-{number}" for number in range(240)}
    assert Counter(names) == Counter(everything - earlier)
    left = upgraded.recorded.content  # on a busy machine a group may have taken all of a queue before
    assert _first_offsets(taken) == {
        queue: offset for queue, offset in upgraded.recorded.offsets[group].items() if offset < left[queue].end
    }


def test_a_filter_by_tag_finds_the_messages_after_the_groups_offset(upgraded: World) -> None:
    expected = {
        message.name
        for queue in load.TAGGED
        for message in upgraded.recorded.content[queue].messages
        if message.offset >= upgraded.recorded.offsets["filtered"][queue] and message.tag in ("red", "緑")
    }

    taken = upgraded.client.push("filtered", "Tagged", len(expected), tags="red || 緑", seconds=240)

    assert Counter(each.read.name for each in taken) == Counter(expected)


def test_a_message_that_was_retried_arrives_again_once(upgraded: World) -> None:
    retried, (queue,) = {f"fail-{number}" for number in range(3)}, load.RETRIED
    committed = upgraded.recorded.offsets["retrying"][
        queue
    ]  # on a busy machine a group may not have committed all by then
    left = [each.name for each in upgraded.recorded.content[queue].messages if each.offset >= committed]

    taken = upgraded.client.push("retrying", "Retried", len(retried) + len(left), seconds=240)

    assert Counter(each.read.name for each in taken) == Counter([*retried, *left])
    assert {each.read.name for each in taken if each.read.deliveries > 0} == retried


def test_delayed_messages_arrive_once_and_not_before_their_time(upgraded: World) -> None:
    check_delayed(upgraded.client, upgraded.recorded)


def test_open_transactions_end_as_the_producer_decides(upgraded: World) -> None:
    committed = {f"tx-unknown-{number}" for number in range(3)}
    rolled_back = {f"tx-unknown-{number}" for number in range(3, 6)}
    expected = Counter(committed | {f"tx-commit-{number}" for number in range(4)})

    upgraded.client.resolve(dict.fromkeys(committed, "commit") | dict.fromkeys(rolled_back, "rollback"))
    (content,) = content_once(upgraded.client, load.SETTLED, lambda read: len(read.messages) >= expected.total())

    assert Counter(message.name for message in content.messages) == expected


def test_new_messages_follow_the_old_messages_in_every_queue(upgraded: World) -> None:
    for queue in [*load.OLD, *load.FILLER, *load.BATCHES, *load.EMPTY]:
        end = upgraded.recorded.content[queue].end

        sent = upgraded.client.send(queue[0], f"new-{queue[1]}", 5, queue=queue[1])

        assert sorted(offset for _, offset in sent.values()) == list(range(end, end + 5)), queue


def test_a_group_whose_messages_are_all_deleted_gets_the_new_messages(upgraded: World) -> None:
    upgraded.client.send("Old", "late", 4, queues=2)

    taken = upgraded.client.take("old", load.OLD)

    names = [each.read.name for each in taken]
    assert {f"late-{number}" for number in range(4)} <= set(names)
    assert len(names) == len(set(names))
    assert _first_offsets(taken) == upgraded.recorded.offsets["old"]


def test_new_messages_reach_the_light_queues(upgraded: World) -> None:
    upgraded.client.send("Sources", "light", 3, lmq=",".join(name for name, _ in load.LMQ))

    for queue, content in upgraded.client.dump(load.LMQ).items():
        end = upgraded.recorded.content[queue].end
        assert [(each.offset, each.name) for each in content.messages[-3:]] == [
            (end + number, f"light-{number}") for number in range(3)
        ]


@pytest.fixture(scope="module")
def rolled_back(upgraded: World) -> World:
    """The store in files again, after topics, messages and offsets were added in RocksDB."""
    client = upgraded.client
    client.topic("Later", 2)
    client.send("Later", "later", 24, queues=2)
    client.take("laters", _LATER, each=3)
    client.commit(load.LMQ_GROUP, load.LMQ[0], 9)
    upgraded.recorded = _record(client)
    upgraded.stop()
    upgraded.check()
    upgraded.run("rollback", "--yes")
    upgraded.server.start_broker(StoreMode.FILE)
    return upgraded


_LATER: list[Queue] = [("Later", 0), ("Later", 1)]
_GROUPS = {**load.GROUPS, "laters": _LATER}
_ALL = [*load.QUIET, *load.DELAYED, *load.SETTLED, *_LATER]


def test_after_the_rollback_everything_is_read_from_files(rolled_back: World) -> None:
    assert differences(rolled_back.recorded.content, rolled_back.client.dump(_ALL)) == []


def test_after_the_rollback_every_group_keeps_its_offset_of_rocksdb(rolled_back: World) -> None:
    offsets = {group: rolled_back.client.offsets(group, queues) for group, queues in _GROUPS.items()}

    assert offsets == rolled_back.recorded.offsets


def test_after_the_rollback_a_group_continues(rolled_back: World) -> None:
    rolled_back.client.send("Later", "last", 4, queues=2)

    taken = rolled_back.client.take("laters", _LATER)

    names = [each.read.name for each in taken]
    committed = rolled_back.recorded.offsets["laters"]
    assert len(names) == len(set(names)) == 24 + 4 - sum(committed.values())
    assert _first_offsets(taken) == rolled_back.recorded.offsets["laters"]


@pytest.fixture(scope="module")
def both(rolled_back: World) -> World:
    """The store converted again, with a broker that writes both kinds of queues (stage 2)."""
    rolled_back.recorded = _record(rolled_back.client)
    rolled_back.stop()
    rolled_back.run("backfill", "--yes")
    rolled_back.check()
    rolled_back.server.start_broker(StoreMode.BOTH)
    return rolled_back


def test_the_brokers_own_check_finds_equal_queues_of_both_kinds(both: World) -> None:
    for queues in (load.ORDERS, load.EMPTY, _LATER):
        both.client.send(queues[0][0], "stage-two", 40, queues=len(queues))

    both.client.check()

    verdict = _verdict(both.server)
    assert verdict["checkStatus"] == 0, verdict


@pytest.fixture(scope="module")
def after_both(both: World) -> World:
    """The store after stage 2, with a stopped broker; a group has continued, so that its offset in RocksDB is old."""
    both.client.take("laters", _LATER)
    both.recorded = _record(both.client)
    both.stop()
    return both


def test_our_check_finds_complete_queues_of_both_kinds_and_old_offsets(after_both: World) -> None:
    *findings, summary = map(json.loads, after_both.run("check", "--json", code=4).splitlines())

    assert findings == []
    assert not summary["ok"]
    assert ["consumerOffsets" in each["text"] for each in summary["others"]] == [True], summary


def test_stage_three_serves_the_offsets_of_stage_two_once_they_are_converted(after_both: World) -> None:
    after_both.run("backfill", "--replace", "--yes")
    after_both.check()
    after_both.server.start_broker(StoreMode.ROCKSDB)

    offsets = {group: after_both.client.offsets(group, queues) for group, queues in _GROUPS.items()}

    assert offsets == after_both.recorded.offsets
    assert differences(after_both.recorded.content, after_both.client.dump(_ALL)) == []


def _record(client: RocketClient) -> load.Recorded:
    """Return the broker's current content and offsets."""
    offsets = {group: client.offsets(group, queues) for group, queues in _GROUPS.items()}
    return load.Recorded(client.dump(_ALL), [], {}, offsets, 0)


def _first_offsets(taken: Iterable[Taken]) -> dict[Queue, int]:
    first: dict[Queue, int] = {}
    for message in taken:
        first[message.queue] = min(first.get(message.queue, message.read.offset), message.read.offset)
    return dict(sorted(first.items()))


def _verdict(server: RocketMQ) -> dict[str, Any]:
    """Return the result of the broker's own check from its log."""
    log = server.home.own_log("broker.log")
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        verdicts = _verdicts(log)
        if verdicts:
            return verdicts[-1]
        time.sleep(0.5)
    raise AssertionError(f"{log} contains no check")


def _verdicts(log: Path) -> list[dict[str, Any]]:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [json.loads(line[line.index("{") :]) for line in lines if '"checkStatus"' in line]
