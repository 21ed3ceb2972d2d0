"""Which tasks of a bounded sweep have started: each may delete what was planned for it once, however often it runs.

Spark's attempt number can't tell. It counts within one attempt of a stage, and a stage starts over, with number 0, when
an executor is lost together with its shuffle files; the first copies of its tasks may still run then.
"""

from secrets import token_hex

from streaming.errors import UnavailableError
from streaming.ports import MetadataStore, Unreadable


def begin_plan(store: MetadataStore, root: str, name: str) -> str:
    """Create a plan's znode in place of the last plan's, and return its path. Raises UnavailableError."""
    plans = f"{root}/instances/{name}/plans"
    store.create(plans, b"", parents=True)
    for plan in _children(store, plans):
        for task in _children(store, plan):
            store.delete(task)
        store.delete(plan)
    path = f"{plans}/{token_hex(8)}"
    store.create(path, b"")
    return path


def is_first_run(store: MetadataStore, plan: str, task: int) -> bool:
    """Whether no other run of this task has asked. Raises UnavailableError.

    RefusedError: another plan has replaced this one. Where the answer to the first run was lost, no run is the
    first, and the chunk is planned again.
    """
    return store.create(f"{plan}/{task}", b"")


def _children(store: MetadataStore, path: str) -> list[str]:
    (names,) = store.children_many([path])
    if isinstance(names, Unreadable):
        raise UnavailableError(f"can't list {path}: {names.detail}")
    return [f"{path}/{name}" for name in names or ()]
