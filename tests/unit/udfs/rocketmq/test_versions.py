import pytest

from udfs.rocketmq.versions import stages_of, version_of, warnings_of


@pytest.mark.parametrize(
    ("text", "version"), [("5.3.3", (5, 3, 3)), ("v5.5.0-SNAPSHOT", (5, 5, 0)), ("five", None), ("", None)]
)
def test_versions_are_read(text: str, version: tuple[int, int, int] | None) -> None:
    assert version_of(text) == version


def test_the_last_stage_is_rocksdb_alone() -> None:
    assert [each.settings for each in stages_of((5, 3, 3))] == [
        {"storeType": "default"},
        {"storeType": "default", "rocksdbCQDoubleWriteEnable": "true"},
        {"storeType": "defaultRocksDB"},
    ]


def test_the_first_version_takes_the_json_only_with_its_option() -> None:
    assert stages_of((5, 3, 1))[2].settings["transferOffsetJsonToRocksdb"] == "true"


@pytest.mark.parametrize("version", [(5, 5, 0), (5, 5, 1)])
def test_5_5_needs_one_more_switch_to_write_both(version: tuple[int, int, int]) -> None:
    assert stages_of(version)[1].settings["combineCQUseRocksdbForLmq"] == "true"
    assert "combineCQUseRocksdbForLmq" in warnings_of(version)[0]


@pytest.mark.parametrize(
    ("version", "said"),
    [(None, "--broker-version"), ((5, 3, 0), "has no RocksDB"), ((5, 3, 3), "killed"), ((5, 6, 0), "was not tried")],
)
def test_an_operator_is_warned(version: tuple[int, int, int] | None, said: str) -> None:
    assert said in warnings_of(version)[0]


def test_5_4_0_has_no_trap() -> None:
    assert warnings_of((5, 4, 0)) == []
