"""Where the Delta tables of the state directory are, and how they are opened without Spark."""

from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from streaming.errors import UnavailableError


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
