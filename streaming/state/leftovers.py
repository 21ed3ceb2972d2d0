"""Files in a table's folder that nobody needs any more, and how they are told from those that somebody does.

A process may be suspended at any line, for days, and go on where it stood. So nothing here depends on how old a file
is, or on what the newest version of the table is: a file goes only where no later commit can ever need it.

1. What the log says was removed stays removed in every later version. It goes some hours later, so that whoever still
   reads an earlier version finds it.
2. What was never committed: tasks' files carry in their names the version of the transaction that they were written
   for. Once the table has that transaction, or a later one, no store takes a commit of it (streaming/state/commits.py).
   So a file of it that the table lacks then is in no later version.
3. All other files are kept, for example what deltalake had written when merging broke off.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from deltalake import DeltaTable

from streaming.state.filesystem import folder_of

_OF_A_TRANSACTION = re.compile(r"part-([0-9]+)-[0-9a-f]{32}\.parquet")
_AT_ONCE = 16


def file_name(version: int | None) -> str:
    """A name for a new file, to be committed with this version of the application's transaction, if with any."""
    return f"part-{uuid4().hex}.parquet" if version is None else f"part-{version}-{uuid4().hex}.parquet"


def remove_leftovers(table: DeltaTable, location: str, app: str, *, keep_hours: int) -> None:
    """Remove what the log says was removed so long ago, and files that were written for commits that nobody made.

    The table may be as of any time. app: the application whose versions file_name was told. Raises UnavailableError.
    """
    settled = table.transaction_version(app) or 0
    kept_for_readers = _removed(table, 0).difference(replaced := _removed(table, keep_hours))
    known = kept_for_readers.union(table.get_add_actions().column("path").to_pylist())

    def can_be_needed(name: str) -> bool:
        if name in known:
            return True
        found = _OF_A_TRANSACTION.fullmatch(name)
        return name not in replaced and (found is None or int(found[1]) > settled)

    folder = folder_of(location)
    going = [name for name in folder.names() if not can_be_needed(name)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # each waits for the store
        # Allowed here: these are in no version from this one on, whatever others have committed since.
        list(pool.map(folder.delete, going))


def _removed(table: DeltaTable, before_hours: int) -> set[str]:
    """What the log says was removed, that long ago at least. Only the log is asked, and not the folder."""
    return set(table.vacuum(retention_hours=before_hours, dry_run=True, enforce_retention_duration=False, full=False))
