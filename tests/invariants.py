"""The service's nine promises, each a function that fails if an observer of the cluster sees the promise broken.

The tests in tests/model call them after every step. The observer gets the references to ledgers from the model's
brokers, from their writes and their memory, never from the service's own parsers.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from udfs.records import Outcome


@dataclass(frozen=True, slots=True)
class Deletion:
    """A ledger that the service deleted, and the state at that moment."""

    ledger_id: int
    owner: str  # the reference key of the topic, cursor or schema that the ledger belongs to
    referred_by: frozenset[str]
    requested_keys: frozenset[str]  # the reference keys of the durable requests for the ledger
    unknown: tuple[str, ...]  # facts that could not be read, unless a cached reference with the right version had them
    journaled: bool  # the journal held a durable entry with the same path, bytes and version
    is_current: bool  # the epoch was that of the deleting instance
    sweep: int  # the number of the deleting sweep


@dataclass(frozen=True, slots=True)
class Final:
    """A final receipt."""

    message: int
    ledger_id: int
    outcome: Outcome
    is_absent: bool  # the ledger was absent when the receipt was written


@dataclass(frozen=True, slots=True)
class Untouched:
    """The state of some topics that a load would change."""

    versions: Mapping[str, tuple[int, int]]  # of the znodes of managed ledgers and cursors, with their child counts
    ledgers: frozenset[int]  # whose metadata name these topics
    bundles: frozenset[str] = frozenset()  # that a broker owns


@dataclass(frozen=True, slots=True)
class Inspection:
    """The state before and after a command."""

    before: Untouched
    after: Untouched
    requested: frozenset[int] = frozenset()  # ledgers that the command was to delete


class World(Protocol):
    """What the observer sees.

    Attributes:
        replays: pairs of the ledgers left after a clean run, and after an interrupted and repeated run.
        allowances: the deletes that the limits, or an operator, allowed each sweep, by the sweep's number.
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
        """Return the current references to each ledger."""
        ...

    def accepted(self) -> frozenset[int]:
        """Return the ids of all requests that were ever published."""
        ...

    def waiting(self) -> Sequence[int]:
        """Return the ids of the requests that are in a request topic, in RETRY, or wait to become due."""
        ...


def never_in_use(world: World) -> None:
    """1. A ledger or object that any owner refers to at the moment of deletion is never deleted, whatever the
    request contains, however stale the cache, however many sweepers run. No owner refers to it later, either.
    """
    for deletion in world.deletions:
        assert not deletion.referred_by, f"{deletion} was in use"
    referred = world.references().keys() & {deletion.ledger_id for deletion in world.deletions}
    assert not referred, f"deleted, and referred to now: {referred}"


def never_another_owners(world: World) -> None:
    """2. The service deletes a ledger only if the ledger's own metadata names the owner that the request names."""
    for deletion in world.deletions:
        assert deletion.owner in deletion.requested_keys, f"{deletion} was requested only for other owners"


def never_unknown(world: World) -> None:
    """3. The service treats a ledger as used if it could not read a fact about it. A 404 does not mean deleted."""
    for deletion in world.deletions:
        assert not deletion.unknown, f"{deletion} depends on facts that could not be read"


def nothing_lost(world: World) -> None:
    """4. Each request ends in exactly one final receipt (DELETED, ALREADY_GONE, DEAD_LETTER) or is still in
    __ledger_deletion or RETRY.
    """
    ends = Counter(final.message for final in world.finals)
    waits = Counter(world.waiting())
    for message in world.accepted():
        assert ends[message] + waits[message] == 1, f"{message}: {ends[message]} receipts, waits {waits[message]} times"


def repeatable(world: World) -> None:
    """5. The same batch again, complete or from any crash point, ends in the same state."""
    for clean, repeated in world.replays:
        assert clean == repeated


def accounted(world: World) -> None:
    """6. Before a delete, the service stores what an undo needs; afterwards it checks that the ledger is absent."""
    for deletion in world.deletions:
        assert deletion.journaled, f"{deletion} can't be undone"
    for final in world.finals:
        assert final.outcome is not Outcome.DELETED or final.is_absent, f"{final}, and the ledger exists"


def bounded(world: World) -> None:
    """7. No fault and no flood of forged requests deletes more than the limits allow, until an operator has decided.

    The service deletes nothing without a request, and an instance that was replaced deletes nothing.
    """
    for number, deleted in Counter(deletion.sweep for deletion in world.deletions).items():
        allowed = world.allowances[number]
        assert deleted <= allowed, f"sweep {number} deleted {deleted}, allowed were {allowed}"
    for deletion in world.deletions:
        assert deletion.requested_keys, f"{deletion} without a request"
        assert deletion.is_current, f"{deletion} by an instance that was replaced"


PROMISES: tuple[Callable[[World], None], ...] = (
    never_in_use,
    never_another_owners,
    never_unknown,
    nothing_lost,
    repeatable,
    accounted,
    bounded,
)


class Topics(Protocol):
    """What an observer sees of request topics with messages of any kind.

    Attributes:
        messages: all published messages by partition and position; markers are no messages.
        receipts: partition and position of each receipt.
        has_had_time: the service has run long enough since the last message.
    """

    @property
    def messages(self) -> Collection[tuple[str, int, int]]: ...
    @property
    def receipts(self) -> Sequence[tuple[str, int, int]]: ...
    @property
    def ended_by(self) -> Exception | None: ...
    @property
    def has_had_time(self) -> bool: ...


def no_sender_stops_it(topics: Topics) -> None:
    """8. Whatever a client publishes, each message ends in exactly one receipt, and the service continues."""
    assert topics.ended_by is None
    receipts = Counter(topics.receipts)
    assert not [message for message, n in receipts.items() if n > 1], f"several receipts: {receipts}"
    assert not receipts.keys() - set(topics.messages), "receipts without a message"
    if topics.has_had_time:
        assert not set(topics.messages) - receipts.keys(), "messages without a receipt"


OF_TOPICS: tuple[Callable[[Topics], None], ...] = (no_sender_stops_it,)


def read_only(seen: Inspection) -> None:
    """9. A command that inspects topics, or deletes requested ledgers, changes nothing else in these topics."""
    before, after = seen.before, seen.after
    changed = {path for path, version in before.versions.items() if after.versions.get(path) != version}
    assert not changed, f"znodes were written: {sorted(changed)[:5]}"
    assert not after.versions.keys() - before.versions.keys(), "znodes were created"
    assert not before.ledgers - after.ledgers - seen.requested, "ledgers were deleted without a request"
    assert not after.ledgers - before.ledgers, "ledgers were created"
    assert after.bundles == before.bundles, "bundles were assigned"


OF_INSPECTIONS: tuple[Callable[[Inspection], None], ...] = (read_only,)
