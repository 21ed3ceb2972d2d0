"""What owners refer to, for one sweep: a cached answer where the delete's version check protects it, else read now."""

from collections.abc import Iterable, Mapping, Sequence

from streaming.in_use.loader import InUseLoader
from streaming.sweep.jobs import OpenJob
from udfs.judge import is_above_newest
from udfs.records import LedgerComponent, Presence, Reference


class SweepReferences:
    """References by key. What this sweep has read itself comes before what the driver cached."""

    def __init__(self, loader: InUseLoader, cached: Mapping[str, Reference]) -> None:
        self._loader = loader
        self._cached = cached
        self._fresh: dict[str, Reference] = {}
        self._stale: set[str] = set()

    def __getitem__(self, key: str) -> Reference:
        return self._fresh[key] if key in self._fresh else self._cached[key]

    def prepare(self, pending: Sequence[OpenJob]) -> None:
        """Read the references that the cache does not hold or may not answer."""
        missing = {one.key for one in pending if one.key not in self._fresh and not self._may_answer(one)}
        if missing:
            self.reload(missing)

    def reload(self, keys: Iterable[str]) -> None:
        """Read references again; a cached one that rests on other znode versions was stale."""
        for key, reference in self._loader.load(keys).items():
            cached = self._cached.get(key)
            if cached is not None and cached.checks != reference.checks:
                self._stale.add(key)
            self._fresh[key] = reference

    def is_cached(self, key: str) -> bool:
        """Whether the answer comes from the cache."""
        return key not in self._fresh

    def was_stale(self, key: str) -> bool:
        """Whether the cached answer turned out to be old."""
        return key in self._stale

    def _may_answer(self, one: OpenJob) -> bool:
        """Whether the cache may answer: only a PRESENT owner has a znode version that the delete can check.

        A ledger that is newer than all that the cached list names may have been written into the list since.
        """
        reference = self._cached.get(one.key)
        if one.job.request.component is LedgerComponent.COMPACTED_LEDGER:
            return False  # its reference changes without any znode's version changing
        if reference is None or reference.presence is not Presence.PRESENT:
            return False
        return not is_above_newest(one.job.request, reference)
