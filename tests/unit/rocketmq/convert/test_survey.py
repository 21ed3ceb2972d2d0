import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming.rocketmq.convert import survey as survey_module
from streaming.rocketmq.convert.survey import survey_of
from streaming.rocketmq.store.store_paths import StorePaths, store_paths
from tests.rocketmq_store import Message, Store, small_store
from tests.unit.rocketmq.converted import converted_store, paths
from udfs.rocketmq.refusals import Code, refusals_of


def codes(root: Path) -> list[Code]:
    return [each.code for each in refusals_of(survey_of(paths(root), is_running=False).facts)]


def written(root: Path, name: str, text: str = "x") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda _root: None, [], id="a healthy store"),
        pytest.param(lambda root: written(root, "abort", ""), [Code.ABORT], id="abort"),
        pytest.param(lambda root: written(root, "abort.bak", ""), [], id="abort.bak is normal"),
        pytest.param(lambda root: written(root, "batchconsumequeue/T/0/0"), [Code.BATCH_QUEUES], id="batch queues"),
        pytest.param(lambda root: written(root, "batchconsumequeue/T/0/0", ""), [], id="batch queues without data"),
        pytest.param(lambda root: written(root, "consumequeue_ext/T/0/0"), [Code.EXT_QUEUES], id="extensions"),
        pytest.param(lambda root: written(root, "compaction/compactionCq/T/0/0"), [Code.COMPACTION], id="compaction"),
        pytest.param(lambda root: written(root, "compaction/position-checkpoint"), [], id="no compacted topic"),
        pytest.param(lambda root: written(root, "config/rdb/CURRENT"), [Code.CONFIG_V2], id="another database"),
        pytest.param(lambda root: written(root, "consumequeue/CURRENT"), [Code.ROCKSDB_THERE], id="RocksDB is there"),
        pytest.param(lambda root: written(root, "config/consumerOffset.json"), [Code.TWO_OFFSET_FILES], id="two files"),
        pytest.param(lambda root: written(root, "config/topics.json", " "), [Code.NO_TOPICS], id="no topics"),
        pytest.param(lambda root: written(root, "config/topics.json", "{"), [Code.BAD_BYTES], id="bad JSON"),
        pytest.param(
            lambda root: written(root, "commitlog/00000000000000000000"), [Code.BAD_BYTES], id="a file of another size"
        ),
        pytest.param(
            lambda root: written(
                root,
                "config/topics.json",
                '{"dataVersion":{"counter":1},"topicConfigTable":{"B":{"attributes":{"queue.type":"BatchCQ"}}}}',
            ),
            [Code.BATCH_QUEUES, Code.UNKNOWN_TOPICS],
            id="a topic of batch queues",
        ),
        pytest.param(
            lambda root: (root / "config" / "topics.json").write_text(
                (root / "config" / "topics.json")
                .read_text()
                .replace('"topicConfigTable":{', '"topicConfigTable":{"' + 300 * "n" + '":{},')
            ),
            [Code.LONG_TOPIC],
            id="a long name in topics.json, of which no folder can be",
        ),
        pytest.param(
            lambda root: written(
                root,
                "config/lmqConsumerOffset.json",
                '{"dataVersion":{"counter":1},"offsetTable":{"Big@g1":{0:99999999999999999999999}}}',
            ),
            [Code.BAD_BYTES],
            id="an offset that no Java long holds",
        ),
        pytest.param(
            lambda root: written(
                root,
                "config/topics.json",
                '{"dataVersion":{"counter":1},"topicConfigTable":{"C":{"attributes":{"cleanup.policy":"COMPACTION"}}}}',
            ),
            [Code.COMPACTION, Code.UNKNOWN_TOPICS],
            id="a compacted topic",
        ),
    ],
)
def test_what_speaks_against_a_store_is_seen(
    tmp_path: Path, change: Callable[[Path], None], expected: list[Code]
) -> None:
    small_store(tmp_path).write()
    change(tmp_path)
    assert codes(tmp_path) == expected


def test_databases_of_ours_that_no_broker_has_opened_do_not_count(tmp_path: Path) -> None:
    converted_store(tmp_path)
    assert codes(tmp_path) == [Code.ROCKSDB_THERE]
    written(tmp_path, "config/consumerOffsets/CURRENT", (tmp_path / "config/topics/CURRENT").read_text())
    assert codes(tmp_path) == [Code.ROCKSDB_THERE, Code.DATABASES_THERE]  # that of any new database says the same


def test_looking_writes_nothing(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    survey_of(paths(tmp_path), is_running=False)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_file_that_a_broker_deletes_during_the_survey_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_store(tmp_path).write()

    def gone(_paths: StorePaths) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/x/00000000000000000000")

    monkeypatch.setattr(survey_module, "inventory_of", gone)
    (text,) = survey_of(paths(tmp_path), is_running=True).facts.bad_bytes
    assert text.startswith("/x/00000000000000000000 was deleted")


def test_a_folder_instead_of_a_file_is_reported(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "config" / "topics.json").unlink()
    (tmp_path / "config" / "topics.json").mkdir()
    (text,) = survey_of(paths(tmp_path), is_running=False).facts.bad_bytes
    assert text.endswith("config/topics.json: Is a directory")


def test_bad_bytes_beside_a_running_broker_may_be_half_written(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    written(tmp_path, "config/topics.json", "{")
    (said,) = survey_of(paths(tmp_path), is_running=True).facts.bad_bytes
    assert "try again" in said
    (said,) = survey_of(paths(tmp_path), is_running=False).facts.bad_bytes
    assert "try again" not in said


def test_a_broker_that_keeps_topics_groups_and_offsets_in_one_database_is_refused(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    conf = tmp_path / "broker.conf"
    conf.write_text(SIZES.format(2048, 160) + "useSingleRocksDBForAllConfigs=true\n")
    facts = survey_of(store_paths(tmp_path, conf), is_running=False).facts
    assert [each.code for each in refusals_of(facts)] == [Code.CONFIG_V2]


SIZES = "mappedFileSizeCommitLog={}\nmappedFileSizeConsumeQueue={}\n"


@pytest.mark.parametrize(
    ("log_bytes", "queue_bytes", "said"),
    [
        pytest.param(2048, 160, "", id="as they are"),
        pytest.param(2048, 150, "", id="a broker rounds up to units"),
        pytest.param(4096, 160, "has 2048 bytes, and mappedFileSizeCommitLog is 4096", id="log"),
        pytest.param("", 160, "has 2048 bytes, and mappedFileSizeCommitLog is 1073741824", id="log, by default"),
        pytest.param(2048, 200, "has room for 8 units, and mappedFileSizeConsumeQueue for 10", id="queue"),
        pytest.param(
            2048, "", "has room for 8 units, and mappedFileSizeConsumeQueue for 300000", id="queue, by default"
        ),
    ],
)
def test_files_have_the_configured_size(tmp_path: Path, log_bytes: object, queue_bytes: object, said: str) -> None:
    small_store(tmp_path).write()
    conf = tmp_path / "broker.conf"
    conf.write_text(SIZES.format(log_bytes, queue_bytes))
    found = survey_of(store_paths(tmp_path, conf), is_running=False).facts.wrong_size
    assert found.endswith(said)
    assert bool(found) == bool(said)


def test_without_a_configuration_all_queue_files_have_one_size(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(Message("A"))
    store.put(Message("B"))
    store.write()
    with (tmp_path / "consumequeue" / "B" / "0" / ("0" * 20)).open("ab") as file:
        file.write(bytes(20))
    assert codes(tmp_path) == [Code.WRONG_SIZE]


def test_topics_that_only_the_queues_have_are_seen_and_those_that_a_broker_keeps_are_not(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.put(Message("RMQ_SYS_TRANS_HALF_TOPIC"))
    store.write()
    shutil.copytree(tmp_path / "consumequeue" / "Orders", tmp_path / "consumequeue" / "Orders2")
    assert survey_of(paths(tmp_path), is_running=False).facts.unknown_topics == (b"Orders2",)
    written(tmp_path, "config/topics.json", '{"dataVersion":{"counter":1},"topicConfigTable":{"Orders2":{}}}')
    facts = survey_of(paths(tmp_path), is_running=False).facts
    assert facts.unknown_topics == (b"Orders", b"Sources")


@pytest.mark.parametrize("is_lmq", [True, False])
def test_offsets_that_only_the_file_has_that_the_broker_does_not_read_are_seen(tmp_path: Path, is_lmq: bool) -> None:
    small_store(tmp_path, is_lmq=is_lmq).write()
    assert survey_of(paths(tmp_path, lmq=is_lmq), is_running=False).facts.unread_offsets == ""
    text = survey_of(paths(tmp_path, lmq=not is_lmq), is_running=False).facts.unread_offsets
    assert ("lmqConsumerOffset.json has 3" if is_lmq else "consumerOffset.json has 2") in text
    assert "Orders@readers" in text
    other = "consumerOffset.json" if is_lmq else "lmqConsumerOffset.json"
    written(tmp_path, f"config/{other}", '{"dataVersion":{"counter":1},"offsetTable":{}}')
    assert survey_of(paths(tmp_path, lmq=not is_lmq), is_running=False).facts.unread_offsets == ""
