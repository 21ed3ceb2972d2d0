"""Whose the store is: what this program makes has to belong to the user as whom the broker runs."""

import os
import pwd

from streaming.rocketmq.failures import refused
from streaming.rocketmq.place import Place
from udfs.rocketmq.refusals import Code


def wrong_user(place: Place) -> str:
    """Say why this process would leave files that the broker can't write; "" where it would not."""
    owner, own = place.store.stat().st_uid, os.geteuid()
    if owner == own:
        return ""
    return (
        f"the store belongs to {_name(owner)}, and this runs as {_name(own)}: the broker could not write what is made. "
        f"Run it as {_name(owner)}"
    )


def require_owner(place: Place) -> None:
    """Raise SafetyError where this process would leave files that the broker can't write."""
    text = wrong_user(place)
    if text:
        raise refused(Code.WRONG_USER, text)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"the user {uid}"
