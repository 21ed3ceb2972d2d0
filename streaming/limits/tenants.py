"""The znode of held tenants, with reasons: no ledger of theirs is deleted until an operator resumes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from streaming.coordination.own_znodes import read_own
from streaming.errors import UnavailableError
from streaming.ports import MetadataStore


@dataclass(frozen=True, slots=True)
class TenantHolds:
    """The znode <root>/instances/<name>/held-tenants. It survives restarts."""

    store: MetadataStore
    path: str

    def read(self) -> dict[str, str]:
        """Return why each held tenant is held. Raises UnavailableError if that is unknown."""
        return self._parsed(self.readable())

    def readable(self) -> dict[str, str] | None:
        """Return why each held tenant is held; None if the znode can't be parsed. Raises UnavailableError."""
        return self._read()[0]

    def since_ms(self) -> int:
        """Return when a tenant was last held or released (ms since 1970); 0: none is held. Raises UnavailableError."""
        node = read_own(self.store, self.path)
        return node.mtime_ms if node is not None and node.data not in (b"", b"{}") else 0

    def hold(self, tenants: Mapping[str, str]) -> dict[str, str]:
        """Add these tenants and reasons, and return all held tenants. Raises UnavailableError."""
        _before, after = self._change(lambda held: self._parsed(held) | dict(tenants))
        return after

    def release(self, tenant: str) -> bool:
        """Release a tenant for an operator; False if it was not held. Raises UnavailableError.

        A znode that can't be parsed is cleared.
        """
        before, _after = self._change(lambda held: {name: why for name, why in (held or {}).items() if name != tenant})
        return before is None or tenant in before

    def _change(
        self, changed: Callable[[dict[str, str] | None], dict[str, str]]
    ) -> tuple[dict[str, str] | None, dict[str, str]]:
        """Rewrite the held tenants, and return them before and after. A concurrent change is not lost."""
        while True:
            before, version = self._read()
            after = changed(before)
            data = json.dumps(after).encode()
            if after == before:
                return before, after
            if version is None:
                if self.store.create(self.path, data, parents=True):
                    return before, after
            # with the version that was read, so that a concurrent change is not lost
            elif self.store.set_data(self.path, data, version=version) is not None:
                return before, after

    def _read(self) -> tuple[dict[str, str] | None, int | None]:
        """Return the held tenants (None: can't be parsed), and the znode's version (None: there is no znode)."""
        node = read_own(self.store, self.path)
        if node is None:
            return {}, None
        try:
            held = json.loads(node.data) if node.data else {}
            return {str(tenant): str(why) for tenant, why in held.items()}, node.version
        except (ValueError, AttributeError):
            return None, node.version

    def _parsed(self, held: dict[str, str] | None) -> dict[str, str]:
        if held is None:
            raise UnavailableError(
                f"{self.path} can't be parsed, so nothing is deleted; find out why, then "
                "`ledger-reaper resume --tenant T`, with any name for T, clears it"
            )
        return held


def tenant_holds_path(own_root: str, name: str) -> str:
    """Return the path of an instance's held tenants."""
    return f"{own_root}/instances/{name}/held-tenants"
