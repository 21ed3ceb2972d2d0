"""Tenants that are held: nothing of theirs is deleted until a person resumes. A znode says which, and why."""

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
        """Return why each held tenant is held. Raises UnavailableError where that is not known."""
        return self._known(self.readable())

    def readable(self) -> dict[str, str] | None:
        """Return why each held tenant is held; None where the znode can't be parsed. Raises UnavailableError."""
        return self._read()[0]

    def hold(self, tenants: Mapping[str, str]) -> dict[str, str]:
        """Hold these tenants as well, for these reasons; returns all that are held. Raises UnavailableError."""
        _before, after = self._change(lambda held: self._known(held) | dict(tenants))
        return after

    def release(self, tenant: str) -> bool:
        """Hold this tenant no longer: a person has looked. False where it was not held. Raises UnavailableError.

        A znode that can't be parsed is cleared.
        """
        before, _after = self._change(lambda held: {name: why for name, why in (held or {}).items() if name != tenant})
        return before is None or tenant in before

    def _change(
        self, changed: Callable[[dict[str, str] | None], dict[str, str]]
    ) -> tuple[dict[str, str] | None, dict[str, str]]:
        """Rewrite what is held, and return it before and after. What others write in between is not lost."""
        while True:
            before, version = self._read()
            after = changed(before)
            data = json.dumps(after).encode()
            if after == before:
                return before, after
            if version is None:
                if self.store.create(self.path, data, parents=True):
                    return before, after
            elif self.store.set_data(self.path, data, version=version) is not None:
                return before, after

    def _read(self) -> tuple[dict[str, str] | None, int | None]:
        """Return what is held (None: it can't be parsed), and the znode's version (None: there is no znode)."""
        node = read_own(self.store, self.path)
        if node is None:
            return {}, None
        try:
            said = json.loads(node.data) if node.data else {}
            return {str(tenant): str(why) for tenant, why in said.items()}, node.version
        except (ValueError, AttributeError):
            return None, node.version

    def _known(self, held: dict[str, str] | None) -> dict[str, str]:
        if held is None:
            raise UnavailableError(
                f"{self.path} can't be parsed, so nothing is deleted; find out why, then "
                "`ledger-reaper resume --tenant T`, with any name for T, clears it"
            )
        return held


def tenant_holds_path(own_root: str, name: str) -> str:
    """Return where an instance's held tenants are."""
    return f"{own_root}/instances/{name}/held-tenants"
