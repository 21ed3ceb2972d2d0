"""The folders of a broker's store, and of our own files beside them."""

from dataclasses import dataclass
from pathlib import Path

from streaming.errors import ConfigError
from udfs.rocketmq.broker_conf import BrokerConf, broker_conf, read_properties
from udfs.rocketmq.dispatch import DEFAULT_DELAYS, delays_of

OWN = "ledger-reaper"
BARRIER = "LEDGER_REAPER_ROLLBACK_HAS_NOT_ENDED"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePaths:
    """A store."""

    store: Path
    commitlog: Path
    consumequeue: Path
    rocksdb: Path  # where the broker looks for the consume queues' database
    conf: BrokerConf
    is_named: bool = False  # the broker's configuration names this folder as its store, so its parts may be elsewhere

    @property
    def config(self) -> Path:
        """Folder of the JSON files and of the three databases."""
        return self.store / "config"

    @property
    def own(self) -> Path:
        """Our folder."""
        # beside the consume queues, so that renames can move files between them
        return self.consumequeue.parent / OWN

    @property
    def staging(self) -> Path:
        """Our folder of files that are not moved in yet."""
        return self.own / "staging"

    @property
    def follow(self) -> Path:
        """Our folder of `follow`."""
        return self.own / "follow"

    @property
    def follow_queues(self) -> Path:
        """The consume queues' database that `follow` creates."""
        return self.follow / "consumequeue"

    @property
    def barrier(self) -> Path:
        """A queue that no broker can load, during a rollback (streaming/rocketmq/rollback/barrier.py)."""
        return self.consumequeue / BARRIER

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """Delays of the levels 1, 2, …"""
        return delays_of(self.conf.delay_levels or DEFAULT_DELAYS)


def store_paths(store: Path | None, conf_file: Path | None, *, lmq: bool | None = None) -> StorePaths:
    """Find the folders of a store by its root, by its broker's configuration or by both.

    Raises ConfigError if neither names a store, or if there is no store.
    """
    conf = _conf_of(conf_file)
    if lmq is not None:
        conf = conf._replace(is_lmq=lmq)
    root = _root_of(store, conf)
    is_named = bool(conf.store) and root.resolve() == Path(conf.store).resolve()
    commitlog, queues = _commitlog_of(root, conf, is_named=is_named), root / "consumequeue"
    for folder in (commitlog, root / "config"):
        if not folder.is_dir():
            raise ConfigError(f"{root} is no store of a RocketMQ broker: there is no folder {folder}")
    own = root / "consumequeue_rocksdb"
    if conf_file is None and (own / "CURRENT").exists():
        raise ConfigError(
            f"{own} is a RocksDB, as of a broker with useSeparateStorePathForRocksdbCQ=true: name its configuration "
            "with --broker-conf, which shows whether that database counts"
        )
    rocksdb = own if conf.has_own_rocksdb_folder else queues
    return StorePaths(
        store=root, commitlog=commitlog, consumequeue=queues, rocksdb=rocksdb, conf=conf, is_named=is_named
    )


def _root_of(store: Path | None, conf: BrokerConf) -> Path:
    root = store or (Path(conf.store) if conf.store else None)
    if root is None:
        raise ConfigError("no store was given: name it with --store, or the broker's configuration with --broker-conf")
    root = root.absolute()
    if not root.is_dir():
        raise ConfigError(f"there is no folder {root}")
    if "," in conf.commitlog:
        raise ConfigError(
            f"storePathCommitLog names several folders, which this program does not read: {conf.commitlog}"
        )
    if conf.is_dledger:
        raise ConfigError("enableDLegerCommitLog=true: such a broker's log has another form, and no RocksDB mode")
    return root


def _commitlog_of(root: Path, conf: BrokerConf, *, is_named: bool) -> Path:
    """Find the commitlog."""
    # a configuration that names another store does not describe this copy of it
    if not conf.commitlog or (conf.store and not is_named):
        return root / "commitlog"
    folder = Path(conf.commitlog)
    if not is_named and not folder.resolve().is_relative_to(root.resolve()):
        raise ConfigError(
            f"the configuration names {folder}, which is outside of {root}, and no storePathRootDir: it is unknown "
            f"whether that belongs to the same broker. Add storePathRootDir={root} if it does, or that broker's own "
            "storePathRootDir if this store is a copy"
        )
    return folder


def _conf_of(conf_file: Path | None) -> BrokerConf:
    if conf_file is None:
        return BrokerConf()
    try:
        conf = broker_conf(read_properties(conf_file.read_text(encoding="utf-8")))
        delays_of(conf.delay_levels)
    except OSError as error:
        raise ConfigError(
            f"the broker's configuration can't be read: {conf_file}: {error.strerror}: name its file with --broker-conf"
        ) from error
    except ValueError as error:
        raise ConfigError(f"the broker's configuration {conf_file} can't be read: {error}") from error
    return conf
