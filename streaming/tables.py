"""Delta tables of the state directory: where they are, opened without Spark, kept through a power loss."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from streaming.errors import SafetyError, UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def table_path(state_dir: str, table: str) -> str:
    """Path or URI of a table."""
    return f"{state_dir.rstrip('/')}/{table}" if "://" in state_dir else str(Path(state_dir, table).absolute())


def opened(state_dir: str, table: str) -> DeltaTable | None:
    """The table as of now; None where there is none. Raises UnavailableError."""
    path = table_path(state_dir, table)
    try:
        return DeltaTable(path)
    except TableNotFoundError:
        return None
    except Exception as error:
        raise UnavailableError(f"the {table} at {path} can't be read: {error}") from error


def append_once(rows: "DataFrame", path: str, app: str, version: int) -> None:
    """Append in one transaction of an application; Delta skips one whose version is not above all before."""
    rows.write.format("delta").mode("append").option("txnAppId", app).option("txnVersion", version).save(path)


class Durable:
    """Has the disk hold what was committed to a table: neither Spark nor deltalake waits for that. One per writer."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        # the newest commit may be that of a run that was killed
        self._next = DeltaTable(path).version()

    def sync(self) -> None:
        """Return when a power loss can't take what is committed by now. Raises SafetyError where the disk refuses."""
        log = self._path / "_delta_log"
        while (commit := log / f"{self._next:020}.json").exists():
            for file in (*self._added(commit), log / f"{self._next:020}.checkpoint.parquet", commit):
                _flush(file)
                _flush(file.with_name(f".{file.name}.crc"))  # Hadoop's; it believes no file without
            self._next += 1
        for folder in (log, self._path, self._path.parent):
            _flush(folder)

    def _added(self, commit: Path) -> Iterator[Path]:
        for line in commit.read_text().splitlines():
            added = json.loads(line).get("add")
            if added:
                yield self._path / unquote(added["path"])


def _flush(path: Path) -> None:
    try:
        opened_file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # no checkpoint, no checksum; or merged into another and removed since
        return
    try:
        os.fsync(opened_file)
    except OSError as error:
        # asking again would be answered yes, whatever was lost; some file systems know no flushing of folders
        if error.errno != errno.EINVAL or not path.is_dir():
            raise SafetyError(
                f"{path} may be lost, the disk says: {error}. See to the disk, then start again"
            ) from error
    finally:
        os.close(opened_file)
