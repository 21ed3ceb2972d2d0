"""Deletes what was kept: the only command that frees what an upgrade or a rollback has set aside."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from streaming.errors import SafetyError
from streaming.rocketmq.follow.handover import throw_away_followed
from streaming.rocketmq.locks import broker_kept_out, one_writer
from streaming.rocketmq.move import is_moved_in, take_back
from streaming.rocketmq.place import OWN, Place
from streaming.rocketmq.staging import sealed_of, throw_away

_NAMES = ("kept-", "export-")


def forgettable(place: Place) -> list[Path]:
    """Folders of ours that hold what was replaced, exported, or begun and not ended."""
    if not place.own.is_dir():
        return []
    found = [each for each in sorted(place.own.iterdir()) if each.is_dir() and each.name.startswith(_NAMES)]
    return found + [each for each in (place.followed, place.staging) if each.exists()]


def what_is(place: Place, folder: Path) -> str:
    """Say for people what a forgettable folder holds."""
    if folder == place.followed:
        return "what `follow` has made, which `backfill` would go on with"
    if folder == place.staging:
        return "what a backfill that has ended left behind" if _has_ended(place) else "a backfill that has not ended"
    return "an export" if folder.name.startswith("export-") else "what was replaced"


def forget(place: Place, folders: Sequence[Path]) -> None:
    """Delete these folders.

    Raises SafetyError for one that is not ours, and for an unfinished backfill beside a running broker. Raises
    BusyError beside a writer.
    """
    with one_writer(place):
        known = forgettable(place)
        for folder in folders:
            if folder not in known or folder.parent.name != OWN or folder.is_symlink():
                raise SafetyError(f"{folder} was not kept by this program")
        for folder in folders:
            if folder == place.staging:
                with broker_kept_out(place):  # what was moved in already is taken out
                    _forget_staging(place)
            elif folder == place.followed:
                throw_away_followed(place)  # allowed here: as below
            else:
                # Allowed here: the operator has said so, the folder is ours and holds what was replaced.
                shutil.rmtree(folder)


def _forget_staging(place: Place) -> None:
    sealed = sealed_of(place)
    if sealed is not None and not is_moved_in(place, sealed):
        take_back(place, sealed, os.replace)
    throw_away(place)


def _has_ended(place: Place) -> bool:
    sealed = sealed_of(place)
    return sealed is not None and is_moved_in(place, sealed)
