"""Hands the database of `follow` over to `backfill`, and back if `backfill` was interrupted.

`follow` may have done hours of conversion. So a note beside a database in the staging folder records that it comes from
`follow`; the database may go back as long as the staging folder is not sealed.
"""

import shutil
from pathlib import Path

from streaming.adapters.rocksdb.database import exists
from streaming.rocketmq.place import Place
from streaming.rocketmq.staging import FOLLOWED, QUEUES, fsync_folder, sealed_of, write_file


def take_over(place: Place) -> None:
    """Move the database into the staging folder, which is new."""
    write_file(place.staging / FOLLOWED, {"from": str(place.followed_queues)})
    place.followed_queues.replace(place.staging / QUEUES)
    fsync_folder(place.staging)


def give_back(place: Place) -> None:
    """Move the database back out of a staging folder that was not sealed. Its contents are still valid."""
    queues = place.staging / QUEUES
    is_followed = (place.staging / FOLLOWED).exists() and exists(queues) and not place.followed_queues.exists()
    if is_followed and sealed_of(place) is None:
        place.followed.mkdir(exist_ok=True)
        queues.replace(place.followed_queues)
        fsync_folder(place.followed)
        (place.staging / FOLLOWED).unlink()


def tidy_up(place: Place) -> None:
    """Delete the folder of `follow` if its database has left it.

    Allowed here: the folder is ours, and the rest is not needed.
    """
    shutil.rmtree(_deleted(place), ignore_errors=True)
    if not place.followed_queues.exists():
        shutil.rmtree(place.followed, ignore_errors=True)


def delete_follow_result(place: Place) -> None:
    """Delete the result of `follow` at once, since half a database may look complete."""
    aside = _deleted(place)
    shutil.rmtree(aside, ignore_errors=True)
    if place.followed.exists():
        place.followed.replace(aside)
        shutil.rmtree(aside)


def _deleted(place: Place) -> Path:
    return place.own / "follow-thrown-away"
