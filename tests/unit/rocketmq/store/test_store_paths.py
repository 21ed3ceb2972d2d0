from pathlib import Path

import pytest

from streaming.errors import ConfigError
from streaming.rocketmq.store.store_paths import store_paths
from tests.rocketmq_store import small_store


def test_a_store_is_found_by_its_folder(tmp_path: Path) -> None:
    small_store(tmp_path / "s").write()
    paths = store_paths(tmp_path / "s", None)
    assert paths.rocksdb == paths.consumequeue == tmp_path / "s" / "consumequeue"
    assert paths.own == tmp_path / "s" / "ledger-reaper"


def test_a_store_is_found_by_its_brokers_configuration(tmp_path: Path) -> None:
    small_store(tmp_path / "s").write()
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={tmp_path}/s\nenableLmq=true\nuseSeparateStorePathForRocksdbCQ=true\n")
    paths = store_paths(None, conf)
    assert paths.store == tmp_path / "s"
    assert paths.rocksdb == tmp_path / "s" / "consumequeue_rocksdb"
    assert paths.conf.is_lmq


def test_queues_are_where_the_broker_has_them_whatever_its_configuration_names(tmp_path: Path) -> None:
    """Samples of configurations name storePathConsumeQueue, and no broker reads it."""
    small_store(tmp_path / "s").write()
    small_store(tmp_path / "old").write()
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={tmp_path}/s\nstorePathConsumeQueue={tmp_path}/old/consumequeue\n")
    for paths in (store_paths(None, conf), store_paths(tmp_path / "s", conf)):
        assert paths.consumequeue == paths.rocksdb == tmp_path / "s" / "consumequeue"


def test_a_copys_paths_are_its_own_and_not_those_of_the_configuration(tmp_path: Path) -> None:
    """Whoever tries it with a copy first must not touch the store that the configuration names."""
    small_store(tmp_path / "s").write()
    small_store(tmp_path / "copy").write()
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={tmp_path}/s\nstorePathCommitLog={tmp_path}/s/commitlog\n")
    paths = store_paths(tmp_path / "copy", conf)
    assert {paths.commitlog.parent, paths.consumequeue.parent, paths.config.parent} == {tmp_path / "copy"}


@pytest.mark.parametrize("sign", [" : ", "  "])
def test_a_copy_is_known_by_whatever_sign_java_knows(tmp_path: Path, sign: str) -> None:
    small_store(tmp_path / "s").write()
    small_store(tmp_path / "copy").write()
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir{sign}{tmp_path}/s\nstorePathCommitLog={tmp_path}/s/commitlog\n")
    assert store_paths(tmp_path / "copy", conf).commitlog == tmp_path / "copy" / "commitlog"


def test_a_path_elsewhere_needs_the_store_that_it_belongs_to(tmp_path: Path) -> None:
    """Where storePathRootDir is left at its default, nothing says that this is a copy."""
    small_store(tmp_path / "s").write()
    small_store(tmp_path / "copy").write()
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathCommitLog={tmp_path}/s/commitlog\n")
    with pytest.raises(ConfigError, match="storePathRootDir"):
        store_paths(tmp_path / "copy", conf)
    assert store_paths(tmp_path / "s", conf).commitlog == tmp_path / "s" / "commitlog"


def test_a_database_in_a_folder_of_its_own_is_not_overlooked(tmp_path: Path) -> None:
    small_store(tmp_path / "s").write()
    (tmp_path / "s" / "consumequeue_rocksdb").mkdir()
    (tmp_path / "s" / "consumequeue_rocksdb" / "CURRENT").write_text("MANIFEST-000004\n")
    with pytest.raises(ConfigError, match="useSeparateStorePathForRocksdbCQ"):
        store_paths(tmp_path / "s", None)
    conf = tmp_path / "broker.conf"
    conf.write_text("listenPort=10911\n")
    assert store_paths(tmp_path / "s", conf).rocksdb == tmp_path / "s" / "consumequeue"


def test_a_store_that_a_link_leads_to_is_no_copy(tmp_path: Path) -> None:
    small_store(tmp_path / "s").write()
    (tmp_path / "s" / "commitlog").rename(tmp_path / "log")
    (tmp_path / "s" / "commitlog").mkdir()  # left behind, when the log was moved to another disk
    (tmp_path / "link").symlink_to(tmp_path / "s")
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={tmp_path}/s\nstorePathCommitLog={tmp_path}/log\n")
    assert store_paths(tmp_path / "link", conf).commitlog == tmp_path / "log"


def test_lmq_of_the_command_line_wins(tmp_path: Path) -> None:
    small_store(tmp_path / "s").write()
    assert store_paths(tmp_path / "s", None, lmq=True).conf.is_lmq is True


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no store was given"), ("storePathRootDir=/nowhere", "no folder"), ("storePathRootDir={tmp}", "no store of")],
)
def test_a_folder_that_is_no_store_is_refused(tmp_path: Path, text: str, said: str) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(text.format(tmp=tmp_path))
    with pytest.raises(ConfigError, match=said):
        store_paths(None, conf)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("storePathCommitLog=/a,/b", "several folders"),
        ("enableDLegerCommitLog=true", "enableDLegerCommitLog"),
        ("messageDelayLevel=1s 5x", "messageDelayLevel"),
        ("messageDelayLevel=1s s", "messageDelayLevel"),
    ],
)
def test_unsupported_settings_are_reported(tmp_path: Path, line: str, said: str) -> None:
    small_store(tmp_path / "s").write()
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={tmp_path}/s\n{line}\n")
    with pytest.raises(ConfigError, match=said):
        store_paths(None, conf)


def test_an_unreadable_configuration_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        store_paths(None, tmp_path / "none.conf")


def test_a_missing_configuration_is_reported(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    with pytest.raises(ConfigError, match=r"none\.conf: No such file or directory: name its file with --broker-conf$"):
        store_paths(tmp_path, tmp_path / "none.conf")
