"""A broker's configuration file, a Java properties file, as far as it says where the store is and what is in it."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# diskSpaceCleanForciblyRatio (MessageStoreConfig.java): on a disk that is used to more than that, a broker deletes
# messages before their time. It takes no more than the default, and no less than 30.
CLEAN_FORCIBLY_PERCENT = 85
_LEAST_PERCENT = 30
# mappedFileSizeCommitLog and mappedFileSizeConsumeQueue; a broker does not start with files of another size
_LOG_FILE_BYTES = 1 << 30
_QUEUE_FILE_UNITS = 300_000
_UNIT_BYTES = 20
# java.util.Properties: what ends a line, what is blank, and where a name ends
_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\f"
_NAME = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_BETWEEN = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class BrokerConf(NamedTuple):
    """What a broker's configuration says; None and "" where it says nothing, and then the broker's default holds."""

    store: str = ""
    commitlog: str = ""
    is_lmq: bool | None = None
    is_multi_dispatch: bool | None = None
    has_own_rocksdb_folder: bool = False
    has_one_database: bool = False  # one for topics, groups and offsets (useSingleRocksDBForAllConfigs)
    is_dledger: bool = False
    config_manager: str = ""
    delay_levels: str = ""
    clean_forcibly_percent: int = CLEAN_FORCIBLY_PERCENT
    queue_file_units: int = 0  # units in a file of a queue; 0 where no configuration was read
    log_file_bytes: int = 0  # bytes of a file of the commitlog; the same


def read_properties(text: str) -> dict[str, str]:
    """Read a Java properties file; of a name that stands twice, the later line wins.

    A name ends at the first =, : or blank. A line that ends with a backslash goes on in the next one. Blanks behind a
    value, which Java keeps, are taken off.
    """
    found = {}
    for line in _lines(text):
        name = _NAME.match(line)
        between = _BETWEEN.match(line, name.end() if name else 0)
        value = line[between.end() if between else 0 :]
        found[_unescaped(name.group() if name else "")] = _unescaped(value).strip()
    return found


def broker_conf(properties: Mapping[str, str]) -> BrokerConf:
    """Take from a broker's properties what this program needs.

    storePathConsumeQueue, which many samples name, is left out of account, as a broker does: its queues lie in
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
    )


def _lines(text: str) -> Iterator[str]:
    """Lines as Java counts them: those that go on are put together, comments and empty ones are left out."""
    begun = ""
    for natural in _LINE_END.split(text):
        bare = natural.lstrip(_BLANKS)
        if not begun and (not bare or bare[0] in "#!"):
            continue
        goes_on = (len(bare) - len(bare.rstrip("\\"))) % 2 == 1
        begun += bare[:-1] if goes_on else bare
        if not goes_on and begun:
            yield begun
            begun = ""
    if begun:
        yield begun


def _unescaped(text: str) -> str:
    def meant(found: re.Match[str]) -> str:
        code, letter = found.groups()
        return chr(int(code, 16)) if code else _ESCAPED.get(letter, letter)

    return _ESCAPE.sub(meant, text)


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
