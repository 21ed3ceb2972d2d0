from collections.abc import Callable
from pathlib import Path

import pytest

from streaming.rocketmq import survey as survey_module
from streaming.rocketmq.place import Place
from streaming.rocketmq.survey import survey_of
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import backfill, place
from udfs.rocketmq.refusals import Code, refusals_of


def codes(root: Path) -> list[Code]:
    return [each.code for each in refusals_of(survey_of(place(root), is_running=False).facts)]


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
            [Code.BATCH_QUEUES],
            id="a topic of batch queues",
        ),
        pytest.param(
            lambda root: written(
                root,
                "config/topics.json",
                '{"dataVersion":{"counter":1},"topicConfigTable":{"C":{"attributes":{"cleanup.policy":"COMPACTION"}}}}',
            ),
            [Code.COMPACTION],
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
    small_store(tmp_path).write()
    backfill(tmp_path)
    assert codes(tmp_path) == [Code.ROCKSDB_THERE]
    written(tmp_path, "config/consumerOffsets/CURRENT", (tmp_path / "config/topics/CURRENT").read_text())
    assert codes(tmp_path) == [Code.ROCKSDB_THERE]


def test_looking_writes_nothing(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    survey_of(place(tmp_path), is_running=False)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_file_that_a_broker_deletes_meanwhile_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_store(tmp_path).write()

    def gone(_place: Place) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/x/00000000000000000000")

    monkeypatch.setattr(survey_module, "inventory_of", gone)
    (text,) = survey_of(place(tmp_path), is_running=True).facts.bad_bytes
    assert text.startswith("/x/00000000000000000000 was deleted")


def test_of_bytes_beside_a_running_broker_it_says_that_they_may_be_half_written(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    written(tmp_path, "config/topics.json", "{")
    (said,) = survey_of(place(tmp_path), is_running=True).facts.bad_bytes
    assert "look again" in said
    (said,) = survey_of(place(tmp_path), is_running=False).facts.bad_bytes
    assert "look again" not in said
