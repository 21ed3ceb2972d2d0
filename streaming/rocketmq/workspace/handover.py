"""Hands the database of `follow` over to `backfill`, and back if `backfill` was interrupted."""

import shutil
from pathlib import Path

from streaming.adapters.rocksdb.database import exists
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.staging import FOLLOWED, QUEUES, sealed_of, write_note
from streaming.state.durable import flush


def take_over(paths: StorePaths) -> None:
    """Move the database into the staging folder, which is new."""
    # `follow` may have done hours of conversion: the note lets the next run give the database back
    write_note(paths.staging / FOLLOWED, {"from": str(paths.follow_queues)})
    paths.follow_queues.replace(paths.staging / QUEUES)
    flush(paths.staging)


def give_back(paths: StorePaths) -> None:
    """Move the database back out of a staging folder that was not sealed: the database is still valid."""
    queues = paths.staging / QUEUES
    is_followed = (paths.staging / FOLLOWED).exists() and exists(queues) and not paths.follow_queues.exists()
    if is_followed and sealed_of(paths) is None:
        paths.follow.mkdir(exist_ok=True)
        queues.replace(paths.follow_queues)
        flush(paths.follow)
        (paths.staging / FOLLOWED).unlink()


def tidy_up(paths: StorePaths) -> None:
    """Delete what delete_follow_result left, and the folder of `follow` if its database is no longer there.

    Allowed here: the folder is ours, and the rest is not needed.
    """
    shutil.rmtree(_deleted(paths), ignore_errors=True)
    if not paths.follow_queues.exists():
        shutil.rmtree(paths.follow, ignore_errors=True)


def delete_follow_result(paths: StorePaths) -> None:
    """Delete the result of `follow`."""
    aside = _deleted(paths)
    shutil.rmtree(aside, ignore_errors=True)
    if paths.follow.exists():
        # renamed first, so that it is gone at once: a half-deleted database may look complete
        paths.follow.replace(aside)
        shutil.rmtree(aside)


def _deleted(paths: StorePaths) -> Path:
    return paths.own / "follow-thrown-away"
