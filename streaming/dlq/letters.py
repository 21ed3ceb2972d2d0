"""Dead letters as an operator sees them: decoded, filtered, grouped, with what was done about them.

Everything in a dead letter may be forged, its reason too. So we only show it, and conclude nothing from it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.dataset as ds

from streaming.config.amounts import topic_from
from streaming.config.settings import Settings
from streaming.errors import ConfigError
from streaming.ports import Pulsar, StoredMessage
from streaming.state import receipts
from streaming.state.settlements import Position, SettlementFolder, Settlements
from udfs import columns as c
from udfs.paths import base_topic, namespace_of, tenant_of, topic_of
from udfs.records import PendingDelete, Reason, Rejection
from udfs.retry import ORIGIN_MESSAGE_ID, REASON, attempt_of
from udfs.wire import decode

NO_REASON = "(none)"  # somebody else's dead-letter policy put it there
OTHER_REASON = "(other)"
OTHER_OWNERS = "(other owners)"
NO_OWNER = "-"
_GROUPS = 10_000  # owners are whatever requests name, invented ones too

# upper bounds in milliseconds
AGES: tuple[tuple[str, int], ...] = (
    ("< 1 h", 3_600_000),
    ("1-24 h", 86_400_000),
    ("1-7 d", 7 * 86_400_000),
    ("> 7 d", 1 << 62),
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message of the dead-letter topic, decoded as far as it can be."""

    message: StoredMessage
    request: PendingDelete | Rejection

    @property
    def place(self) -> Position:
        """Where it stands, as columns.POSITION."""
        at = self.message
        return at.partition, at.ledger_id, at.entry_id, at.batch_index

    @property
    def id(self) -> str:
        """Its own message id, as Java prints it."""
        return self.message.id

    @property
    def origin(self) -> str:
        """Message id of the original request, as the letter says; its own where it says nothing."""
        return self.message.properties.get(ORIGIN_MESSAGE_ID) or self.id

    @property
    def reason(self) -> str:
        """Name of a Reason, NO_REASON or OTHER_REASON."""
        text = self.message.properties.get(REASON)
        if text is None:
            return NO_REASON
        name = text.partition(":")[0]
        return name if name in set(Reason) else OTHER_REASON

    @property
    def owner(self) -> str:
        """The topic it asks for (`persistent://…`), NO_OWNER where it is no request."""
        return topic_of(self.request.managed_ledger) if isinstance(self.request, PendingDelete) else NO_OWNER

    @property
    def attempt(self) -> int:
        """How often it was tried."""
        return attempt_of(self.message.properties)


@dataclass(frozen=True, slots=True)
class DeadLetterFilters:
    """Which dead letters are meant. Empty fields leave none out.

    ids: message ids, the dead letter's own or the original's. owner: a topic, `tenant/ns` or tenant.
    """

    ids: frozenset[str] = frozenset()
    reason: str = ""
    owner: str = ""
    older_than_ms: int = 0

    @property
    def are_empty(self) -> bool:
        """Whether every dead letter is meant."""
        return self == DeadLetterFilters()

    def mean(self, letter: DeadLetter, now_ms: int) -> bool:
        """Whether this one is meant."""
        return (
            (not self.ids or bool({letter.id, letter.origin} & self.ids))
            and self.reason in ("", letter.reason)
            and (not self.owner or self.owner in _names_of(letter.owner))
            and now_ms - letter.message.publish_ms >= self.older_than_ms
        )


@dataclass(slots=True)
class Group:
    """Dead letters alike in state, reason, owner and age. Times in ms."""

    state: str
    reason: str
    owner: str
    age: str
    messages: int = 0
    oldest_ms: int = 1 << 62
    newest_ms: int = 0


@dataclass(slots=True)
class Groups:
    """Adds dead letters up. With `most` groups, owners that are not among them are added up as one."""

    now_ms: int
    most: int = _GROUPS
    known: dict[tuple[str, str, str, str], Group] = field(default_factory=dict)

    def add(self, letter: DeadLetter, state: str) -> None:
        """Count one."""
        published_ms = letter.message.publish_ms
        age = age_of(self.now_ms - published_ms)
        key = (state, letter.reason, letter.owner, age)
        if key not in self.known and len(self.known) >= self.most:
            key = (state, letter.reason, OTHER_OWNERS, age)
        group = self.known.setdefault(key, Group(*key))
        group.messages += 1
        group.oldest_ms = min(group.oldest_ms, published_ms)
        group.newest_ms = max(group.newest_ms, published_ms)

    def sorted(self) -> list[Group]:
        """By state, then the largest first."""
        return sorted(self.known.values(), key=lambda group: (group.state, -group.messages, group.reason, group.owner))


def age_of(age_ms: int) -> str:
    """Name the age class."""
    return next(name for name, below_ms in AGES if age_ms < below_ms)


def filters(ids: Iterable[str], reason: str, owner: str, older_than_ms: int) -> DeadLetterFilters:
    """Build Filters from what an operator typed. Raises ConfigError."""
    if reason and reason not in {*Reason, NO_REASON, OTHER_REASON}:
        raise ConfigError(f"reason {reason}: no such reason; `ledger-reaper dlq list` shows those there are")
    return DeadLetterFilters(frozenset(ids), reason, _full_owner(owner), older_than_ms)


def dead_letters(settings: Settings, pulsar: Pulsar) -> Iterator[DeadLetter]:
    """Every dead letter that is stored now, oldest first in each partition. Raises UnavailableError, ConfigError."""
    topic = settings.topics.dead_letter
    if pulsar.admin.partitions(topic) is None:
        raise ConfigError(f"there is no {topic}: the service makes it at its first start")
    for message in pulsar.reader.read(pulsar.admin.last_positions(topic)):
        yield DeadLetter(message, decode(message.payload, settings.service.max_request_bytes))


def selected(
    settings: Settings, pulsar: Pulsar, chosen: DeadLetterFilters, now_ms: int, known: Settlements
) -> Iterator[tuple[DeadLetter, str]]:
    """The dead letters that are meant, with the state of each."""
    for letter in dead_letters(settings, pulsar):
        if chosen.mean(letter, now_ms):
            yield letter, known.of(letter.place)


def groups(settings: Settings, pulsar: Pulsar, chosen: DeadLetterFilters, now_ms: int) -> list[Group]:
    """What `dlq list` shows."""
    counted = Groups(now_ms)
    for letter, state in selected(settings, pulsar, chosen, now_ms, SettlementFolder(settings.state_dir).settled()):
        counted.add(letter, state)
    return counted.sorted()


def described(settings: Settings, letter: DeadLetter, state: str) -> dict[str, Any]:
    """What `dlq show` tells of one: decoded, raw, and its history from receipts."""
    message = letter.message
    folder = SettlementFolder(settings.state_dir)
    condition = ds.field(c.ORIGIN_MESSAGE_ID) == letter.origin
    history = [*receipts.rows(settings.state_dir, condition), *folder.written_off(condition)]
    return {
        "id": letter.id,
        "origin": letter.origin,
        "state": state,
        "reason": letter.reason,
        "reason_text": message.properties.get(REASON, ""),
        "owner": letter.owner,
        "attempt": letter.attempt,
        "partition": message.partition,
        "publish_ms": message.publish_ms,
        "key": message.key,
        "properties": dict(message.properties),
        **_decoded(letter.request),
        "payload_utf8": message.payload.decode("utf-8", "replace"),
        "payload_hex": message.payload.hex(),
        "history": [_history_fields(row) for row in sorted(history, key=lambda row: int(row[c.AT_MS]))],
        "replayed_as": [{"run": run, "message_id": text} for run, text in folder.published_as(letter.place)],
    }


def _decoded(request: PendingDelete | Rejection) -> dict[str, Any]:
    if isinstance(request, Rejection):
        return {"request": None, "rejection": {"reason": str(request.reason), "detail": request.detail}}
    return {"request": _request_fields(request), "rejection": None}


def _request_fields(request: PendingDelete) -> Mapping[str, Any]:
    return {
        "topic": topic_of(request.managed_ledger),
        "component": str(request.component),
        "ledger_type": str(request.ledger_type),
        "ledger_id": request.ledger_id,
        "cursor_name": request.cursor_name,
        "schema_id": request.schema_id,
        "uuid": request.part,
    }


def _history_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in (c.AT_MS, c.OUTCOME, c.REASON, c.DETAIL, c.ATTEMPT, c.ORIGIN_MESSAGE_ID)}


def _names_of(owner: str) -> set[str]:
    return {owner} if owner == NO_OWNER else {owner, base_topic(owner), namespace_of(owner), tenant_of(owner)}


def _full_owner(owner: str) -> str:
    """A topic in its full form; a tenant or namespace as it is."""
    return topic_from(owner, "--owner") if owner.count("/") > 1 else owner
