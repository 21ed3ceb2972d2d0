"""How many entries a batch takes of each partition: limits on messages and bytes, shared fairly among topics.

1. Each topic with unread entries gets the same share of a batch, and its partitions the same shares of that. The
   others get the rest of a share that is not used.
2. An entry is never divided. A batch exceeds its limits only if its first entry does.
3. Partitions take turns: what does not fit into this batch comes first in the next.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from udfs.formats.entry import Weight

MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a batch, or of a share of it."""

    messages: int = MOST
    size: int = MOST  # bytes

    @property
    def is_none(self) -> bool:
        """Whether nothing is left."""
        return self.messages <= 0 or self.size <= 0

    def has_room_for(self, weight: Weight) -> bool:
        """Whether an entry of this weight fits."""
        return weight.messages <= self.messages and weight.size <= self.size

    def share(self, of: int) -> "Limits":
        """Return one of `of` equal shares; never nothing, so that it has room for an entry of one message."""
        return Limits(max(1, self.messages // of), max(1, self.size // of))


@dataclass(slots=True)
class Admission:
    """The entries of one batch."""

    limits: Limits
    left: Limits = field(init=False)
    is_empty: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.left = self.limits

    def shares(self, waiting: Mapping[str, Sequence[str]]) -> dict[str, Limits]:
        """Return each partition's share of what is left. waiting: the partitions of each topic with unread entries."""
        of_topic = self.left.share(max(1, len(waiting)))
        return {
            partition: of_topic.share(len(partitions)) for partitions in waiting.values() for partition in partitions
        }

    def admit(self, weights: Iterable[Weight], share: Limits) -> int:
        """Return how many of a partition's next entries the batch takes.

        They fit into the partition's share, but the first may exceed it.
        """
        upcoming = iter(weights)
        first = next(upcoming, None)
        if first is None or not (self.is_empty or self.left.has_room_for(first)):
            return 0
        taken, (messages, size) = 1, first
        most_messages, most_size = min(share.messages, self.left.messages), min(share.size, self.left.size)
        for more_messages, more_size in upcoming:
            if messages + more_messages > most_messages or size + more_size > most_size:
                break
            taken, messages, size = taken + 1, messages + more_messages, size + more_size
        self.left = Limits(self.left.messages - messages, self.left.size - size)
        self.is_empty = False
        return taken


@dataclass(slots=True)
class Turns:
    """The order of partitions: first those whose entries were taken least recently."""

    _taken: dict[str, int] = field(default_factory=dict, init=False)  # partition -> number of the batch
    _batch: int = field(default=0, init=False)

    def ordered(self, partitions: Iterable[str]) -> list[str]:
        """Return the partitions in their order for the next batch."""
        self._batch += 1
        return sorted(partitions, key=lambda partition: (self._taken.get(partition, 0), partition))

    def took(self, partition: str) -> None:
        """Record that the batch has taken entries of the partition."""
        self._taken[partition] = self._batch
