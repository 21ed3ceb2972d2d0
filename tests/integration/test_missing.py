"""Topics that miss ledgers on a real broker: `explain` names what the broker then does, before anyone loads the topic.

Each test removes the metadata of a ledger, as a wrong delete would, reads `explain`, and then uses the topic.
"""

import shlex
from collections.abc import Iterator

import pytest

from streaming.sandbox import cluster_faults, disk_usage, ledger_list, topics
from streaming.sandbox.parts import part_clients
from streaming.space.explain.outlook import SKIPS
from tests.integration.missing_world import FULL, PER_LEDGER, World, filled, running_world, topic_of
from udfs.formats.managed_ledger import parse_cursor
from udfs.formats.schema_locator import ledger_ids
from udfs.paths import managed_ledger_name, managed_ledger_path, schema_id_of, schema_path

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_world(tmp_path_factory.mktemp("missing"), tmp_path_factory.mktemp("service")) as running:
        yield running


def test_subscriptions_stop_at_a_missing_data_ledger_until_the_printed_command_moves_them(world: World) -> None:
    topic = filled(world, 'it\'s a "missing" ledger')
    lost, after = world.listed(topic)[1:3]
    length = ledger_list.every_ledger(world.cluster)[lost].length_bytes
    world.lose(lost)

    found = world.missing(topic)

    assert (found["ledger"], found["entries"], found["bytes"], found["last"]) == (lost, PER_LEDGER, length, False)
    assert found["after_ms"] < found["until_ms"]
    (slow,) = found["needed_by"]
    assert (slow["subscription"], slow["unread"], slow["later"]) == ("slow", PER_LEDGER, 2 * PER_LEDGER)
    assert found["broker"]["stops_reads"] is True
    assert found["broker"]["helps"] == {
        SKIPS: True,
        "managedLedgerForceRecovery": False,
        "schemaLedgerForceRecovery": False,
    }
    assert found["undo"]["possible"] is False
    assert world.received(topic, "slow") == list(range(PER_LEDGER))
    one = world.explain(str(lost), code=0)
    assert one["missing"]
    assert [each["subscription"] for each in one["needed"][0]["needed_by"]] == ["slow"]
    command = found["commands"][0]["command"]
    assert f"{after}:0" in command
    world.run_as_printed(command)
    assert world.received(topic, "slow") == list(range(2 * PER_LEDGER, 4 * PER_LEDGER))


def test_brokers_that_skip_continue_in_the_next_ledger(world: World) -> None:
    topic = filled(world, "skipped")
    lost = world.listed(topic)[1]
    world.lose(lost)
    assert world.missing(topic)["broker"]["stops_reads"] is True
    topics.admin(world.cluster, "POST", f"brokers/configuration/{SKIPS}/true")
    try:
        topics.wait_for(lambda: world.explain("--topic", topic)["broker_settings"][SKIPS] is True, "the setting")
        topics.unload(world.cluster, topic)
        assert world.missing(topic)["broker"]["stops_reads"] is False
        expected = [*range(PER_LEDGER), *range(2 * PER_LEDGER, 4 * PER_LEDGER)]
        assert world.received(topic, "slow") == expected
    finally:
        topics.admin(world.cluster, "DELETE", f"brokers/configuration/{SKIPS}")


def test_the_last_ledger_leaves_the_list_when_the_topic_is_loaded(world: World) -> None:
    topic = filled(world, "last")
    topics.publish(world.cluster, topic, 3)
    topics.unload(world.cluster, topic)
    lost = world.listed(topic)[-1]
    world.lose(lost)

    found = world.missing(topic)

    assert (found["ledger"], found["last"], found["entries"]) == (lost, True, None)
    assert found["broker"]["stops_reads"] is False
    assert world.received(topic, "slow") == list(range(FULL * PER_LEDGER))
    assert lost not in world.listed(topic)
    assert topics.publish(world.cluster, topic, 1) == 1


def test_a_broker_that_has_loaded_the_topic_writes_the_position_at_the_printed_unload(world: World) -> None:
    topic = topic_of("position")
    topics.fill(world.cluster, topic, 2, ["slow"])
    topics.consume(world.cluster, topic, "slow", PER_LEDGER + 3)
    world.lose(topics.cursor_ledgers(world.cluster, topic)["slow"])

    fields = world.explain("--topic", topic)

    (found,) = fields["missing"]
    assert (found["component"], found["subscription"], found["loaded"]) == ("MANAGED_CURSOR", "slow", True)
    (remedy,) = found["commands"]
    assert remedy["loses"] == "nothing"
    world.run_as_printed(remedy["command"])
    assert world.received(topic, "slow") == list(range(PER_LEDGER + 3, 2 * PER_LEDGER))
    assert world.explain("--topic", topic, code=0)["missing"] == []


def test_after_a_crash_the_subscription_falls_back_to_the_position_in_its_znode(world: World) -> None:
    topic = topic_of("crashed")
    topics.fill(world.cluster, topic, 2, ["slow", "holds"])  # the latter keeps what `slow` acknowledges
    topics.consume(world.cluster, topic, "slow", PER_LEDGER + 3)
    cluster_faults.kill_brokers(world.cluster)
    path = f"{managed_ledger_path(managed_ledger_name(topic))}/slow"
    cursor = parse_cursor(world.znode(path))
    world.lose(cursor.cursors_ledger_id)
    cluster_faults.restart_brokers(world.cluster)

    found = world.missing(topic)

    assert (found["ledger"], found["loaded"], found["commands"]) == (cursor.cursors_ledger_id, False, [])
    assert not any(found["broker"]["helps"].values())
    # the broker created the cursor's ledger at the first acknowledgement
    assert (cursor.mark_delete_ledger_id, cursor.mark_delete_entry_id) == (world.listed(topic)[0], -1)
    assert world.received(topic, "slow") == list(range(2 * PER_LEDGER))


def test_a_data_ledger_of_the_journal_comes_back_with_the_printed_undo(world: World) -> None:
    topic = filled(world, "restored")
    lost = world.listed(topic)[1]
    world.delete_journaled(topic, lost)

    found = world.missing(topic)

    assert (found["undo"]["possible"], found["undo"]["has_entries"]) == (True, True)
    assert world.explain(str(lost), code=0)["needed"][0]["undo"] == found["undo"]
    words = shlex.split(found["undo"]["command"])
    assert words == ["ledger-reaper", "undo", "--ledger", str(lost)]
    assert "PUT_BACK" in world.service.call(*words[1:])
    assert world.explain("--topic", topic, code=0)["missing"] == []
    assert world.received(topic, "slow") == list(range(FULL * PER_LEDGER))


def test_a_data_ledger_whose_entries_bookies_have_dropped_is_not_put_back(world: World) -> None:
    topic = filled(world, "collected")
    lost = world.listed(topic)[1]
    world.delete_journaled(topic, lost)
    disk_usage.collect_garbage(world.cluster)

    found = world.missing(topic)

    assert (found["undo"]["possible"], found["undo"]["has_entries"]) == (False, False)
    assert "1 TOO_LATE" in world.service.call("undo", "--ledger", str(lost), "--dry-run", code=1)
    assert "nothing was put back" in world.service.call("undo", "--ledger", str(lost), code=1)
    assert world.missing(topic)["ledger"] == lost


def test_a_request_for_a_version_deletes_a_schema_that_misses_any(world: World) -> None:
    topic = topic_of("schema")
    topics.post_schema_versions(world.cluster, topic, 2)
    assert topics.fill(world.cluster, topic, 1, ["slow"]) == PER_LEDGER
    path = schema_path(schema_id_of(topic))
    older, newest = sorted(ledger_ids(world.znode(path)))
    topics.unload(world.cluster, topic)
    world.lose(older)

    found = world.missing(topic)

    assert (found["ledger"], found["component"], found["last"]) == (older, "SCHEMA_STORAGE", False)
    assert not any(found["broker"]["helps"].values())
    assert world.received(topic, "slow") == list(range(PER_LEDGER))
    assert sorted(ledger_ids(world.znode(path))) == [older, newest]
    name = schema_id_of(topic)
    reply = part_clients.http_any("GET", world.cluster.serving.admin, f"admin/v2/schemas/{name}/schema/1")
    assert reply.status == 404
    assert not part_clients.znode_exists(world.cluster.addresses.zookeeper, path)
