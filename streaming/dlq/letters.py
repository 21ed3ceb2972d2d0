"""Dead letters for the operator: decoded, filtered, grouped, with their state."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.dataset as ds

from streaming.config.amounts import one_of, topic_from
from streaming.config.settings import Settings
from streaming.errors import ConfigError
from streaming.ports import Pulsar, StoredMessage
from streaming.state import receipts
from streaming.state.settlements import WAITING, Position, SettlementFolder, Settlements, position_of
from udfs import columns as c
from udfs.paths import base_topic, namespace_of, tenant_of, topic_of
from udfs.records import PendingDelete, Reason, Rejection
from udfs.requests.request_format import decode
from udfs.requests.retry import ORIGIN_MESSAGE_ID, REASON, attempt_of

NO_REASON = "(none)"  # of a letter that another consumer's dead-letter policy published
OTHER_REASON = "(other)"
OTHER_OWNERS = "(other owners)"
NO_OWNER = "-"
_GROUPS = 10_000  # bounded, because requests may name any number of invented owners

# upper bounds in milliseconds
AGES: tuple[tuple[str, int], ...] = (
    ("< 1 h", 3_600_000),
    ("1-24 h", 86_400_000),
    ("1-7 d", 7 * 86_400_000),
    ("> 7 d", 1 << 62),
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message of the dead-letter topic, decoded as far as possible."""

    message: StoredMessage
    request: PendingDelete | Rejection

    @property
    def position(self) -> Position:
        """Its columns.POSITION."""
        return position_of(self.message)

    @property
    def id(self) -> str:
        """Its message id, in Java's form."""
        return self.message.id

    @property
    def origin(self) -> str:
        """Message id of the original request according to the letter's property; without it, the letter's own id."""
        return self.message.properties.get(ORIGIN_MESSAGE_ID) or self.id

    @property
    def reason(self) -> str:
        """The name of a Reason, NO_REASON or OTHER_REASON."""
        return _reason_of(self.message)

    @property
    def owner(self) -> str:
        """The topic that the request names (`persistent://…`); NO_OWNER if it is no request."""
        return topic_of(self.request.managed_ledger) if isinstance(self.request, PendingDelete) else NO_OWNER

    @property
    def attempt(self) -> int:
        """How often the request was tried."""
        return attempt_of(self.message.properties)


@dataclass(frozen=True, slots=True)
class DeadLetterFilters:
    """Selects dead letters that match every field that is not empty."""

    ids: frozenset[str] = frozenset()  # message ids, of the dead letter or of the original request
    reason: str = ""
    owner: str = ""  # a topic, `tenant/ns` or tenant
    older_than_ms: int = 0

    @property
    def are_empty(self) -> bool:
        """Whether they select every dead letter."""
        return self == DeadLetterFilters()

    def match(self, letter: DeadLetter, now_ms: int) -> bool:
        """Whether they select this letter."""
        return (
            (not self.ids or bool({letter.id, letter.origin} & self.ids))
            and self.reason in ("", letter.reason)
            and (not self.owner or self.owner in _names_of(letter.owner))
            and now_ms - letter.message.publish_ms >= self.older_than_ms
        )


@dataclass(slots=True, kw_only=True)
class LetterGroup:
    """Dead letters with the same state, reason, owner and age."""

    state: str
    reason: str
    owner: str
    age: str
    messages: int = 0
    oldest_ms: int = 1 << 62
    newest_ms: int = 0


@dataclass(slots=True)
class Groups:
    """Counts dead letters by group. After `most` groups, further owners are counted as OTHER_OWNERS."""

    now_ms: int
    most: int = _GROUPS
    groups: dict[tuple[str, str, str, str], LetterGroup] = field(default_factory=dict)

    def add(self, letter: DeadLetter, state: str) -> None:
        """Count a letter."""
        published_ms = letter.message.publish_ms
        age = age_of(self.now_ms - published_ms)
        key = (state, letter.reason, letter.owner, age)
        if key not in self.groups and len(self.groups) >= self.most:
            key = (state, letter.reason, OTHER_OWNERS, age)
        group = self.groups.setdefault(key, LetterGroup(state=key[0], reason=key[1], owner=key[2], age=key[3]))
        group.messages += 1
        group.oldest_ms = min(group.oldest_ms, published_ms)
        group.newest_ms = max(group.newest_ms, published_ms)

    def sorted(self) -> list[LetterGroup]:
        """Return the groups by state; within a state, the largest first."""
        return sorted(self.groups.values(), key=lambda group: (group.state, -group.messages, group.reason, group.owner))


def age_of(age_ms: int) -> str:
    """Return the name of the age class."""
    return next(name for name, below_ms in AGES if age_ms < below_ms)


def filters(ids: Iterable[str], reason: str, owner: str, older_than_ms: int) -> DeadLetterFilters:
    """Return filters for the options of a command. Raises ConfigError."""
    reason = reason and one_of(reason, (*Reason, NO_REASON, OTHER_REASON), "--reason", page="docs/reasons.md")
    return DeadLetterFilters(frozenset(ids), reason, _full_owner(owner), older_than_ms)


def dead_letters(settings: Settings, pulsar: Pulsar) -> Iterator[DeadLetter]:
    """Yield every stored dead letter, oldest first in each partition. Raises UnavailableError, ConfigError."""
    for message in _stored(settings, pulsar):
        yield DeadLetter(message, decode(message.payload, settings.service.max_request_bytes))


def _stored(settings: Settings, pulsar: Pulsar) -> Iterator[StoredMessage]:
    topic = settings.topics.dead_letter
    if pulsar.admin.partitions(topic) is None:
        raise ConfigError(f"there is no {topic}: the service creates it at its first start")
    yield from pulsar.reader.read(pulsar.admin.last_positions(topic))


def _reason_of(message: StoredMessage) -> str:
    text = message.properties.get(REASON)
    if text is None:
        return NO_REASON
    name = text.partition(":")[0]
    # any writer to the topic can forge a letter's reason: it is shown and selects letters, and the only decision
    # that reads it (origins.py) can take rights from a letter, and give it none
    return name if name in set(Reason) else OTHER_REASON


def selected(
    settings: Settings, pulsar: Pulsar, chosen: DeadLetterFilters, now_ms: int, settlements: Settlements
) -> Iterator[tuple[DeadLetter, str]]:
    """Yield the selected dead letters, with the state of each."""
    for letter in dead_letters(settings, pulsar):
        if chosen.match(letter, now_ms):
            yield letter, settlements.of(letter.position)


@dataclass(frozen=True, slots=True)
class WaitingLetters:
    """Dead letters that were neither replayed nor written off."""

    by_reason: Mapping[str, int]
    oldest_ms: int | None  # when the oldest was published; None: there are none
    is_all: bool  # False: the topic has more letters than were read


def waiting_letters(settings: Settings, pulsar: Pulsar, most: int) -> WaitingLetters:
    """Count the waiting dead letters among the first `most` of the topic. Raises UnavailableError, ConfigError."""
    settled = SettlementFolder(settings.state_dir).settled()
    counts: Counter[str] = Counter()
    oldest_ms, read = None, 0
    for read, message in enumerate(_stored(settings, pulsar), 1):
        if read > most:
            break
        if settled.of(position_of(message)) == WAITING:
            counts[_reason_of(message)] += 1
            oldest_ms = min(message.publish_ms, oldest_ms or message.publish_ms)
    return WaitingLetters(counts, oldest_ms, read <= most)


def groups(settings: Settings, pulsar: Pulsar, chosen: DeadLetterFilters, now_ms: int) -> list[LetterGroup]:
    """Return the groups that `dlq list` shows."""
    counts = Groups(now_ms)
    for letter, state in selected(settings, pulsar, chosen, now_ms, SettlementFolder(settings.state_dir).settled()):
        counts.add(letter, state)
    return counts.sorted()


def described(settings: Settings, letter: DeadLetter, state: str) -> dict[str, Any]:
    """Return the JSON of `dlq show`: the letter decoded, raw, and its history from receipts."""
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
        "replayed_as": [{"run": run, "message_id": text} for run, text in folder.published_as(letter.position)],
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
    return topic_from(owner, "--owner") if owner.count("/") > 1 else owner  # a tenant or namespace stays as it is
