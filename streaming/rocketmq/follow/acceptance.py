"""Whether `backfill` could finish what `follow` is about to start: a refusal should not come after hours."""

from streaming.errors import SafetyError
from streaming.rocketmq.convert.survey import survey_of
from streaming.rocketmq.progress import Say
from streaming.rocketmq.store.store_paths import StorePaths
from udfs.rocketmq.refusals import LOSSES, Code, refusals_of

# Refusals that a running broker causes, or may end until then, and those that `follow` checks itself.
_NOT_YET = {
    Code.RUNNING, Code.ABORT, Code.BAD_BYTES, Code.NO_QUEUES, Code.NO_TOPICS, Code.NO_SPACE, Code.CROWDED_DISK,
    Code.ROCKSDB_THERE,
}  # fmt: skip


def require_accepted(paths: StorePaths, say: Say) -> None:
    """Raise SafetyError for a store that `backfill` would refuse in any case; warn about a loss."""
    facts = survey_of(paths, is_running=True).facts
    refusals = [refusal for refusal in refusals_of(facts) if refusal.code not in _NOT_YET]
    lasting = [refusal for refusal in refusals if refusal.code not in LOSSES]
    if lasting:
        raise SafetyError("\n".join(f"{refusal.code}: {refusal.text}" for refusal in lasting))
    # only a warning: `follow` drops nothing, and the operator may still correct the store or accept the loss
    for refusal in refusals:
        say(f"warning: `backfill` refuses this store unless that changes: {refusal.code}: {refusal.text}")
