"""The plan of a rollback, from which a later run resumes, and whether a rollback is unfinished."""

import json
from dataclasses import asdict, dataclass, field

from streaming.errors import SafetyError
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.staging import remove, write_note
from udfs.rocketmq.metadata import OffsetsOf

ROLLBACK = "rollback"  # the files of a rollback
NEW_QUEUES = f"{ROLLBACK}/file-queues"
_PLAN = f"{ROLLBACK}/plan.json"
_REQUIRED = {"kept", "files", "stamps"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """What a rollback has prepared. The plan is written before the rollback replaces anything."""

    kept: str  # our folder for replaced files
    offsets_of: OffsetsOf
    files: dict[str, int]  # the prepared JSON files, and the number of entries of each
    only_in_files: dict[str, list[str]] = field(default_factory=dict)  # as in RolledBack
    left_out: dict[str, int] = field(default_factory=dict)  # as in RolledBack
    stamps: dict[str, int]  # time of the last change of each JSON file that is replaced, 0 without one
    # contents and time of CURRENT in each database
    currents: dict[str, list[str | int]] = field(default_factory=dict)
    done: bool = False  # nothing is left to do except letting the broker start


def read_plan(paths: StorePaths) -> RollbackPlan | None:
    """Return the plan of an earlier run; None without one. Raises SafetyError for a damaged file."""
    note = paths.own / _PLAN
    try:
        fields = json.loads(note.read_text(encoding="utf-8"))
        if not fields.keys() >= _REQUIRED:
            raise ValueError("entries are missing")
        source = OffsetsOf(fields.get("offsets_of", OffsetsOf.ROCKSDB))
        return RollbackPlan(**fields | {"offsets_of": source})
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError, TypeError) as error:
        raise SafetyError(f"{note} is not what this program writes: {error}") from error


def write_plan(paths: StorePaths, plan: RollbackPlan) -> None:
    """Write the plan durably."""
    write_note(paths.own / _PLAN, {name: value for name, value in asdict(plan).items() if name != "done" or value})


def unfinished_rollback(paths: StorePaths) -> str:
    """Describe an unfinished rollback, and what to do; "" without one."""
    is_barred = paths.barrier.exists()
    if not is_barred and not _has_plan(paths):
        return ""
    kept_out = f" (it does not start as long as {paths.barrier} exists)" if is_barred else ""
    return (
        "a `rollback` has started and has not ended: run it again before a broker starts with storeType=default"
        f"{kept_out}. A broker with storeType=defaultRocksDB may still be used as long as the file CURRENT of its "
        f"queues' database is in {paths.rocksdb}"
    )


def delete_rollback(paths: StorePaths) -> None:
    """Delete the files of a rollback. Raises SafetyError as long as the barrier of an unfinished rollback exists."""
    if paths.barrier.exists():
        raise SafetyError(unfinished_rollback(paths))
    # Allowed here: the folder is ours, and either no file of the store was replaced from it, or all were.
    remove(paths.own / ROLLBACK)


def _has_plan(paths: StorePaths) -> bool:
    try:
        plan = read_plan(paths)
    except SafetyError:
        return True
    return plan is not None and not plan.done
