"""Whether `backfill` could finish what `follow` is about to begin. A refusal after hours would help nobody."""

from streaming.errors import SafetyError
from streaming.rocketmq.place import Place
from streaming.rocketmq.progress import Say
from streaming.rocketmq.survey import survey_of
from udfs.rocketmq.refusals import LOSSES, Code, refusals_of

# What a running broker brings with it, what it may change until then, and what `follow` looks at itself.
_NOT_YET = {
    Code.RUNNING, Code.ABORT, Code.BAD_BYTES, Code.NO_QUEUES, Code.NO_TOPICS, Code.NO_SPACE, Code.CROWDED_DISK,
    Code.ROCKSDB_THERE,
}  # fmt: skip


def require_accepted(place: Place, say: Say) -> None:
    """Raise SafetyError for a store that `backfill` would refuse, whatever is done until then.

    A loss is a warning only: `follow` drops nothing, and `backfill` refuses the store until the operator has corrected
    the store or accepted the loss. Neither changes what `follow` makes.
    """
    refusals = [each for each in refusals_of(survey_of(place, is_running=True).facts) if each.code not in _NOT_YET]
    wrong = [each for each in refusals if each.code not in LOSSES]
    if wrong:
        raise SafetyError("\n".join(f"{each.code}: {each.text}" for each in wrong))
    for each in refusals:
        say(f"warning: `backfill` refuses this store unless that changes: {each.code}: {each.text}")
