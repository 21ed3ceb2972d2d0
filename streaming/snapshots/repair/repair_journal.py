"""The journal of repairs: every message that they replaced, so that `snapshots undo` can restore it.

1. An entry is a file NUMBER-TOPIC-SUFFIX.json, written before anything is sent and never changed. Older versions wrote
   NUMBER.json.
2. Empty files beside an entry record progress: the same name with .sent, once the new message is published; .done, once
   the repair that started with the entry was verified. Entries of older versions have neither: they count as sent, and
   no run resumes them. For a migration, the first entry of a run has them: .sent, once all entries of the run are
   written; .done, once the new form was verified, or the migration was undone.
3. Files that are not entries are logged and skipped. A torn file whose name contains the topic's digest stops the
   command, and so does any file that the store can't read just now.
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
_SUFFIX_BYTES = 4


def _random_suffix() -> str:
    return secrets.token_hex(_SUFFIX_BYTES)


class Act(StrEnum):
    """The operation that replaces a message."""

    REPAIR = "REPAIR"
    REPAIR_OF_HALF = "REPAIR_OF_HALF"  # of a topic whose index was written during a replay
    AGAIN = "AGAIN"  # a repair replaces an index that the topic's broker wrote during the replay
    UNDO = "UNDO"
    MIGRATION = "MIGRATION"  # conversion of a topic's snapshot to another form
    REMOVAL = "REMOVAL"  # of a message that no broker can decode; the entry's topic is the system topic


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairEntry:
    """One message that was replaced."""

    name: str
    topic: str
    position: Position  # of the replaced message
    replaced: bytes
    by: bytes  # the new value; in a migration's entry: the name of its run's first entry, empty in the first entry
    lost: int  # how many segments of the replaced index were lost
    is_undo: bool  # an undo replaced it
    is_again: bool  # a broker wrote it during a replay, so no undo restores it
    begins: bool  # a repair started with it
    was_sent: bool  # marked .sent
    is_done: bool  # marked .done
    end: Position = BEFORE_ALL  # the last position of the topic before the new message; older versions omit it
    key: str = ""  # of the message


@dataclass(frozen=True, slots=True)
class RepairJournal:
    """The entries in a folder. Every method raises UnavailableError if the folder can't be read or written."""

    folder: Folder
    clock: Clock
    suffix: Callable[[], str] = _random_suffix  # eight random hex digits

    def write(self, old: ReadValue, new: bytes, lost: int, act: Act, end: Position) -> str:
        """Write a message that is about to be replaced; returns the entry's name once it is on disk.

        Args:
            old: the message.
            new: the new value.
            lost: how many segments of an old index are lost.
            act: the operation.
            end: the last position of the message's topic; the new message comes after it.
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
        # later entries have higher numbers, even if the clock was set back
        number = max(self.clock.now_ms(), last + 1)
        # with the topic's digest, so that an unreadable file of another topic can be skipped; the suffix keeps two
        # processes from writing the same file
        name = f"{number:015d}-{_digest(old.topic)}-{self.suffix()}{_ENTRY}"
        self.folder.write(name, json.dumps(entry).encode())
        return name

    def mark_sent(self, name: str) -> None:
        """Record that the new message of the entry was published."""
        self.folder.write(_beside(name, _SENT), b"")

    def mark_done(self, name: str) -> None:
        """Record that the repair that started with the entry was verified."""
        self.folder.write(_beside(name, _DONE), b"")

    def of(self, topic: str) -> Iterator[RepairEntry]:
        """Yield a topic's entries, the newest first. Raises SafetyError for a torn entry of the topic."""
        names = set(self.folder.names())
        self._warn_of_others(names)
        for _number, name, digest in sorted(_entries(names), reverse=True):
            if digest and digest != _digest(topic):
                continue
            content = self._content(name, is_ours=bool(digest))
            if content.get("topic") == topic:
                yield _entry(name, topic, content, names)

    def _content(self, name: str, *, is_ours: bool) -> dict[str, Any]:
        """Read a file. is_ours: its name contains the digest of the requested topic."""
        content: Any = None
        with suppress(ValueError, RecursionError):  # no JSON, or nested too deeply
            content = json.loads(self.folder.read(name) or b"")
        if isinstance(content, dict):
            return content
        # not skipped: an undo would then restore the value in the previous entry, which is older (decision 32)
        if is_ours:
            raise SafetyError(f"the journal's file {name} is no JSON object: {_CHECK_IT}")
        log.warning("the journal's file %s/%s is no JSON object, and was skipped", self.folder.location, name)
        return {}

    def _warn_of_others(self, names: set[str]) -> None:
        for name in sorted(names):
            if name.endswith(_ENTRY) and not _NAME.fullmatch(name):
                log.warning("%s/%s has no entry's name, and was skipped", self.folder.location, name)


_CHECK_IT = "check it, since an undo would restore its content. Once it is moved away, the previous entry counts"


def _entry(name: str, topic: str, content: dict[str, Any], names: set[str]) -> RepairEntry:
    try:
        return RepairEntry(
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
        raise SafetyError(f"the journal's file {name} is about {topic} and is torn ({error!r}): {_CHECK_IT}") from error


def _position(value: Any) -> Position:
    ledger, entry = value or BEFORE_ALL
    return int(ledger), int(entry)


def _beside(name: str, mark: str) -> str:
    return name.removesuffix(_ENTRY) + mark


def _entries(names: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """Yield number, name and topic's digest of the files with an entry's name; older names have no digest."""
    for name in names:
        if match := _NAME.fullmatch(name):
            yield int(match[1]), name, match[2] or ""


def _digest(topic: str) -> str:
    return hashlib.sha256(topic.encode()).hexdigest()[: 2 * _SUFFIX_BYTES]
