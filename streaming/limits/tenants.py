"""Tenants that are held: nothing of theirs is deleted until a person resumes. A znode says which, and why."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from streaming.coordination.own_znodes import read_own, write_own
from streaming.errors import UnavailableError
from streaming.ports import MetadataStore


@dataclass(frozen=True, slots=True)
class TenantHolds:
    """The znode <root>/instances/<name>/held-tenants. It survives restarts."""

    store: MetadataStore
    path: str

    def read(self) -> dict[str, str]:
        """Return why each held tenant is held. Raises UnavailableError where that is not known."""
        held = self.readable()
        if held is None:
            raise UnavailableError(
                f"{self.path} can't be parsed, so nothing is deleted; run `ledger-reaper resume` once you have looked"
            )
        return held

    def readable(self) -> dict[str, str] | None:
        """Return why each held tenant is held; None where the znode can't be parsed. Raises UnavailableError."""
        node = read_own(self.store, self.path)
        if node is None or not node.data:
            return {}
        try:
            return {str(tenant): str(why) for tenant, why in json.loads(node.data).items()}
        except (ValueError, AttributeError):
            return None

    def hold(self, tenants: Mapping[str, str]) -> dict[str, str]:
        """Hold these tenants as well, for these reasons; returns all that are held. Raises UnavailableError."""
        held = self.read() | dict(tenants)
        self._write(held)
        return held

    def clear(self) -> None:
        """Hold no tenant any more: a person has looked. Raises UnavailableError."""
        self._write({})

    def _write(self, held: Mapping[str, str]) -> None:
        write_own(self.store, self.path, json.dumps(held).encode())


def tenant_holds_path(own_root: str, name: str) -> str:
    """Return where an instance's held tenants are."""
    return f"{own_root}/instances/{name}/held-tenants"
