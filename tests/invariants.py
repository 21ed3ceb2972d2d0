"""The service's nine promises, each a function that fails where an observer of the cluster sees the promise broken.

The tests in tests/model call them after every step. The observer learns who refers to which ledger from what brokers
wrote and hold in memory, never from the service's own parsers.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from udfs.records import Outcome


@dataclass(frozen=True, slots=True)
class Deletion:
    """A ledger that the service deleted, and what was true at that moment.

    owner: the reference key of the topic, cursor or schema that the ledger belongs to.
    asked_for: the reference keys of the durable requests for the ledger.
    unknown: the facts that nobody could read, unless a cached reference with the right version said the same.
    journaled: the journal held a durable entry with the same path, bytes and version.
    is_current: the epoch was that of the instance which deleted.
    sweep: the number of the sweep which deleted.
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


@dataclass(frozen=True, slots=True)
class Untouched:
    """What loading a topic changes: a look at some topics.

    versions: of each znode of their managed ledgers and cursors, with the number of its children. ledgers: those that
    say that they belong to these topics. bundles: those that a broker owns.
    """

    versions: Mapping[str, tuple[int, int]]
    ledgers: frozenset[int]
    bundles: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Inspection:
    """A look before something ran, and one after it. asked_for: the ledgers that it was to delete."""

    before: Untouched
    after: Untouched
    asked_for: frozenset[int] = frozenset()


class World(Protocol):
    """What the observer sees.

    replays: pairs of what was left after a clean run, and after a run that was cut short and repeated.
    allowances: how many deletes the limits, or a person, allowed each sweep, by the sweep's number.
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
        """Return who refers to each ledger now."""
        ...

    def accepted(self) -> frozenset[int]:
        """Return the ids of all requests that were ever published."""
        ...

    def waiting(self) -> Sequence[int]:
        """Return the ids of the requests that are in a request topic, in RETRY, or wait to come due."""
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
    """2. The service deletes a ledger only where the ledger's own metadata names the owner that the request names."""
    for deletion in world.deletions:
        assert deletion.owner in deletion.asked_for, f"{deletion} was asked for by others only"


def never_unknown(world: World) -> None:
    """3. The service takes a ledger for used where it could not read a fact about it. A 404 does not mean deleted."""
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
    """6. Before it deletes, the service stores what an undo needs; afterwards it looks that the ledger is absent."""
    for deletion in world.deletions:
        assert deletion.journaled, f"{deletion} can't be undone"
    for final in world.finals:
        assert final.outcome is not Outcome.DELETED or final.is_absent, f"{final}, and it is there"


def bounded(world: World) -> None:
    """7. No fault and no flood of forged requests deletes more than the limits allow, until a person has looked.

    The service deletes nothing that nobody asked for, and an instance that another one replaced deletes nothing.
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


class Topics(Protocol):
    """What an observer sees of request topics whose messages are of any kind.

    messages: all that were published, by partition and position; markers are none. receipts: the same of each receipt.
    has_had_time: whether the service has been let run long enough since the last message.
    """

    @property
    def messages(self) -> Collection[tuple[str, int, int]]: ...
    @property
    def receipts(self) -> Sequence[tuple[str, int, int]]: ...
    @property
    def ended_by(self) -> Exception | None: ...
    @property
    def has_had_time(self) -> bool: ...


def nobody_can_stop_it(topics: Topics) -> None:
    """8. Whatever anyone publishes, each message ends in exactly one receipt, and the service goes on."""
    assert topics.ended_by is None
    receipts = Counter(topics.receipts)
    assert not [each for each, n in receipts.items() if n > 1], f"several receipts: {receipts}"
    assert not receipts.keys() - set(topics.messages), "receipts of what is no message"
    if topics.has_had_time:
        assert not set(topics.messages) - receipts.keys(), "messages without a receipt"


OF_TOPICS: tuple[Callable[[Topics], None], ...] = (nobody_can_stop_it,)


def read_only(seen: Inspection) -> None:
    """9. What inspects topics, and what deletes the ledgers that were asked for, does nothing else to them."""
    before, after = seen.before, seen.after
    changed = {path for path, was in before.versions.items() if after.versions.get(path) != was}
    assert not changed, f"were written: {sorted(changed)[:5]}"
    assert not after.versions.keys() - before.versions.keys(), "znodes were created"
    assert not before.ledgers - after.ledgers - seen.asked_for, "ledgers were deleted that were not asked for"
    assert not after.ledgers - before.ledgers, "ledgers were created"
    assert after.bundles == before.bundles, "bundles were assigned"


OF_INSPECTIONS: tuple[Callable[[Inspection], None], ...] = (read_only,)
