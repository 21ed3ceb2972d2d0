"""The journal of repairs: what each of them replaced, so that `snapshots undo` can put it back.

1. An entry is a file NUMBER.json, written before anything is sent, and never changed. NUMBER is the time in ms, or one
   more than the last one: what was written later has a higher number, also where the clock was set back.
2. Empty files beside it say how far that came: NUMBER.sent, once what it announces is published; NUMBER.done, once
   the repair that began with it has come to its end and was verified. Entries of older versions have neither, and count
   as sent and as ended.
3. A file that is no entry hides no other one: it is named in the log, and passed over.
"""

import base64
import binascii
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from streaming.clock import Clock
from streaming.errors import SafetyError
from streaming.state.filesystem import Folder
from udfs.formats.internal_stats import Position
from udfs.snapshots.values import Read

log = logging.getLogger("ledger-reaper")

_ENTRY, _SENT, _DONE = ".json", ".sent", ".done"


class Act(StrEnum):
    """What replaces an index."""

    REPAIR = "REPAIR"
    REPAIR_OF_HALF = "REPAIR_OF_HALF"  # of a topic whose index was written in the midst of a replay
    AGAIN = "AGAIN"  # a repair that replaces what its broker wrote in the midst of the replay
    UNDO = "UNDO"


@dataclass(frozen=True, slots=True)
class Entry:
    """One index that was replaced. by: what replaced it. position: where it stood. lost: how many of its segments were.

    is_undo: an undo replaced it. is_again: a broker wrote it in the midst of a replay, so that no undo puts it back.
    begins: a repair began with it. was_sent, is_done: it is marked so.
    """

    name: str
    topic: str
    position: Position
    replaced: bytes
    by: bytes
    lost: int
    is_undo: bool
    is_again: bool
    begins: bool
    was_sent: bool
    is_done: bool


@dataclass(frozen=True, slots=True)
class RepairJournal:
    """The entries in a folder. Every method raises UnavailableError where the folder can't be read or written."""

    folder: Folder
    clock: Clock

    def write(self, old: Read, new: bytes, lost: int, act: Act) -> str:
        """Keep what is about to be replaced; returns the entry's name once it is on disk."""
        entry = {
            "topic": old.topic,
            "key": old.key,
            "position": list(old.position),
            "replaced": base64.b64encode(old.data).decode(),
            "by": base64.b64encode(new).decode(),
            "lost": lost,
            "is_undo": act is Act.UNDO,
            "is_again": act in (Act.AGAIN, Act.REPAIR_OF_HALF),
            "begins": act in (Act.REPAIR, Act.REPAIR_OF_HALF),
        }
        last = max((_number(name) for name in self.folder.names()), default=-1)
        name = f"{max(self.clock.now_ms(), last + 1):015d}{_ENTRY}"
        self.folder.write(name, json.dumps(entry).encode())
        return name

    def mark_sent(self, name: str) -> None:
        """Keep that what the entry announces was published."""
        self.folder.write(_beside(name, _SENT), b"")

    def mark_done(self, name: str) -> None:
        """Keep that the repair which began with the entry was verified, and that its broker could go on from there."""
        self.folder.write(_beside(name, _DONE), b"")

    def of(self, topic: str) -> Iterator[Entry]:
        """Yield a topic's entries, the last one first. Raises SafetyError for one of the topic's that is torn."""
        names = set(self.folder.names())
        for name in sorted((each for each in names if each.endswith(_ENTRY)), reverse=True):
            content = self._content(name)
            if content.get("topic") == topic:
                yield _entry(name, topic, content, names)

    def _content(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads(self.folder.read(name) or b"")
        except ValueError as error:
            content = error
        if isinstance(content, dict):
            return content
        log.warning("the journal's file %s/%s is no JSON object, and was passed over", self.folder.location, name)
        return {}


def _entry(name: str, topic: str, content: dict[str, Any], names: set[str]) -> Entry:
    try:
        ledger, entry = content.get("position") or (-1, -1)
        return Entry(
            name,
            topic,
            (int(ledger), int(entry)),
            base64.b64decode(content["replaced"], validate=True),
            base64.b64decode(content["by"], validate=True),
            int(content.get("lost") or 0),
            is_undo=bool(content.get("is_undo")),
            is_again=bool(content.get("is_again")),
            begins=bool(content.get("begins")),
            was_sent="begins" not in content or _beside(name, _SENT) in names,
            is_done=_beside(name, _DONE) in names,
        )
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise SafetyError(
            f"the journal's file {name} is about {topic} and can't be read ({error!r}). Look at it: it kept what an "
            "undo would put back. Once it is moved away, the entry before it counts"
        ) from error


def _beside(name: str, mark: str) -> str:
    return name.removesuffix(_ENTRY) + mark


def _number(name: str) -> int:
    stem = name.partition(".")[0]
    return int(stem) if stem.isdecimal() else -1
