"""Removes files from a table's folder that no version of the table can need any more.

1. A file that the log lists as removed. It stays removed in every later version, and is deleted some hours later, so
   that readers of an earlier version still find it.
2. A file that was never committed. A file's name contains the version of the transaction for which its task wrote it.
   Once the table has that transaction, or a later one, no store accepts a commit of that transaction
   (streaming/state/delta/commits.py). So if the table does not have the file then, no later version has it.
3. All other files are kept, for example those that deltalake wrote before a merge was interrupted.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from deltalake import DeltaTable

from streaming.state.filesystem import folder_of

_OF_A_TRANSACTION = re.compile(r"part-([0-9]+)-[0-9a-f]{32}\.parquet")
_AT_ONCE = 16


def file_name(version: int | None) -> str:
    """Return a name for a new file, to be committed with this version of the application's transaction, if any."""
    return f"part-{uuid4().hex}.parquet" if version is None else f"part-{version}-{uuid4().hex}.parquet"


def remove_leftovers(table: DeltaTable, location: str, app: str, *, keep_hours: int) -> None:
    """Delete files that the log lists as removed for keep_hours, and files written for commits that never happened.

    The table may be as of any version. Raises UnavailableError.

    Args:
        app: the application whose transaction versions file_name() got.
    """
    settled = table.transaction_version(app) or 0
    kept_for_readers = _removed(table, 0).difference(replaced := _removed(table, keep_hours))
    needed = kept_for_readers.union(table.get_add_actions().column("path").to_pylist())

    # A process may be suspended at any line, for days, and then continue. So no rule depends on the age of a file, or
    # on which version of the table is the newest.
    def can_be_needed(name: str) -> bool:
        if name in needed:
            return True
        transaction = _OF_A_TRANSACTION.fullmatch(name)
        return name not in replaced and (transaction is None or int(transaction[1]) > settled)

    folder = folder_of(location)
    leftovers = [name for name in folder.names() if not can_be_needed(name)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # each thread waits for the store
        # Allowed here: neither this version nor a later one has these files, whatever other runs have committed since.
        list(pool.map(folder.delete, leftovers))


def _removed(table: DeltaTable, before_hours: int) -> set[str]:
    # full=False: deltalake reads the log only, and does not list the folder
    return set(table.vacuum(retention_hours=before_hours, dry_run=True, enforce_retention_duration=False, full=False))
