"""Requests control entries: entries that show whether the broker currently returns any entry at all.

A broker whose bookies do not answer still returns a topic's stats from its memory, but no entry. So before an entry is
given up, other entries are requested with the same timeout. If a request has returned an entry of the same ledger
before, only that entry is requested. Otherwise requests go on until one returns an entry, in this order: an entry of
that ledger that a reader got, others of that ledger, of the partition's other ledgers, of the topic's other partitions,
and of other topics.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus
from typing import Protocol

from streaming.adapters.pulsar.http import Body
from streaming.errors import ReaperError
from udfs.formats.internal_stats import Ensembles, InternalStats, Position

_SIBLINGS = 4  # partitions of the topic, from the first on
_MAX_REQUESTS = 16  # for one check
_BYTES = 1  # of the answer


class EntryAdmin(Protocol):
    """The calls of PulsarAdmin that concern entries."""

    def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
        """Return the broker's answer for an entry; None if it does not answer in time. Raises UnavailableError."""
        ...

    def internal_stats(self, partition: str) -> InternalStats:
        """Return the internalStats of the partition's broker. Raises UnavailableError."""
        ...

    def ensembles(self, partition: str) -> Mapping[int, Ensembles]:
        """Return ledger -> ensembles; without those that the broker does not report.

        Raises UnavailableError, RefusedError.
        """
        ...


class Control(Enum):
    """The result of a check with control entries."""

    SHOWN = auto()  # the broker returned a control entry
    NOT_SHOWN = auto()  # the broker returned none of them
    NONE_STORED = auto()  # there is no entry that could serve as a control


_Entry = tuple[str, Position]  # partition, position


@dataclass(slots=True)
class ControlEntries:
    """Control entries for the entries of a partition. Thread-safe."""

    admin: EntryAdmin
    partition: str
    other_partitions: Sequence[str] = ()  # of our own topics
    gives_up: bool = False  # entries are given up even if the broker returns no control entry
    _shown: dict[int, Position] = field(default_factory=dict, init=False)  # ledger -> an entry that was returned
    _sent: dict[int, Position] = field(default_factory=dict, init=False)  # ledger -> an entry that a reader got
    # entries for which a check was made, since they were not returned; they are no controls
    _withheld: set[Position] = field(default_factory=set, init=False)
    # Controls that were not returned, with the longest timeout of their requests. A control is requested again only
    # with a longer timeout; otherwise each check would wait for the same entries again, and a sender could cause that.
    _timeouts: dict[_Entry, float] = field(default_factory=dict, init=False)
    # An entry of another partition that was returned. It is requested before others of other partitions, for the same
    # reason.
    _shown_elsewhere: _Entry | None = field(default=None, init=False)

    def was_shown(self, position: Position) -> None:
        """Record that the broker returned this entry to a request."""
        self._shown[position[0]] = position

    def was_sent(self, position: Position) -> None:
        """Record that the broker sent this entry to a reader."""
        self._sent[position[0]] = position

    def check(self, withheld: Position, timeout_seconds: float) -> Control:
        """Check whether the broker, which has not returned `withheld`, returns other entries within the timeout.

        Raises UnavailableError.
        """
        self._withheld.add(withheld)
        if (shown := self._shown.get(withheld[0])) is not None:
            return Control.SHOWN if self._is_shown((self.partition, shown), timeout_seconds) else Control.NOT_SHOWN
        result = Control.NONE_STORED
        requests_left = _MAX_REQUESTS
        for control in self._candidates(withheld[0]):
            result = Control.NOT_SHOWN
            if timeout_seconds <= self._timeouts.get(control, 0.0):
                continue
            if self._is_shown(control, timeout_seconds):
                self._remember_shown(control)
                return Control.SHOWN
            self._timeouts[control] = timeout_seconds
            requests_left -= 1
            if not requests_left:
                break
        return result

    def returns_sibling_of(self, position: Position, ensembles: Ensembles, timeout_seconds: float) -> bool:
        """Return whether the broker returns an entry now that the same bookies store. Raises UnavailableError."""
        ledger, entry = position
        entries = dict(self.admin.internal_stats(self.partition).ledgers).get(ledger, 0)
        siblings = ensembles.siblings(entry, entries)
        known = [at for at in (self._shown.get(ledger), self._sent.get(ledger)) if at is not None and at[1] in siblings]
        for sibling in dict.fromkeys((*known, *_spread(ledger, siblings))):
            control = self.partition, sibling
            if sibling in self._withheld or timeout_seconds <= self._timeouts.get(control, 0.0):
                continue
            if self._is_shown(control, timeout_seconds):
                return True
        return False

    def _remember_shown(self, control: _Entry) -> None:
        if control[0] == self.partition:
            self.was_shown(control[1])
        else:
            self._shown_elsewhere = control

    def _candidates(self, ledger: int) -> Iterator[_Entry]:
        excluded = set(self._withheld)
        for position in (self._sent.get(ledger), *self._stored(self.partition, ledger)):
            if position is not None and position not in excluded:
                excluded.add(position)
                yield self.partition, position
        if self._shown_elsewhere is not None:
            yield self._shown_elsewhere
        # a sender can make its own entries unreadable, but not those of others
        for other in self._other_partitions():
            with suppress(ReaperError):
                yield from ((other, position) for position in [*self._stored(other, None)][:2])

    def _other_partitions(self) -> list[str]:
        topic, is_partition, _ = self.partition.rpartition("-partition-")
        siblings = [f"{topic}-partition-{number}" for number in range(_SIBLINGS)] if is_partition else []
        return [other for other in dict.fromkeys((*siblings, *self.other_partitions)) if other != self.partition]

    def _stored(self, partition: str, ledger: int | None) -> Iterator[Position]:
        """Yield the newest, the first and the middle entry of this ledger; then the last entry of a few other ledgers.

        The other ledgers are the newest two and the oldest.
        """
        ledgers = [(number, entries) for number, entries in self.admin.internal_stats(partition).ledgers if entries]
        for number, entries in ledgers:
            if number == ledger:
                yield from _spread(number, range(entries))
        others = [(number, entries) for number, entries in ledgers if number != ledger]
        for number, entries in dict.fromkeys((*others[:-3:-1], *others[:1])):
            yield number, entries - 1

    def _is_shown(self, control: _Entry, timeout_seconds: float) -> bool:
        answer = self.admin.entry(*control, _BYTES, timeout_seconds)
        return answer is not None and answer.status == HTTPStatus.OK


def _spread(ledger: int, entries: range) -> list[Position]:
    """Return the newest, the first and the middle one of a ledger's entries."""
    return [(ledger, entries[number]) for number in (-1, 0, len(entries) // 2) if entries]
