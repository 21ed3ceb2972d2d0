"""The lanes that wait to be read: each tenant's first before any tenant's second, the longest waiting first."""

from collections import OrderedDict
from collections.abc import Iterator

from udfs.paths import tenant_of


class WaitingLanes:
    """Partitions of lanes, fair by tenant. Not thread-safe."""

    def __init__(self) -> None:
        self._by_tenant: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many partitions wait."""
        return sum(map(len, self._by_tenant.values()))

    def __iter__(self) -> Iterator[str]:
        """Yield the partitions, tenant by tenant."""
        for waiting in self._by_tenant.values():
            yield from waiting

    def __contains__(self, partition: str) -> bool:
        """Whether a partition waits."""
        return partition in self._by_tenant.get(tenant_of(partition), ())

    def add(self, partition: str) -> None:
        """Let a partition wait, unless it does already."""
        self._by_tenant.setdefault(tenant_of(partition), OrderedDict())[partition] = None

    def discard(self, partition: str) -> None:
        """Let a partition wait no longer."""
        tenant = tenant_of(partition)
        waiting = self._by_tenant.get(tenant)
        if waiting is not None:
            waiting.pop(partition, None)
            if not waiting:
                del self._by_tenant[tenant]

    def take(self, most: int) -> list[str]:
        """Remove and return at most so many partitions."""
        taken: list[str] = []
        while self._by_tenant and len(taken) < most:
            tenant, waiting = next(iter(self._by_tenant.items()))
            self._by_tenant.move_to_end(tenant)  # its next partition comes after those of the other tenants
            taken.append(next(iter(waiting)))
            self.discard(taken[-1])
        return taken

    def move_to_end(self, tenant: str) -> None:
        """Let the tenant's partitions come after those of the other tenants."""
        if tenant in self._by_tenant:
            self._by_tenant.move_to_end(tenant)
