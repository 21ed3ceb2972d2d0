"""The journal of repairs: what each of them replaced, so that `snapshots undo` can put it back.

1. An entry is a file NUMBER-TOPIC-CHANCE.json, written before anything is sent, and never changed. NUMBER is the time
   in ms, or one more than the last one: what was written later has a higher number, also where the clock was set back.
   TOPIC is a digest of the topic's name, so that what can't be read is known to be about another one. CHANCE keeps two
   processes from writing the same file. Older versions wrote NUMBER.json.
2. Empty files beside it say how far that came: the same with .sent, once what it announces is published; .done, once
   the repair that began with it was verified. Entries of older versions have neither, and count as sent and as ended.
   Of a run of a migration, the first entry has them: .sent, once all entries of the run are written; .done, once the
   new form was verified, or the migration was undone.
3. A file that is no entry hides no other one: it is named in the log, and passed over. One whose name says that it is
   about the topic, and which is torn, ends the command. So does any that the store does not give us just now.
"""

import base64
import binascii
import hashlib
import json
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from streaming.clock import Clock
from streaming.errors import SafetyError
from streaming.state.filesystem import Folder
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots.values import ReadValue

log = logging.getLogger("ledger-reaper")

_ENTRY, _SENT, _DONE = ".json", ".sent", ".done"
_NAME = re.compile(r"([0-9]{15,})(?:-([0-9a-f]{8})-[0-9a-f]{8})?\.json")
_CHANCE_BYTES = 4


def _chance() -> str:
    return secrets.token_hex(_CHANCE_BYTES)


class Act(StrEnum):
    """What replaces an index."""

    REPAIR = "REPAIR"
    REPAIR_OF_HALF = "REPAIR_OF_HALF"  # of a topic whose index was written in the midst of a replay
    AGAIN = "AGAIN"  # a repair that replaces what its broker wrote in the midst of the replay
    UNDO = "UNDO"
    MIGRATION = "MIGRATION"  # what a topic had before its snapshot got another form
    REMOVAL = "REMOVAL"  # of a message that no broker can decode; its topic is the system topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One index that was replaced. position: where it stood. lost: how many of its segments were.

    end: the last place of the indexes topic before that; (-1, -1): an older version did not keep it.
    key: of the message.
    is_undo: an undo replaced it. is_again: a broker wrote it in the midst of a replay, so that no undo puts it back.
    begins: a repair began with it. was_sent, is_done: it is marked so.
    """

    name: str
    topic: str
    position: Position
    replaced: bytes
    by: bytes  # what replaced it; of a migration: the name of its run's first entry, which has none itself
    lost: int
    is_undo: bool
    is_again: bool
    begins: bool
    was_sent: bool
    is_done: bool
    end: Position = BEFORE_ALL
    key: str = ""


@dataclass(frozen=True, slots=True)
class RepairJournal:
    """The entries in a folder. Every method raises UnavailableError where the folder can't be read or written.

    chance: eight hexadecimal digits, others each time.
    """

    folder: Folder
    clock: Clock
    chance: Callable[[], str] = _chance

    def write(self, old: ReadValue, new: bytes, lost: int, act: Act, end: Position) -> str:
        """Keep what is about to be replaced; returns the entry's name once it is on disk.

        end: the last place of the indexes topic; what is sent then lies behind it.
        """
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
            "end": list(end),
        }
        last = max((number for number, _name, _topic in _entries(self.folder.names())), default=-1)
        number = max(self.clock.now_ms(), last + 1)
        name = f"{number:015d}-{_digest(old.topic)}-{self.chance()}{_ENTRY}"
        self.folder.write(name, json.dumps(entry).encode())
        return name

    def mark_sent(self, name: str) -> None:
        """Keep that what the entry announces was published."""
        self.folder.write(_beside(name, _SENT), b"")

    def mark_done(self, name: str) -> None:
        """Keep that the repair which began with the entry was verified."""
        self.folder.write(_beside(name, _DONE), b"")

    def of(self, topic: str) -> Iterator[Entry]:
        """Yield a topic's entries, the last one first. Raises SafetyError for one of the topic's that is torn."""
        names = set(self.folder.names())
        self._warn_of_others(names)
        for _number, name, about in sorted(_entries(names), reverse=True):
            if about and about != _digest(topic):
                continue
            content = self._content(name, is_ours=bool(about))
            if content.get("topic") == topic:
                yield _entry(name, topic, content, names)

    def _content(self, name: str, *, is_ours: bool) -> dict[str, Any]:
        """Read a file. is_ours: its name says that it is about the topic that is asked for."""
        content: Any = None
        with suppress(ValueError, RecursionError):  # no JSON, or a depth of which there is no end
            content = json.loads(self.folder.read(name) or b"")
        if isinstance(content, dict):
            return content
        if is_ours:
            raise SafetyError(f"the journal's file {name} is no JSON object: {_LOOK_AT_IT}")
        log.warning("the journal's file %s/%s is no JSON object, and was passed over", self.folder.location, name)
        return {}

    def _warn_of_others(self, names: set[str]) -> None:
        for name in sorted(names):
            if name.endswith(_ENTRY) and not _NAME.fullmatch(name):
                log.warning("%s/%s is not named as an entry is, and was passed over", self.folder.location, name)


_LOOK_AT_IT = "look at it, since it kept what an undo would put back. Once it is moved away, the entry before it counts"


def _entry(name: str, topic: str, content: dict[str, Any], names: set[str]) -> Entry:
    try:
        return Entry(
            name=name,
            topic=topic,
            position=_position(content.get("position")),
            replaced=base64.b64decode(content["replaced"], validate=True),
            by=base64.b64decode(content["by"], validate=True),
            lost=int(content.get("lost") or 0),
            is_undo=bool(content.get("is_undo")),
            is_again=bool(content.get("is_again")),
            begins=bool(content.get("begins")),
            was_sent="begins" not in content or _beside(name, _SENT) in names,
            is_done=_beside(name, _DONE) in names,
            end=_position(content.get("end")),
            key=str(content.get("key") or ""),
        )
    except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:  # JSON's Infinity overflows
        raise SafetyError(
            f"the journal's file {name} is about {topic} and is torn ({error!r}): {_LOOK_AT_IT}"
        ) from error


def _position(said: Any) -> Position:
    ledger, entry = said or BEFORE_ALL
    return int(ledger), int(entry)


def _beside(name: str, mark: str) -> str:
    return name.removesuffix(_ENTRY) + mark


def _entries(names: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """Yield number, name and topic's digest of the files that are named as entries are; older ones have no digest."""
    for name in names:
        if found := _NAME.fullmatch(name):
            yield int(found[1]), name, found[2] or ""


def _digest(topic: str) -> str:
    return hashlib.sha256(topic.encode()).hexdigest()[: 2 * _CHANCE_BYTES]
