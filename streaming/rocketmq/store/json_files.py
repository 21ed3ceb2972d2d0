"""The JSON files of a broker's configuration: which of them the broker reads, and their contents."""

import os
from pathlib import Path
from typing import Any

from streaming.errors import SafetyError
from streaming.rocketmq.store.store_paths import StorePaths
from udfs.rocketmq import metadata as m
from udfs.rocketmq.json_text import BadJsonError, parse

# A file of a million offsets has about 60 MB, and parsing takes ten times as much memory.
JSON_BYTES_MAX = 128 << 20


_HEAD_BYTES = 64 << 10


JSON_FILES = (m.TOPICS_JSON, m.GROUPS_JSON, m.OFFSETS_JSON, m.LMQ_OFFSETS_JSON)


def json_table(config: Path, name: str) -> tuple[dict[str, Any], str] | None:
    """Read a JSON file, or its .bak if the file is empty or missing, as the broker does. Return the table and the name.

    None if both are empty or missing. Raises SafetyError for a file that is not a JSON object, and for those that
    read_bounded refuses; for bad JSON it names file and character.
    """
    for candidate in (name, f"{name}.bak"):
        path = config / candidate
        text = read_bounded(path)
        if not text.strip():
            continue
        try:
            table = parse(text)
        except BadJsonError as error:
            raise SafetyError(f"{path}, character {error.position}: {error.text}") from error
        if not isinstance(table, dict):
            raise SafetyError(f"{path} contains no object")
        return table, candidate
    return None


def offsets_name(paths: StorePaths) -> str:
    """Return the name of the broker's file of offsets.

    Raises SafetyError if both names exist and it is unknown which of them counts.
    """
    if paths.conf.is_lmq is not None:
        return m.LMQ_OFFSETS_JSON if paths.conf.is_lmq else m.OFFSETS_JSON
    names = [name for name in (m.OFFSETS_JSON, m.LMQ_OFFSETS_JSON) if _exists(paths.config, name)]
    if len(names) == 2:
        raise SafetyError(
            f"{paths.config} has {m.OFFSETS_JSON} and {m.LMQ_OFFSETS_JSON}, and the broker reads one of them: name its "
            "configuration with --broker-conf, or use --lmq (enableLmq=true) or --no-lmq"
        )
    return names[0] if names else m.OFFSETS_JSON


def is_name_evident(paths: StorePaths) -> bool:
    """Whether a file of offsets that is not empty exists under either name, be it only as .bak.

    If there is one under only one of the names, that name shows which one the broker reads.
    """
    return any(_exists(paths.config, name) for name in (m.OFFSETS_JSON, m.LMQ_OFFSETS_JSON))


def _exists(config: Path, name: str) -> bool:
    return any(path.is_file() and path.stat().st_size for path in (config / name, config / f"{name}.bak"))


def read_bounded(path: Path) -> str:
    """Read the text of a JSON file; "" without a file.

    Raises SafetyError for a file that is too large, is not UTF-8, or starts with neither { nor [.
    """
    try:
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            if size > JSON_BYTES_MAX:
                raise SafetyError(f"{path} has {size} bytes, and at most {JSON_BYTES_MAX} of a JSON file are read")
            # after a power cut, a file may have its full size and contain zeros
            data = handle.read(_HEAD_BYTES)
            if data.strip() and not data.lstrip().startswith((b"{", b"[")):
                raise SafetyError(f"{path}, character {len(data) - len(data.lstrip())}: no object starts here")
            data += handle.read(JSON_BYTES_MAX + 1 - len(data))
    except FileNotFoundError:
        return ""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SafetyError(f"{path}, byte {error.start}: this is not UTF-8") from error
