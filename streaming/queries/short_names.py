"""Takes over checkpoints of earlier versions, which named a query by eight hex digits of its topic's digest.

A checkpoint moves to its query's full name only if it has read this topic and no other; any other checkpoint stays.
"""

import logging

from streaming.config.settings import Settings
from streaming.queries.checkpoints import FIRST, copy_resumed, location_of, newest_number, offsets_in
from streaming.queries.names import Query, short_name_of
from streaming.state.filesystem import Folder, folder_of, shown, translated
from udfs.paths import base_topic

log = logging.getLogger("ledger-reaper")


def adopt_short_name(settings: Settings, query: Query) -> bool:
    """Move a topic's short-named checkpoint to its full name; False if there is none to move. Raises UnavailableError.

    The query must not run. A move that breaks off is repeated by the next call: the newest offsets are copied last.
    """
    name = short_name_of(query)
    if name is None:
        return False
    old, new = folder_of(location_of(settings, name)), folder_of(location_of(settings, query.name))
    newest = newest_number(old.location, "offsets")
    # two topics can share eight digits, and a tenant that creates topics can choose them
    if newest <= newest_number(new.location, "offsets") or _topics_of(old) != set(query.topics):
        return False
    copy_resumed(old, new)
    _remove(old)
    log.info("%s: its checkpoint %s is now %s", query.topics[0], shown(old.location), shown(new.location))
    return True


def _topics_of(checkpoint: Folder) -> set[str]:
    files = [f"offsets/{name}" for name in checkpoint.names("offsets") if name.isdigit()]
    if checkpoint.read(FIRST) is not None:
        files.append(FIRST)
    return {base_topic(partition) for path in files for partition in offsets_in(checkpoint, path).positions}


def _remove(checkpoint: Folder) -> None:
    parent = checkpoint.root.rpartition("/")[0]
    with translated(parent, "deleted"):
        checkpoint.filesystem.delete_dir(parent)
