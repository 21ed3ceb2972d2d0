"""Deletes files that an upgrade or a rollback has set aside; no other command frees their space."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from streaming.errors import SafetyError
from streaming.rocketmq.store.locks import broker_kept_out, one_writer
from streaming.rocketmq.store.store_paths import OWN, StorePaths
from streaming.rocketmq.workspace.handover import delete_follow_result
from streaming.rocketmq.workspace.move import is_moved_in, take_back
from streaming.rocketmq.workspace.staging import delete_staging, sealed_of

_NAMES = ("kept-", "export-")


def forgettable(paths: StorePaths) -> list[Path]:
    """List our folders of replaced files, of exported files, and of unfinished work."""
    if not paths.own.is_dir():
        return []
    kept = [path for path in sorted(paths.own.iterdir()) if path.is_dir() and path.name.startswith(_NAMES)]
    return kept + [path for path in (paths.follow, paths.staging) if path.exists()]


def description_of(paths: StorePaths, folder: Path) -> str:
    """Describe the contents of a folder that forgettable() lists."""
    if folder == paths.follow:
        return "the result of `follow`, with which `backfill` would continue"
    if folder == paths.staging:
        return "the rest of a finished backfill" if _has_ended(paths) else "an unfinished backfill"
    return "an export" if folder.name.startswith("export-") else "replaced files"


def forget(paths: StorePaths, folders: Sequence[Path]) -> None:
    """Delete these folders.

    Raises SafetyError for a folder that is not ours, and for an unfinished backfill if a broker runs. Raises BusyError
    if another command writes to the store.
    """
    with one_writer(paths):
        allowed = forgettable(paths)
        for folder in folders:
            if folder not in allowed or folder.parent.name != OWN or folder.is_symlink():
                raise SafetyError(f"{folder} was not kept by this program")
        for folder in folders:
            if folder == paths.staging:
                with broker_kept_out(paths):  # files that are already in the store are moved back out
                    _forget_staging(paths)
            elif folder == paths.follow:
                delete_follow_result(paths)  # allowed here: as below
            else:
                # Allowed here: the operator has confirmed it, and the folder is ours, with replaced or exported files.
                shutil.rmtree(folder)


def _forget_staging(paths: StorePaths) -> None:
    sealed = sealed_of(paths)
    if sealed is not None and not is_moved_in(paths, sealed):
        take_back(paths, sealed, os.replace)
    delete_staging(paths)


def _has_ended(paths: StorePaths) -> bool:
    sealed = sealed_of(paths)
    return sealed is not None and is_moved_in(paths, sealed)
