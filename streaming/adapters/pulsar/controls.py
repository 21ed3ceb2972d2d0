"""Whether a broker shows other entries at the moment: else an entry that it does not show is not to blame.

A broker whose bookies don't answer still tells a topic's stats, from its memory, and shows no entry. So before an entry
is given up, another one is asked for, with the same patience: one of the same ledger that was read before if there is
one, then others of that ledger, of its neighbours, of the topic's other partitions, and of other topics. A sender can
make his own entries such that nobody can read them, and not those of others. One that was not shown is asked for again
only with more patience, and one of another partition that was shown is asked for before its neighbours: a sender could
else make us wait for the same silent entries again and again.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

from streaming.adapters.pulsar.http import Body
from streaming.errors import ReaperError
from udfs.formats.internal_stats import InternalStats, Position

_SIBLINGS = 4  # partitions of the topic, from the first on
_MOST = 16  # entries that are asked for until one is shown
_BYTES = 1  # of the answer


class EntryAdmin(Protocol):
    """What is asked of the admin API, as PulsarAdmin does it."""

    def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
        """Return what the broker shows of one entry; None where it gives no answer in time."""
        ...

    def internal_stats(self, partition: str) -> InternalStats:
        """Return what the partition's own broker says of it. Raises UnavailableError."""
        ...


_Entry = tuple[str, Position]  # of a partition


@dataclass(slots=True)
class Controls:
    """Other entries than those of which the broker tells nothing. Threads may share it.

    elsewhere: partitions of other topics, in which there are entries of ours. gives_up: entries are given up though the
    broker shows no other one either.
    """

    admin: EntryAdmin
    partition: str
    elsewhere: Sequence[str] = ()
    gives_up: bool = False
    _shown: dict[int, Position] = field(default_factory=dict, init=False)  # of each ledger one that was shown
    _sent: dict[int, Position] = field(default_factory=dict, init=False)
    _silent: set[Position] = field(default_factory=set, init=False)
    _mute: dict[_Entry, float] = field(default_factory=dict, init=False)  # those that were not shown: within which time
    _elsewhere: _Entry | None = field(default=None, init=False)

    def was_shown(self, position: Position) -> None:
        """The broker has shown this entry."""
        self._shown[position[0]] = position

    def was_sent(self, position: Position) -> None:
        """The broker has sent this entry to a reader."""
        self._sent[position[0]] = position

    def are_shown(self, instead_of: Position, patience_seconds: float) -> bool | None:
        """Return whether the broker shows another entry within that time; None where there is none to ask for.

        Raises UnavailableError.
        """
        self._silent.add(instead_of)
        if (known := self._shown.get(instead_of[0])) is not None:
            return self._is_shown(self.partition, known, patience_seconds)
        found: bool | None = None
        left = _MOST
        for partition, position in self._candidates(instead_of):
            found = False
            if patience_seconds <= self._mute.get((partition, position), 0.0):
                continue
            if self._is_shown(partition, position, patience_seconds):
                if partition == self.partition:
                    self.was_shown(position)
                else:
                    self._elsewhere = (partition, position)
                return True
            self._mute[partition, position] = patience_seconds
            left -= 1
            if not left:
                break
        return found

    def _candidates(self, instead_of: Position) -> Iterator[_Entry]:
        ledger = instead_of[0]
        asked = set(self._silent)
        here = [self._sent.get(ledger), *self._stored(self.partition, ledger)]
        for position in here:
            if position is not None and position not in asked:
                asked.add(position)
                yield self.partition, position
        if self._elsewhere is not None:
            yield self._elsewhere
        topic, is_partition, _ = self.partition.rpartition("-partition-")
        siblings = [f"{topic}-partition-{number}" for number in range(_SIBLINGS)] if is_partition else []
        for other in dict.fromkeys((*siblings, *self.elsewhere)):
            if other != self.partition:
                with suppress(ReaperError):
                    yield from ((other, position) for position in [*self._stored(other, None)][:2])

    def _stored(self, partition: str, ledger: int | None) -> Iterator[Position]:
        """Yield a few entries of a partition: of that ledger the newest, the first and one between, then of others."""
        ledgers = [(each, entries) for each, entries in self.admin.internal_stats(partition).ledgers if entries]
        for each, entries in ledgers:
            if each == ledger:
                yield from ((each, entries - 1), (each, 0), (each, entries // 2))
        others = [(each, entries) for each, entries in ledgers if each != ledger]
        for each, entries in dict.fromkeys((*others[:-3:-1], *others[:1])):
            yield each, entries - 1

    def _is_shown(self, partition: str, position: Position, patience_seconds: float) -> bool:
        answer = self.admin.entry(partition, position, _BYTES, patience_seconds)
        return answer is not None and answer.status == HTTPStatus.OK
