"""What a repair came to, in words, and what it could not find out."""

from dataclasses import dataclass

from udfs.snapshots.repairing import Remedy, Told

_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What a repair came to. aborted: ids that the broker has now.

    loads: how often the topic was loaded. not_written: what its index lacks of what the broker has in memory; "" where
    the broker could go on from it.

    known: ids that the old snapshot told of. expected: those of them that the broker must have. delivered: how many
    entries a reader got afterwards; none of them was of a known id. not_verified: why that says too little; "" where
    all old ids are known and the reader came to the end. remedy: how. went_on: an earlier repair, which was cut short,
    had begun it.
    """

    topic: str
    journal: str
    aborted: int
    known: int
    expected: int
    delivered: int
    not_verified: str = ""
    loads: int = 1
    not_written: str = ""
    remedy: Remedy = Remedy.REPLAY
    went_on: bool = False

    def in_words(self) -> str:
        """Return one line for people."""
        reader = f"a reader gets {self.delivered} entries" + ("" if self.not_verified else ", none of them aborted")
        return (
            f"{self.topic} is loaded again and has {self.aborted} aborted ids (its old snapshot told of {self.known}); "
            f"{reader}. The old index is {self.journal} in the journal" + self._unwritten()
        )

    def _unwritten(self) -> str:
        if not self.not_written:
            return ""
        again = (
            "the whole topic again"
            if self.remedy is Remedy.REPLAY
            else "the topic behind the last segment of the repair's index again"
        )
        return (
            f". Its broker has not written its own snapshot yet: {self.not_written}. That is a fault of Pulsar's "
            "(apache/pulsar#26565), and loses nothing: the broker goes on as messages come, and until then it reads "
            f"{again} at each load"
        )


def ignorance(told: Told, *, is_whole: bool) -> str:
    """Why what is known of the old ids says too little; "" where it says all.

    is_whole: whether the index that was replaced was more than what a broker writes in the midst of a replay.
    """
    if not is_whole:
        return "what was replaced was written in the midst of a replay, so not all old ids are known"
    if not told.known:
        return "no old ids are known"
    if told.unknown:
        more = f" and {len(told.unknown) - _NAMED} more" if len(told.unknown) > _NAMED else ""
        return f"the ids of segments {', '.join(map(str, told.unknown[:_NAMED]))}{more} are not known"
    return ""
