"""How much may be deleted before a person looks: by batch, hour, tenant, owner, and as a share of what exists.

What was deleted is remembered for an hour; what is about to be is judged before it happens.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from udfs.units import HOUR_MS


@dataclass(frozen=True, slots=True)
class Limits:
    """Most deletes allowed. share: of the ledgers that existed an hour ago, 0 to 1; only above share_applies_above."""

    per_batch: int
    per_hour: int
    per_hour_per_tenant: int
    per_hour_per_owner: int
    share_per_hour: float
    share_applies_above: int


Planned = Mapping[tuple[str, str], int]
"""Deletes to come, by (tenant, owner)."""


@dataclass(slots=True)
class Usage:
    """Deletes of the last hour."""

    _entries: deque[tuple[int, Counter[tuple[str, str]]]] = field(default_factory=deque)

    def add(self, deleted: Planned, *, at_ms: int) -> None:
        """Remember deletes that happened."""
        if deleted:
            self._entries.append((at_ms, Counter(dict(deleted))))

    def last_hour(self, *, now_ms: int) -> Counter[tuple[str, str]]:
        """Deletes of the last hour by (tenant, owner); older ones are forgotten."""
        while self._entries and self._entries[0][0] <= now_ms - HOUR_MS:
            self._entries.popleft()
        total: Counter[tuple[str, str]] = Counter()
        for _, deleted in self._entries:
            total.update(deleted)
        return total

    def clear(self) -> None:
        """Begin anew: a person has looked."""
        self._entries.clear()


def exceeded(
    limits: Limits, planned: Planned, hour: Mapping[tuple[str, str], int], *, batch: int, existing: int
) -> str | None:
    """Name the first limit that `planned` would break, in the operator's words; None where it may go on.

    hour: deletes of the last hour; batch: deletes of this batch so far; existing: ledgers that exist now.
    """
    coming, past = sum(planned.values()), sum(hour.values())
    if not coming:
        return None
    if batch + coming > limits.per_batch:
        return f"{batch + coming} deletes in one batch; limits.max_deletes_per_batch is {limits.per_batch}"
    if past + coming > limits.per_hour:
        return f"{past + coming} deletes within an hour; limits.max_deletes_per_hour is {limits.per_hour}"
    before = existing + past
    if before > limits.share_applies_above and past + coming > limits.share_per_hour * before:
        share, most = (past + coming) / before, limits.share_per_hour
        return f"{share:.0%} of all {before} ledgers within an hour; limits.max_share_per_hour is {most:.0%}"
    return _crowded(limits, planned, hour)


def _crowded(limits: Limits, planned: Planned, hour: Mapping[tuple[str, str], int]) -> str | None:
    tenants: Counter[str] = Counter()
    for deletes in (planned, hour):
        for (tenant, _), n in deletes.items():
            tenants[tenant] += n
    for tenant, n in tenants.items():
        if n > limits.per_hour_per_tenant and any(key[0] == tenant for key in planned):
            most = limits.per_hour_per_tenant
            return f"{n} deletes of tenant {tenant} within an hour; limits.max_deletes_per_hour_per_tenant is {most}"
    for (tenant, owner), n in planned.items():
        in_all = n + hour.get((tenant, owner), 0)
        if in_all > limits.per_hour_per_owner:
            most = limits.per_hour_per_owner
            return f"{in_all} deletes of {owner} within an hour; limits.max_deletes_per_hour_per_owner is {most}"
    return None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a dry run found deletable: by (tenant, owner), and by task, in the order of Spark's partitions."""

    by_owner: Planned
    by_task: tuple[int, ...]
