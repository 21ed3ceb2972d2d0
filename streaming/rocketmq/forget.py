"""Deletes kept files: the only command that frees the space of what an upgrade or a rollback has set aside."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from streaming.errors import SafetyError
from streaming.rocketmq.follow.handover import delete_follow_result
from streaming.rocketmq.locks import broker_kept_out, one_writer
from streaming.rocketmq.move import is_moved_in, take_back
from streaming.rocketmq.place import OWN, Place
from streaming.rocketmq.staging import delete_staging, sealed_of

_NAMES = ("kept-", "export-")


def forgettable(place: Place) -> list[Path]:
    """List folders of ours with files that were replaced or exported, or of unfinished work."""
    if not place.own.is_dir():
        return []
    kept = [path for path in sorted(place.own.iterdir()) if path.is_dir() and path.name.startswith(_NAMES)]
    return kept + [path for path in (place.followed, place.staging) if path.exists()]


def description_of(place: Place, folder: Path) -> str:
    """Describe the contents of such a folder."""
    if folder == place.followed:
        return "the result of `follow`, with which `backfill` would continue"
    if folder == place.staging:
        return "the rest of a finished backfill" if _has_ended(place) else "an unfinished backfill"
    return "an export" if folder.name.startswith("export-") else "replaced files"


def forget(place: Place, folders: Sequence[Path]) -> None:
    """Delete these folders.

    Raises SafetyError for a folder that is not ours, and for an unfinished backfill if a broker runs. Raises BusyError
    if another command writes to the store.
    """
    with one_writer(place):
        allowed = forgettable(place)
        for folder in folders:
            if folder not in allowed or folder.parent.name != OWN or folder.is_symlink():
                raise SafetyError(f"{folder} was not kept by this program")
        for folder in folders:
            if folder == place.staging:
                with broker_kept_out(place):  # files that were moved in already are taken out
                    _forget_staging(place)
            elif folder == place.followed:
                delete_follow_result(place)  # allowed here: as below
            else:
                # Allowed here: the operator has confirmed it, and the folder is ours and contains replaced files.
                shutil.rmtree(folder)


def _forget_staging(place: Place) -> None:
    sealed = sealed_of(place)
    if sealed is not None and not is_moved_in(place, sealed):
        take_back(place, sealed, os.replace)
    delete_staging(place)


def _has_ended(place: Place) -> bool:
    sealed = sealed_of(place)
    return sealed is not None and is_moved_in(place, sealed)
