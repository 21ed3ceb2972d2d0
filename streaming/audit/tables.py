"""The tables of an audit, in DuckDB: in memory up to a limit, and above it in temporary files.

Only this module imports duckdb. A query's text contains column names and constants of this program; values of others go
through parameters and Arrow.
"""

import contextlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa

from streaming.audit.stopping import StoppedError
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.spark import scratch

_PARAMETER = re.compile(r"\$(\w+)")
ROWS_AT_ONCE = 5_000
_INSERTED_ROWS, _INSERTED_BYTES = 100_000, 16 * 1024 * 1024  # inserted by one statement
# the most memory for tables, hash tables and sorts; what needs more goes to temporary files
MEMORY, MEMORY_BESIDE_SERVICE = "1GB", "512MB"
_THREADS = 2

Row = Mapping[str, Any]


class Tables:
    """The tables, and queries over them. Thread-safe. Every method raises UnavailableError if the disk is full."""

    def __init__(self, folder: Path, stop: threading.Event, memory: str = MEMORY) -> None:
        """Open.

        Args:
            folder: of the temporary files.
            stop: once it is set, a query raises StoppedError instead of starting.
            memory: above this, rows go to temporary files.
        """
        self._stop = stop
        self._numbers = count()
        config: dict[str, Any] = {
            "memory_limit": memory,
            "threads": _THREADS,
            "temp_directory": str(folder),
            "default_null_order": "nulls_first_on_asc_last_on_desc",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        with _translated():
            self._connection = duckdb.connect(":memory:", config=config)
            # a name in a query is never a variable of Python
            self._connection.execute("SET python_enable_replacements = false")
            # no file, address or extension: all rows come from this program
            self._connection.execute("SET enable_external_access = false")
            self._connection.execute("SET lock_configuration = true")

    def check(self) -> None:
        """Raise StoppedError if the audit is to stop."""
        if self._stop.is_set():
            raise StoppedError

    def close(self) -> None:
        """Drop all tables."""
        self._connection.close()

    def select(self, sql: str, **named: Any) -> "Rows":
        """Return the rows of a query.

        Args:
            sql: the query, without WITH.
            named: Rows are tables of this name in the query; other values are its parameters ($name).
        """
        tables = {name: part for name, part in named.items() if isinstance(part, Rows)}
        number = next(self._numbers)  # two queries in one may have parameters of the same name
        values = {f"{name}_{number}": part for name, part in named.items() if name not in tables}
        text = _PARAMETER.sub(rf"$\1_{number}", sql)
        if tables:
            parts = ", ".join(f"{name} AS ({part.sql})" for name, part in tables.items())
            text = f"WITH {parts} {text}"
        for part in tables.values():
            values |= part.values
        return Rows(self, text, values)

    def keep(self, rows: "Rows") -> "Rows":
        """Compute the rows, and return the table that contains them."""
        name = self._name()
        with self._cursor() as cursor:
            cursor.execute(f"CREATE TABLE {name} AS {rows.sql}", dict(rows.values) or None)
        return Rows(self, f"FROM {name}", {})

    def keep_batches(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> "Rows":
        """Read the batches once, and return the table that contains their rows."""
        name = self._name()
        with self._cursor() as cursor:
            _insert(cursor, f"CREATE TABLE {name} AS FROM incoming", schema.empty_table())
            for group in _groups(batches, schema):
                _insert(cursor, f"INSERT INTO {name} FROM incoming", group)
        return Rows(self, f"FROM {name}", {})

    def of(self, rows: Sequence[Row], schema: pa.Schema) -> "Rows":
        """Return a table of these rows; missing columns are null."""
        return self.keep_batches([pa.RecordBatch.from_pylist(list(rows), schema=schema)], schema)

    def fetched(self, rows: "Rows") -> list[dict[str, Any]]:
        """Return all rows; sums are whole numbers of any size."""
        with self._cursor() as cursor:
            cursor.execute(rows.sql, dict(rows.values) or None)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    @contextlib.contextmanager
    def reader(self, rows: "Rows", at_once: int = ROWS_AT_ONCE) -> Iterator[pa.RecordBatchReader]:
        """Yield a reader of the rows, which computes them as they are read, `at_once` rows at a time."""
        with self._cursor() as cursor:
            yield cursor.sql(rows.sql, params=dict(rows.values) or None).to_arrow_reader(at_once)

    def _name(self) -> str:
        return f"table_{next(self._numbers)}"

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        self.check()
        with _translated(), contextlib.closing(self._connection.cursor()) as cursor:
            yield cursor


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a table, or of a query, which runs again at each use."""

    tables: Tables
    sql: str
    values: Mapping[str, Any]

    def select(self, sql: str, **named: Any) -> "Rows":
        """Return the rows of a query over these rows, which the query names `rows`; arguments as of Tables.select."""
        return self.tables.select(sql, rows=self, **named)

    def where(self, condition: str, **named: Any) -> "Rows":
        """Select the rows for which the condition is true."""
        return self.select(f"FROM rows WHERE {condition}", **named)

    def and_also(self, *others: "Rows") -> "Rows":
        """Append rows with columns of the same names."""
        named = {f"other_{number}": other for number, other in enumerate(others)}
        return self.select("FROM rows" + "".join(f" UNION ALL BY NAME FROM {name}" for name in named), **named)

    def count(self, column: str = "*") -> int:
        """Count the rows, or those with a value in the column."""
        (row,) = self.select(f"SELECT count({column}) AS n FROM rows").fetched()
        return int(row["n"])

    def fetched(self) -> list[dict[str, Any]]:
        """Return all rows."""
        return self.tables.fetched(self)

    def reader(self) -> contextlib.AbstractContextManager[pa.RecordBatchReader]:
        """Return a reader of the rows, which computes them as they are read."""
        return self.tables.reader(self)

    def batches(self, at_once: int = ROWS_AT_ONCE) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of at most `at_once` rows."""
        with self.tables.reader(self, at_once) as reader:
            yield from reader

    def each(self) -> Iterator[dict[str, Any]]:
        """Yield each row; one batch is in memory at a time. Raises StoppedError if the audit is to stop."""
        for batch in self.batches():
            for row in batch.to_pylist():
                self.tables.check()
                yield row


@contextlib.contextmanager
def opened(settings: Settings, stop: threading.Event, memory: str) -> Iterator[Tables]:
    """Yield tables whose temporary files are in spark.local_dir; they are removed at the end.

    Raises ConfigError if that folder can't be written.
    """
    parent = scratch.folder_for(settings)
    with (
        TemporaryDirectory(dir=parent, prefix="audit-", ignore_cleanup_errors=True) as folder,
        contextlib.closing(Tables(Path(folder), stop, memory)) as tables,
    ):
        yield tables


def _insert(cursor: duckdb.DuckDBPyConnection, statement: str, table: pa.Table) -> None:
    cursor.register("incoming", table)
    try:
        cursor.execute(statement)
    finally:
        cursor.unregister("incoming")


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Combine batches, so that a statement inserts many rows."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _INSERTED_ROWS or size >= _INSERTED_BYTES:
            yield pa.Table.from_batches(held, schema)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held, schema)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise UnavailableError(f"the audit's tables: {error}") from error
