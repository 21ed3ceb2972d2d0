"""Whether `backfill` could finish what `follow` is about to begin. A refusal after hours would help nobody."""

from streaming.errors import SafetyError
from streaming.rocketmq.place import Place
from streaming.rocketmq.survey import survey_of
from udfs.rocketmq.refusals import Code, refusals_of

# What a running broker brings with it, what it may change until then, and what `follow` looks at itself.
_NOT_YET = {
    Code.RUNNING, Code.ABORT, Code.BAD_BYTES, Code.NO_QUEUES, Code.NO_TOPICS, Code.NO_SPACE, Code.CROWDED_DISK,
    Code.ROCKSDB_THERE,
}  # fmt: skip


def require_accepted(place: Place) -> None:
    """Raise SafetyError for a store that `backfill` would refuse, whatever is done until then."""
    refusals = [each for each in refusals_of(survey_of(place, is_running=True).facts) if each.code not in _NOT_YET]
    if refusals:
        raise SafetyError("\n".join(f"{each.code}: {each.text}" for each in refusals))
