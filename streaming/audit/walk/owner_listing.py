"""Lists topics and schemas, which are owners of ledgers: their namespaces first, then what is in each namespace."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from streaming.audit import audit_columns as a
from streaming.audit.walk.listing import Problem
from streaming.clients import clients_for
from streaming.config.settings import Settings
from streaming.ports import MetadataStore, Unreadable
from streaming.sweep.pace import Pace
from udfs.columns import DETAIL
from udfs.paths import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT, SEGMENT_DOMAIN

if TYPE_CHECKING:  # its module loads pandas
    from streaming.sweep.jobs import Limiter

_DOMAIN = "persistent"
_NAMES_PER_BATCH = 10_000
_SCALABLE_TOPICS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Namespaces:
    """The znodes whose children are topics or schemas."""

    paths: tuple[str, ...]
    problems: tuple[Problem, ...]  # paths above them that could not be listed


def find_namespaces(store: MetadataStore, pace: "Limiter | None" = None) -> Namespaces:
    """Walk down to the znodes that hold topics, segments and schemas.

    These are `tenant[/cluster]/ns/persistent`, `tenant/ns/segment/topic` and `tenant/ns`.

    Raises UnavailableError.

    Args:
        store: the metadata store.
        pace: the rate at which znodes are listed; None: no limit.
    """
    problems: list[Problem] = []
    walk = _Walk(store, problems, pace or Pace(0))
    second = walk.below(walk.below([MANAGED_LEDGERS_ROOT]))  # tenant/namespace; tenant/cluster if topics have V1 names
    third = walk.below(second)
    domains = [path for path in third if path.endswith(f"/{_DOMAIN}")]
    fourth = walk.below([path for path in third if not path.endswith(f"/{_DOMAIN}")])
    # Below `tenant/ns/segment`, every name is a scalable topic's. But `segment` may be a namespace of V1 names
    # (`tenant/cluster/segment`). The names below it are domains then: `persistent` has managed ledgers; the others,
    # which we take as well, are empty.
    domains += [path for path in fourth if path.split("/")[-2] == SEGMENT_DOMAIN or path.endswith(f"/{_DOMAIN}")]
    schemas = walk.below(walk.below([SCHEMAS_ROOT]))
    return Namespaces((*domains, *schemas), tuple(problems))


@dataclass(frozen=True, slots=True)
class OwnersTask:
    """A task: turns namespaces into the topics and schemas below them; both are audit_columns.LOCATION."""

    settings: Settings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """List every namespace of every batch. Raises UnavailableError."""
        store = clients_for(self.settings).store
        for batch in batches:
            for namespace, children in listed(store, batch.column(0).to_pylist()):
                if isinstance(children, Unreadable):
                    yield _locations([namespace], children.detail)
                    continue
                for start in range(0, len(children), _NAMES_PER_BATCH):
                    names = children[start : start + _NAMES_PER_BATCH]
                    yield _locations([f"{namespace}/{name}" for name in names], None)


def listed(
    store: MetadataStore, namespaces: Sequence[str], pace: "Limiter | None" = None
) -> Iterator[tuple[str, list[str] | Unreadable]]:
    """Yield each namespace with its children; a namespace that is gone has none. Raises UnavailableError.

    pace: limits the namespaces that are listed per second; None: no limit.
    """
    for folders in at_once(namespaces):
        if pace is not None:
            pace.wait_for(len(folders))
        for namespace, children in zip(folders, store.children_many(folders), strict=True):
            yield namespace, [] if children is None else children


def at_once(namespaces: Sequence[str]) -> list[list[str]]:
    """Group paths of find_namespaces(): many scalable topics, or one namespace, which may hold a million topics."""
    small = [path for path in namespaces if _is_scalable_topic(path)]
    groups = [small[at : at + _SCALABLE_TOPICS_AT_ONCE] for at in range(0, len(small), _SCALABLE_TOPICS_AT_ONCE)]
    return [*groups, *([path] for path in namespaces if not _is_scalable_topic(path))]


def _is_scalable_topic(path: str) -> bool:
    """Whether the path is `/managed-ledgers/tenant/ns/segment/topic`, and no V1 namespace `segment`."""
    root, _, below = path.partition(f"{MANAGED_LEDGERS_ROOT}/")
    names = below.split("/")
    return not root and len(names) == 4 and names[2] == SEGMENT_DOMAIN and names[3] != _DOMAIN


def _locations(paths: list[str], detail: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{a.PATH: path, DETAIL: detail} for path in paths], schema=a.LOCATION)


@dataclass(frozen=True, slots=True)
class _Walk:
    store: MetadataStore
    problems: list[Problem]
    pace: "Limiter"

    def below(self, folders: Sequence[str]) -> list[str]:
        paths: list[str] = []
        self.pace.wait_for(len(folders))
        for folder, children in zip(folders, self.store.children_many(folders), strict=True):
            if isinstance(children, Unreadable):
                self.problems.append((folder, children.detail))
            elif children:
                paths += [f"{folder}/{name}" for name in children]
        return sorted(paths)
