"""Records which tasks of a bounded sweep have started, so that a repeated task deletes nothing."""

from secrets import token_hex

from streaming.errors import UnavailableError
from streaming.ports import MetadataStore, Unreadable


def start_plan(store: MetadataStore, root: str, name: str) -> str:
    """Replace the znode of the last plan by a new one, and return its path. Raises UnavailableError."""
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
    """Whether this is the first call for this task of the plan.

    If ZooKeeper's answer to the first call was lost, no call returns True, and the chunk is planned again.
    Raises UnavailableError, and RefusedError if another plan has replaced this one.
    """
    # Spark's attempt number does not show a repetition: it counts within one attempt of a stage. A stage restarts with
    # number 0 when an executor is lost together with its shuffle files, and the first runs of its tasks may continue.
    return store.create(f"{plan}/{task}", b"")


def _children(store: MetadataStore, path: str) -> list[str]:
    (names,) = store.children_many([path])
    if isinstance(names, Unreadable):
        raise UnavailableError(f"can't list {path}: {names.detail}")
    return [f"{path}/{name}" for name in names or ()]
