"""A broker's configuration, a Java properties file: the settings that locate the store and describe its contents."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# diskSpaceCleanForciblyRatio (MessageStoreConfig.java): a broker deletes messages early on a disk that is fuller than
# this. If the value is above the default, the broker uses the default; if it is below 30, the broker uses 30.
CLEAN_FORCIBLY_PERCENT = 85
_LEAST_PERCENT = 30
# defaults of mappedFileSizeCommitLog and mappedFileSizeConsumeQueue; a broker does not start if its files have a size
# other than the configured one
_LOG_FILE_BYTES = 1 << 30
_QUEUE_FILE_UNITS = 300_000
_UNIT_BYTES = 20
# java.util.Properties: line ends, blanks, and the end of a name
_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\f"
_NAME = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_BETWEEN = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class BrokerConf(NamedTuple):
    """Settings of a broker. None and "" denote a missing setting, for which the broker's default applies."""

    store: str = ""
    commitlog: str = ""
    is_lmq: bool | None = None
    is_multi_dispatch: bool | None = None
    has_own_rocksdb_folder: bool = False
    has_one_database: bool = False  # for topics, groups and offsets together (useSingleRocksDBForAllConfigs)
    is_dledger: bool = False
    config_manager: str = ""
    delay_levels: str = ""
    clean_forcibly_percent: int = CLEAN_FORCIBLY_PERCENT
    queue_file_units: int = 0  # units in a file of a queue; 0 if no configuration was read
    log_file_bytes: int = 0  # bytes in a file of the commitlog; 0 if no configuration was read
    cluster: str = ""


def read_properties(text: str) -> dict[str, str]:
    """Read a Java properties file. If a name occurs twice, the later line wins.

    A name ends at the first =, : or blank. A line that ends with a backslash continues in the next line. Blanks after
    a value, which Java keeps, are removed.
    """
    properties = {}
    for line in _lines(text):
        name = _NAME.match(line)
        between = _BETWEEN.match(line, name.end() if name else 0)
        value = line[between.end() if between else 0 :]
        properties[_unescaped(name.group() if name else "")] = _unescaped(value).strip()
    return properties


def broker_conf(properties: Mapping[str, str]) -> BrokerConf:
    """Pick the settings that this program needs.

    Like brokers, we ignore storePathConsumeQueue, which many sample files contain: a broker's queues are in
    storePathRootDir (StorePathConfigHelper.java).
    """
    return BrokerConf(
        store=properties.get("storePathRootDir", ""),
        commitlog=properties.get("storePathCommitLog", ""),
        is_lmq=_flag(properties, "enableLmq"),
        is_multi_dispatch=_flag(properties, "enableMultiDispatch"),
        has_own_rocksdb_folder=bool(_flag(properties, "useSeparateStorePathForRocksdbCQ")),
        has_one_database=bool(_flag(properties, "useSingleRocksDBForAllConfigs")),
        is_dledger=bool(_flag(properties, "enableDLegerCommitLog")),
        config_manager=properties.get("configManagerVersion", ""),
        delay_levels=properties.get("messageDelayLevel", ""),
        clean_forcibly_percent=_percent(properties.get("diskSpaceCleanForciblyRatio", "")),
        queue_file_units=_units(properties.get("mappedFileSizeConsumeQueue", "")),
        log_file_bytes=_log_file_bytes(properties.get("mappedFileSizeCommitLog", "")),
        cluster=properties.get("brokerClusterName", ""),
    )


def _lines(text: str) -> Iterator[str]:
    """Yield logical lines as Java does: continued lines are joined, comments and empty lines are skipped."""
    joined = ""
    for natural in _LINE_END.split(text):
        bare = natural.lstrip(_BLANKS)
        if not joined and (not bare or bare[0] in "#!"):
            continue
        is_continued = (len(bare) - len(bare.rstrip("\\"))) % 2 == 1
        joined += bare[:-1] if is_continued else bare
        if not is_continued and joined:
            yield joined
            joined = ""
    if joined:
        yield joined


def _unescaped(text: str) -> str:
    def unescape(match: re.Match[str]) -> str:
        code, letter = match.groups()
        return chr(int(code, 16)) if code else _ESCAPED.get(letter, letter)

    return _ESCAPE.sub(unescape, text)


def _flag(properties: Mapping[str, str], name: str) -> bool | None:
    value = properties.get(name)
    return None if value is None else value.strip().lower() == "true"


def _percent(value: str) -> int:
    asked = int(value) if value.isdecimal() else CLEAN_FORCIBLY_PERCENT
    return min(max(asked, _LEAST_PERCENT), CLEAN_FORCIBLY_PERCENT)


def _log_file_bytes(value: str) -> int:
    return int(value) if value.isdecimal() else _LOG_FILE_BYTES


def _units(value: str) -> int:
    return -(-int(value) // _UNIT_BYTES) if value.isdecimal() else _QUEUE_FILE_UNITS
