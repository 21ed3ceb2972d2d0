"""The seven promises of the design as functions of what an observer of the cluster can see; true after every step.

An observer knows who refers to what, from what brokers wrote and hold in memory, never from our own parsers.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from udfs.records import Outcome


@dataclass(frozen=True, slots=True)
class Deletion:
    """A ledger that the service deleted, and how the world stood at that moment.

    owner: whose the ledger is, as reference key. asked_for: keys of the requests for it that were durable by then.
    unknown: facts that nobody could read and that no cached, version-checked reference stood in for.
    journaled: an entry with the same path, bytes and version was durable. is_current: the epoch was the instance's.
    sweep: number of the sweep that did it.
    """

    ledger_id: int
    owner: str
    referred_by: frozenset[str]
    asked_for: frozenset[str]
    unknown: tuple[str, ...]
    journaled: bool
    is_current: bool
    sweep: int


@dataclass(frozen=True, slots=True)
class Final:
    """A final receipt. is_absent: whether the ledger was absent when it was written."""

    message: int
    ledger_id: int
    outcome: Outcome
    is_absent: bool


class World(Protocol):
    """What there is to see. accepted: ids of all messages ever; waiting: those in a request or retry topic now.

    replays: what was left after a clean run, and after one cut short and repeated. allowances: by number of a sweep,
    how many deletes a person, or the limits, allowed it.
    """

    @property
    def deletions(self) -> Sequence[Deletion]: ...
    @property
    def finals(self) -> Sequence[Final]: ...
    @property
    def replays(self) -> Sequence[tuple[frozenset[str], frozenset[str]]]: ...
    @property
    def allowances(self) -> Mapping[int, int]: ...

    def references(self) -> Mapping[int, frozenset[str]]:
        """Who refers to which ledger now."""
        ...

    def accepted(self) -> frozenset[int]:
        """All messages that ever came in."""
        ...

    def waiting(self) -> Sequence[int]:
        """Messages that will be delivered again."""
        ...


def never_in_use(world: World) -> None:
    """1. A ledger or object that any owner refers to at the moment of deletion is never deleted, whatever the
    request says, however stale the cache, however many sweepers run. Nor does anyone come to refer to it later.
    """
    for deletion in world.deletions:
        assert not deletion.referred_by, f"{deletion} was in use"
    taken_up = world.references().keys() & {deletion.ledger_id for deletion in world.deletions}
    assert not taken_up, f"deleted, and referred to now: {taken_up}"


def never_anothers(world: World) -> None:
    """2. What is deleted says itself, in its own metadata, that it belonged to the owner named by the request."""
    for deletion in world.deletions:
        assert deletion.owner in deletion.asked_for, f"{deletion} was asked for by others only"


def never_unknown(world: World) -> None:
    """3. A fact that could not be read counts as "in use". Not found (404) is not "deleted"."""
    for deletion in world.deletions:
        assert not deletion.unknown, f"{deletion} rests on what nobody could read"


def nothing_lost(world: World) -> None:
    """4. Each request ends in exactly one final receipt (DELETED, ALREADY_GONE, DEAD_LETTER) or is still in
    __ledger_deletion or RETRY.
    """
    ends = Counter(final.message for final in world.finals)
    waits = Counter(world.waiting())
    for message in world.accepted():
        assert ends[message] + waits[message] == 1, f"{message}: {ends[message]} receipts, waits {waits[message]} times"


def repeatable(world: World) -> None:
    """5. The same batch again, whole or from any crash point, ends in the same state."""
    for clean, repeated in world.replays:
        assert clean == repeated


def accounted(world: World) -> None:
    """6. Before a delete, what is needed to undo it is durable; after it, absence was verified."""
    for deletion in world.deletions:
        assert deletion.journaled, f"{deletion} can't be undone"
    for final in world.finals:
        assert final.outcome is not Outcome.DELETED or final.is_absent, f"{final}, and it is there"


def bounded(world: World) -> None:
    """7. No fault or forged flood deletes more than the configured blast radius before a person looks.

    Nor anything beyond what was asked for, nor anything at all by an instance that another one has replaced.
    """
    for number, deleted in Counter(deletion.sweep for deletion in world.deletions).items():
        allowed = world.allowances[number]
        assert deleted <= allowed, f"sweep {number} deleted {deleted}, allowed were {allowed}"
    for deletion in world.deletions:
        assert deletion.asked_for, f"nobody asked for {deletion}"
        assert deletion.is_current, f"{deletion} by an instance that was replaced"


PROMISES: tuple[Callable[[World], None], ...] = (
    never_in_use,
    never_anothers,
    never_unknown,
    nothing_lost,
    repeatable,
    accounted,
    bounded,
)
