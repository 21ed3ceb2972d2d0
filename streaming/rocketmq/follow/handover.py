"""Hands the database that `follow` has made over to `backfill`, and back where `backfill` was cut short.

A whole conversion may take hours, and `follow` has done it already. So a note beside a database in the staging folder
says that it comes from `follow`; as long as the staging folder is not sealed, the database may go back.
"""

import shutil
from pathlib import Path

from streaming.adapters.rocksdb.database import exists
from streaming.rocketmq.place import Place
from streaming.rocketmq.staging import FOLLOWED, QUEUES, fsync_folder, sealed_of, write_file


def take_over(place: Place) -> None:
    """Move the database into the staging folder, which was made just now."""
    write_file(place.staging / FOLLOWED, {"from": str(place.followed_queues)})
    place.followed_queues.replace(place.staging / QUEUES)
    fsync_folder(place.staging)


def give_back(place: Place) -> None:
    """Move the database back out of a staging folder that was not sealed. What it has is true still."""
    queues = place.staging / QUEUES
    is_followed = (place.staging / FOLLOWED).exists() and exists(queues) and not place.followed_queues.exists()
    if is_followed and sealed_of(place) is None:
        place.followed.mkdir(exist_ok=True)
        queues.replace(place.followed_queues)
        fsync_folder(place.followed)
        (place.staging / FOLLOWED).unlink()


def tidy_up(place: Place) -> None:
    """Delete the folder of `follow` if its database has left it. Allowed here: it is ours, and nothing in it counts."""
    shutil.rmtree(_thrown_away(place), ignore_errors=True)
    if not place.followed_queues.exists():
        shutil.rmtree(place.followed, ignore_errors=True)


def throw_away_followed(place: Place) -> None:
    """Delete what `follow` has made: all at once, for half a database may look like a whole one."""
    aside = _thrown_away(place)
    shutil.rmtree(aside, ignore_errors=True)
    if place.followed.exists():
        place.followed.replace(aside)
        shutil.rmtree(aside)


def _thrown_away(place: Place) -> Path:
    return place.own / "follow-thrown-away"
