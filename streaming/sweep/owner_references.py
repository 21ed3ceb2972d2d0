"""The references of owners, for one sweep: cached if the delete's version check protects them, else read now."""

from collections.abc import Iterable, Mapping, Sequence

from streaming.in_use.loader import InUseLoader
from streaming.sweep.jobs import OpenJob
from udfs.records import LedgerComponent, Presence, Reference
from udfs.verdicts.judge import is_above_newest


class SweepReferences:
    """References by key. Those that this sweep has read itself replace those that the driver cached."""

    def __init__(self, loader: InUseLoader, cached: Mapping[str, Reference]) -> None:
        self._loader = loader
        self._cached = cached
        self._fresh: dict[str, Reference] = {}
        self._stale: set[str] = set()

    def __getitem__(self, key: str) -> Reference:
        return self._fresh[key] if key in self._fresh else self._cached[key]

    def prepare(self, pending: Sequence[OpenJob]) -> None:
        """Read the references that the cache does not hold or may not answer."""
        missing = {job.key for job in pending if job.key not in self._fresh and not self._may_answer(job)}
        if missing:
            self.reload(missing)

    def reload(self, keys: Iterable[str]) -> None:
        """Read references again; a cached reference that rests on other znode versions was stale."""
        for key, reference in self._loader.load(keys).items():
            cached = self._cached.get(key)
            if cached is not None and cached.checks != reference.checks:
                self._stale.add(key)
            self._fresh[key] = reference

    def is_cached(self, key: str) -> bool:
        """Whether the reference comes from the cache."""
        return key not in self._fresh

    def was_stale(self, key: str) -> bool:
        """Whether the cached reference turned out to be old."""
        return key in self._stale

    def _may_answer(self, job: OpenJob) -> bool:
        """Whether the cache may answer: only a PRESENT owner has a znode version that the delete can check."""
        reference = self._cached.get(job.key)
        if job.request.component is LedgerComponent.COMPACTED_LEDGER:
            return False  # its reference changes without any znode's version changing
        # an absent owner has no znode version that the delete could check
        if reference is None or reference.presence is not Presence.PRESENT:
            return False
        # a ledger that is newer than all ledgers of the cached list may have been added to the list since
        return not is_above_newest(job.request, reference)
