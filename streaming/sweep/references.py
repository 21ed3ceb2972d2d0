"""The references of one sweep: cached ones where a version check stands behind them, else read now."""

from collections.abc import Iterable, Mapping, Sequence

from streaming.in_use.loader import InUseLoader
from streaming.sweep.jobs import OpenJob
from udfs.judge import is_above_newest
from udfs.records import LedgerComponent, Presence, Reference


class SweepReferences:
    """References by key; what was read now goes before what was cached."""

    def __init__(self, loader: InUseLoader, cached: Mapping[str, Reference]) -> None:
        self._loader = loader
        self._cached = cached
        self._fresh: dict[str, Reference] = {}
        self._stale: set[str] = set()

    def __getitem__(self, key: str) -> Reference:
        return self._fresh[key] if key in self._fresh else self._cached[key]

    def prepare(self, pending: Sequence[OpenJob]) -> None:
        """Read what the cache does not hold, or may not answer."""
        missing = {one.key for one in pending if one.key not in self._fresh and not self._may_answer(one)}
        if missing:
            self.reload(missing)

    def reload(self, keys: Iterable[str]) -> None:
        """Read keys again; those whose znodes have other versions than the cached form are stale."""
        for key, reference in self._loader.load(keys).items():
            cached = self._cached.get(key)
            if cached is not None and cached.checks != reference.checks:
                self._stale.add(key)
            self._fresh[key] = reference

    def is_cached(self, key: str) -> bool:
        """Whether the answer is the cache's."""
        return key not in self._fresh

    def was_stale(self, key: str) -> bool:
        """Whether the cache's answer turned out to be old."""
        return key in self._stale

    def _may_answer(self, one: OpenJob) -> bool:
        """Only a PRESENT owner has versions that the delete will check; and a newer ledger makes the list old."""
        reference = self._cached.get(one.key)
        if one.job.request.component is LedgerComponent.COMPACTED_LEDGER:
            return False  # its reference moves on without any znode's version moving
        if reference is None or reference.presence is not Presence.PRESENT:
            return False
        return not is_above_newest(one.job.request, reference)
