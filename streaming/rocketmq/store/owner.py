"""The owner of a store: the broker's user must own the files of this program."""

import os
import pwd

from streaming.rocketmq.failures import refused
from streaming.rocketmq.store.store_paths import StorePaths
from udfs.rocketmq.refusals import Code


def wrong_user(paths: StorePaths) -> str:
    """Explain why the broker could not write the files of this process; "" if it could."""
    owner, own = paths.store.stat().st_uid, os.geteuid()
    if owner == own:
        return ""
    return (
        f"the store belongs to {_name(owner)}, and this runs as {_name(own)}: the broker could not write the new "
        f"files. Run it as {_name(owner)}"
    )


def require_owner(paths: StorePaths) -> None:
    """Raise SafetyError if the broker could not write the files of this process."""
    text = wrong_user(paths)
    if text:
        raise refused(Code.WRONG_USER, text)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"the user {uid}"
