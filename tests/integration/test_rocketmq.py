"""A real RocketMQ goes from files to RocksDB and back on stores that `ledger-reaper rocketmq` alone has converted."""

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

from streaming.sandbox import process
from streaming.sandbox.home import HOST
from streaming.sandbox.rocketmq.broker_home import Home, Part, StoreMode
from streaming.sandbox.rocketmq.server import RocketMQ, down, up
from tests.integration import rocket_load as load
from tests.integration.rocket_client import Queue, RocketClient, Taken
from tests.integration.rocket_compare import SECONDS, content_once, delayed_come_once, differences
from udfs.rocketmq.json_text import has_lines, parse, pretty

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@dataclass
class World:
    """A RocketMQ, its client, and what was told before the store was last converted."""

    server: RocketMQ
    client: RocketClient
    told: load.Told
    files: dict[str, tuple[str, str]] = field(default_factory=dict)  # as the broker wrote them, and as exported

    def run(self, *arguments: str, code: int = 0) -> str:
        """`ledger-reaper rocketmq ARGUMENTS` over the store; returns what it prints."""
        return ledger_reaper("rocketmq", *arguments, "--store", str(self.server.store), code=code)

    def stop(self) -> None:
        """Stop the broker, and forget its clients."""
        self.client.close()
        self.server.stop_broker()

    def is_sound(self) -> None:
        """The stopped store passes our own check."""
        *_, summary = map(json.loads, self.run("check", "--json").splitlines())
        assert summary["ok"], summary


def ledger_reaper(*arguments: str, code: int = 0) -> str:
    """Run a command; returns what it prints. Fails unless it ends with `code`."""
    command = [sys.executable, "-m", "streaming", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == code, f"{' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module", params=["5.3.3", "5.5.0"], ids=lambda version: f"v{version}")
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A store that a file broker has filled, at rest."""
    root = tmp_path_factory.mktemp("rocketmq")
    server = RocketMQ(Home(root))
    try:
        up(root, request.param, mode=StoreMode.FILE, broker_settings=load.BROKER_SETTINGS)
        with RocketClient(server) as client:
            world = World(server, client, load.fill(server, client))
            world.stop()
            load.expire_oldest_file(server, world.told)
            yield world
    finally:
        down(root)
        assert not [part for part in Part if server.runs(part)]


@pytest.fixture(scope="module")
def upgraded(loaded: World) -> World:
    """The same store, converted and checked by our commands alone, and served from RocksDB."""
    loaded.run("backfill", "--yes")
    loaded.is_sound()
    out = loaded.server.home.root / "exported"
    loaded.run("export", "--out", str(out))
    for path in sorted(out.iterdir()):
        loaded.files[path.name] = ((loaded.server.store / "config" / path.name).read_text(), path.read_text())
    loaded.server.start_broker(StoreMode.ROCKSDB)
    return loaded


def test_what_is_exported_is_what_the_broker_wrote_and_as_it_writes(upgraded: World) -> None:
    assert len(upgraded.files) == 3
    for name, (theirs, ours) in upgraded.files.items():
        told, said = parse(theirs), parse(ours)
        assert said.pop("dataVersion")["counter"] == told.pop("dataVersion")["counter"] + 1
        told.pop("pullOffsetTable", None)  # of 5.5.0: what only its statistics read, and no RocksDB has
        for table in (said, told):  # each list is a set of the broker's, in any order
            table["groupTopicMap"] = {group: sorted(each) for group, each in table.get("groupTopicMap", {}).items()}
        assert said == told, name
        assert pretty(parse(theirs), in_lines=has_lines(theirs)) == theirs, name
        assert has_lines(ours) == has_lines(theirs), name


def test_the_sandbox_tells_where_it_is_and_starts_no_second_broker(upgraded: World) -> None:
    server = upgraded.server
    version, home = server.spec.version, str(server.home.root)

    facts = json.loads(ledger_reaper("sandbox", "up", "--rocketmq", version, "--home", home, "--json"))
    ledger_reaper("sandbox", "up", "--rocketmq", version, "--store", "file", "--home", home, code=2)
    ledger_reaper("sandbox", "up", "--home", home, code=2)

    assert facts == json.loads(ledger_reaper("sandbox", "status", "--home", home, "--json"))
    assert (facts["running"], facts["mode"], facts["store"]) == (True, "rocksdb", str(server.store))
    assert facts["name_server"] == server.spec.name_server


def test_nobody_else_reaches_the_broker(upgraded: World) -> None:
    holder = process.find(upgraded.server.home.network)
    if upgraded.server.spec.address == HOST:
        pytest.skip("this machine lets us make no network namespace")

    assert holder is not None
    spaces = {Path(f"/proc/{pid}/ns/net").readlink() for pid in (holder.pid, _pid(upgraded.server, Part.BROKER))}
    assert len(spaces) == 1
    assert spaces != {Path("/proc/self/ns/net").readlink()}


def _pid(server: RocketMQ, part: Part) -> int:
    found = process.find(server.home.record(part))
    assert found is not None
    return found.pid


def test_every_old_message_is_read_by_its_offset(upgraded: World) -> None:
    found = upgraded.client.dump(load.QUIET)

    assert differences(upgraded.told.content, found) == []


def test_times_lead_to_the_offsets_that_the_file_broker_told(upgraded: World) -> None:
    queues = [queue for queue in load.QUIET if queue in upgraded.told.times]

    assert upgraded.client.times(queues, upgraded.told.stamps) == upgraded.told.times


def test_every_group_stands_where_it_stood(upgraded: World) -> None:
    found = {group: upgraded.client.offsets(group, queues) for group, queues in load.GROUPS.items()}

    assert found == upgraded.told.offsets


@pytest.mark.parametrize("group", ["orders-a", "orders-b"])
def test_a_group_goes_on_exactly_where_it_stopped(upgraded: World, group: str) -> None:
    already = {each.read.name for each in upgraded.told.taken[group]}

    taken = upgraded.client.take(group, load.ORDERS)

    names = [each.read.name for each in taken]
    everything = {f"orders-{number}" for number in range(240)}
    assert Counter(names) == Counter(everything - already)
    left = upgraded.told.content  # on a busy machine a group may have taken all of a queue before
    assert _first_offsets(taken) == {
        queue: offset for queue, offset in upgraded.told.offsets[group].items() if offset < left[queue].end
    }


def test_a_filter_by_tag_finds_what_follows_the_groups_offset(upgraded: World) -> None:
    wanted = {
        message.name
        for queue in load.TAGGED
        for message in upgraded.told.content[queue].messages
        if message.offset >= upgraded.told.offsets["filtered"][queue] and message.tag in ("red", "緑")
    }

    taken = upgraded.client.push("filtered", "Tagged", len(wanted), tags="red || 緑", seconds=240)

    assert Counter(each.read.name for each in taken) == Counter(wanted)


def test_a_message_that_was_put_off_comes_again_and_once(upgraded: World) -> None:
    put_off, (queue,) = {f"fail-{number}" for number in range(3)}, load.RETRIED
    stood = upgraded.told.offsets["retrying"][queue]  # on a busy machine a group may not have committed all by then
    left = [each.name for each in upgraded.told.content[queue].messages if each.offset >= stood]

    taken = upgraded.client.push("retrying", "Retried", len(put_off) + len(left), seconds=240)

    assert Counter(each.read.name for each in taken) == Counter([*put_off, *left])
    assert {each.read.name for each in taken if each.read.deliveries > 0} == put_off


def test_delayed_messages_arrive_once_and_not_before_their_time(upgraded: World) -> None:
    delayed_come_once(upgraded.client, upgraded.told)


def test_open_transactions_end_as_the_producer_says(upgraded: World) -> None:
    committed = {f"tx-unknown-{number}" for number in range(3)}
    rolled_back = {f"tx-unknown-{number}" for number in range(3, 6)}
    wanted = Counter(committed | {f"tx-commit-{number}" for number in range(4)})

    upgraded.client.resolve(dict.fromkeys(committed, "commit") | dict.fromkeys(rolled_back, "rollback"))
    (content,) = content_once(upgraded.client, load.SETTLED, lambda found: len(found.messages) >= wanted.total())

    assert Counter(message.name for message in content.messages) == wanted


def test_new_messages_follow_the_old_ones_in_every_queue(upgraded: World) -> None:
    for queue in [*load.OLD, *load.FILLER, *load.BATCHES, *load.EMPTY]:
        end = upgraded.told.content[queue].end

        sent = upgraded.client.send(queue[0], f"new-{queue[1]}", 5, queue=queue[1])

        assert sorted(offset for _, offset in sent.values()) == list(range(end, end + 5)), queue


def test_a_group_whose_messages_were_all_gone_gets_the_new_ones(upgraded: World) -> None:
    upgraded.client.send("Old", "late", 4, queues=2)

    taken = upgraded.client.take("old", load.OLD)

    names = [each.read.name for each in taken]
    assert {f"late-{number}" for number in range(4)} <= set(names)
    assert len(names) == len(set(names))
    assert _first_offsets(taken) == upgraded.told.offsets["old"]


def test_new_messages_reach_the_light_queues(upgraded: World) -> None:
    upgraded.client.send("Sources", "light", 3, lmq=",".join(name for name, _ in load.LMQ))

    for queue, content in upgraded.client.dump(load.LMQ).items():
        end = upgraded.told.content[queue].end
        assert [(each.offset, each.name) for each in content.messages[-3:]] == [
            (end + number, f"light-{number}") for number in range(3)
        ]


@pytest.fixture(scope="module")
def rolled_back(upgraded: World) -> World:
    """The store in files again, after a while in RocksDB in which topics, messages and offsets were added."""
    client = upgraded.client
    client.topic("Later", 2)
    client.send("Later", "later", 24, queues=2)
    client.take("laters", _LATER, each=3)
    client.commit(load.LMQ_GROUP, load.LMQ[0], 9)
    upgraded.told = _told(client)
    upgraded.stop()
    upgraded.is_sound()
    upgraded.run("rollback", "--yes")
    upgraded.server.start_broker(StoreMode.FILE)
    return upgraded


_LATER: list[Queue] = [("Later", 0), ("Later", 1)]
_GROUPS = {**load.GROUPS, "laters": _LATER}
_ALL = [*load.QUIET, *load.DELAYED, *load.SETTLED, *_LATER]


def test_after_the_rollback_everything_is_read_from_files(rolled_back: World) -> None:
    assert differences(rolled_back.told.content, rolled_back.client.dump(_ALL)) == []


def test_after_the_rollback_every_group_stands_where_it_stood_in_rocksdb(rolled_back: World) -> None:
    found = {group: rolled_back.client.offsets(group, queues) for group, queues in _GROUPS.items()}

    assert found == rolled_back.told.offsets


def test_after_the_rollback_a_group_goes_on(rolled_back: World) -> None:
    rolled_back.client.send("Later", "last", 4, queues=2)

    taken = rolled_back.client.take("laters", _LATER)

    names = [each.read.name for each in taken]
    committed = rolled_back.told.offsets["laters"]
    assert len(names) == len(set(names)) == 24 + 4 - sum(committed.values())
    assert _first_offsets(taken) == rolled_back.told.offsets["laters"]


@pytest.fixture(scope="module")
def both(rolled_back: World) -> World:
    """The store converted once more, and a broker that writes both kinds of queues beside that (stage 2)."""
    rolled_back.told = _told(rolled_back.client)
    rolled_back.stop()
    rolled_back.run("backfill", "--yes")
    rolled_back.is_sound()
    rolled_back.server.start_broker(StoreMode.BOTH)
    return rolled_back


def test_the_brokers_own_check_finds_both_kinds_of_queues_alike(both: World) -> None:
    for queues in (load.ORDERS, load.EMPTY, _LATER):
        both.client.send(queues[0][0], "stage-two", 40, queues=len(queues))

    both.client.check()

    verdict = _verdict(both.server)
    assert verdict["checkStatus"] == 0, verdict


@pytest.fixture(scope="module")
def after_both(both: World) -> World:
    """The store at rest after stage 2, in which a group went on: what RocksDB has of its offsets is old by now."""
    both.client.take("laters", _LATER)
    both.told = _told(both.client)
    both.stop()
    return both


def test_our_check_finds_the_queues_of_both_kinds_whole_and_the_offsets_old(after_both: World) -> None:
    *findings, summary = map(json.loads, after_both.run("check", "--json", code=4).splitlines())

    assert findings == []
    assert not summary["ok"]
    assert ["consumerOffsets" in each["text"] for each in summary["others"]] == [True], summary


def test_stage_three_serves_the_offsets_of_stage_two_once_they_are_converted(after_both: World) -> None:
    after_both.run("backfill", "--replace", "--yes")
    after_both.is_sound()
    after_both.server.start_broker(StoreMode.ROCKSDB)

    found = {group: after_both.client.offsets(group, queues) for group, queues in _GROUPS.items()}

    assert found == after_both.told.offsets
    assert differences(after_both.told.content, after_both.client.dump(_ALL)) == []


def _told(client: RocketClient) -> load.Told:
    """What the broker says now."""
    offsets = {group: client.offsets(group, queues) for group, queues in _GROUPS.items()}
    return load.Told(client.dump(_ALL), [], {}, offsets, 0)


def _first_offsets(taken: Iterable[Taken]) -> dict[Queue, int]:
    first: dict[Queue, int] = {}
    for each in taken:
        first[each.queue] = min(first.get(each.queue, each.read.offset), each.read.offset)
    return dict(sorted(first.items()))


def _verdict(server: RocketMQ) -> dict[str, Any]:
    """What the broker's own check wrote to its log."""
    log = server.home.own_log("broker.log")
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        found = _verdicts(log)
        if found:
            return found[-1]
        time.sleep(0.5)
    raise AssertionError(f"{log} tells of no check")


def _verdicts(log: Path) -> list[dict[str, Any]]:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [json.loads(line[line.index("{") :]) for line in lines if '"checkStatus"' in line]
