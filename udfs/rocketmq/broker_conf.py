"""A broker's configuration file, a Java properties file, as far as it says where the store is and what is in it."""

from collections.abc import Mapping
from typing import NamedTuple

# diskSpaceCleanForciblyRatio (MessageStoreConfig.java): on a disk that is used to more than that, a broker deletes
# messages before their time. It takes no more than the default, and no less than 30.
CLEAN_FORCIBLY_PERCENT = 85
_LEAST_PERCENT = 30
# mappedFileSizeCommitLog and mappedFileSizeConsumeQueue; a broker does not start with files of another size
_LOG_FILE_BYTES = 1 << 30
_QUEUE_FILE_UNITS = 300_000
_UNIT_BYTES = 20


class BrokerConf(NamedTuple):
    """What a broker's configuration says; None and "" where it says nothing, and then the broker's default holds."""

    store: str = ""
    commitlog: str = ""
    consumequeue: str = ""
    is_lmq: bool | None = None
    is_multi_dispatch: bool | None = None
    has_own_rocksdb_folder: bool = False
    config_manager: str = ""
    store_type: str = ""
    delay_levels: str = ""
    clean_forcibly_percent: int = CLEAN_FORCIBLY_PERCENT
    queue_file_units: int = 0  # units in a file of a queue; 0 where no configuration was read
    log_file_bytes: int = 0  # bytes of a file of the commitlog; the same


def read_properties(text: str) -> dict[str, str]:
    """Read `name=value` lines; of a name that stands twice, the later line wins, as in Java."""
    found = {}
    for line in text.splitlines():
        bare = line.strip()
        if not bare or bare[0] in "#!":
            continue
        name, _, value = bare.partition("=")
        found[name.strip()] = value.strip()
    return found


def broker_conf(properties: Mapping[str, str]) -> BrokerConf:
    """Take from a broker's properties what this program needs."""
    return BrokerConf(
        store=properties.get("storePathRootDir", ""),
        commitlog=properties.get("storePathCommitLog", ""),
        consumequeue=properties.get("storePathConsumeQueue", ""),
        is_lmq=_flag(properties, "enableLmq"),
        is_multi_dispatch=_flag(properties, "enableMultiDispatch"),
        has_own_rocksdb_folder=bool(_flag(properties, "useSeparateStorePathForRocksdbCQ")),
        config_manager=properties.get("configManagerVersion", ""),
        store_type=properties.get("storeType", ""),
        delay_levels=properties.get("messageDelayLevel", ""),
        clean_forcibly_percent=_percent(properties.get("diskSpaceCleanForciblyRatio", "")),
        queue_file_units=_units(properties.get("mappedFileSizeConsumeQueue", "")),
        log_file_bytes=_log_file_bytes(properties.get("mappedFileSizeCommitLog", "")),
    )


def _flag(properties: Mapping[str, str], name: str) -> bool | None:
    said = properties.get(name)
    return None if said is None else said.strip().lower() == "true"


def _percent(said: str) -> int:
    asked = int(said) if said.isdecimal() else CLEAN_FORCIBLY_PERCENT
    return min(max(asked, _LEAST_PERCENT), CLEAN_FORCIBLY_PERCENT)


def _log_file_bytes(said: str) -> int:
    return int(said) if said.isdecimal() else _LOG_FILE_BYTES


def _units(said: str) -> int:
    return -(-int(said) // _UNIT_BYTES) if said.isdecimal() else _QUEUE_FILE_UNITS
