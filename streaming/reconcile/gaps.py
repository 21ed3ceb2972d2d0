"""The result of a reconciliation: the gaps of each partition, and what could not be checked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from streaming.terminal import count_of
from udfs.formats.internal_stats import Position
from udfs.paths import base_topic, tenant_of

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionGaps:
    """One partition, counted in entries."""

    partition: str
    read: int  # up to the committed position
    unread: int
    missing: tuple[Position, ...] = ()  # (ledger, entry) of each that was read and is not accounted for
    # ledgers that vanished with entries that were unread or not accounted for, except losses that an operator accepted
    trimmed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The gaps of all partitions."""

    partitions: tuple[PartitionGaps, ...]
    delayed: int  # requests that wait for another try
    lost: tuple[str, ...] = ()  # delayed requests that are neither in the retry topic nor in the table `waiting`
    unchecked: Mapping[str, str] = field(default_factory=dict)  # topic or partition -> why we could not check it
    is_refused: bool = False  # whether a missing right is one of these reasons

    @property
    def gaps(self) -> list[str]:
        """A message for each kind of gap; empty if everything that we checked is accounted for."""
        return list(self.gaps_by_kind.values())

    @property
    def gaps_by_kind(self) -> dict[tuple[str, str], str]:
        """(tenant, kind) -> message. The tenant of lost requests is ""."""
        messages: dict[tuple[str, str], str] = {}
        by_tenant: dict[str, list[PartitionGaps]] = {}
        for partition in self.partitions:
            by_tenant.setdefault(tenant_of(partition.partition), []).append(partition)
        for tenant, partitions in by_tenant.items():
            messages |= {(tenant, kind): message for kind, message in _tenant_messages(tenant, partitions).items()}
        if self.lost:
            messages["", "lost"] = (
                f"{count_of(len(self.lost), 'delayed request')} not found in the retry topic or in the table "
                f"`waiting`, such as {_some(self.lost)}"
            )
        return messages

    @property
    def doubt(self) -> str:
        """A message that names what we could not check; "" if we checked everything."""
        return "; ".join(f"{name} could not be checked: {why}" for name, why in sorted(self.unchecked.items()))

    @property
    def text(self) -> str:
        """The counts, as a message."""
        entries = sum(partition.read for partition in self.partitions)
        unread = sum(partition.unread for partition in self.partitions)
        delayed = count_of(self.delayed, "request")
        return f"{entries} entries read and accounted for, {unread} unread, {delayed} delayed"


def _tenant_messages(tenant: str, partitions: Iterable[PartitionGaps]) -> dict[str, str]:
    """Return kind -> message."""
    messages = {}
    with_missing = [partition for partition in partitions if partition.missing]
    with_trimmed = [partition for partition in partitions if partition.trimmed]
    if with_missing:
        count, example = sum(len(partition.missing) for partition in with_missing), with_missing[0]
        messages["missing"] = (
            f"tenant {tenant}: {count_of(count, 'entry', 'entries')} read without a receipt, such as "
            f"{_some(example.missing)} of {example.partition}"
        )
    if with_trimmed:
        count, example = sum(len(partition.trimmed) for partition in with_trimmed), with_trimmed[0]
        topics = count_of(len({base_topic(partition.partition) for partition in with_trimmed}), "topic")
        messages["trimmed"] = (
            f"tenant {tenant}: {count_of(count, 'ledger')} of {topics} vanished with unread messages in them "
            f"(TTL, eviction, a deleted topic?), such as {_some(example.trimmed)} of {example.partition}"
        )
    return messages


def _some(items: Iterable[object]) -> str:
    shown = [f"{item[0]}:{item[1]}" if isinstance(item, tuple) else str(item) for item in items]
    return ", ".join(shown[:_SHOWN])
