"""The result of a repair, for the terminal and for --json."""

from dataclasses import dataclass

from udfs.snapshots.repair_rules import Remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult:
    """The result of a repair; the fields of --json."""

    topic: str
    journal: str  # the entry that contains the old index
    aborted: int  # ids that the broker has now
    known: int  # ids that were known from the old snapshot
    expected: int  # known ids that the broker must have
    delivered: int  # entries that a reader got afterwards; none of them belonged to a known id
    not_verified: str = ""  # why the result is not proven; "": all old ids are known and the reader reached the end
    loads: int = 1  # how often the topic was loaded
    not_written: str = ""  # what the broker's index is missing; "": a broker could load it
    remedy: Remedy = Remedy.REPLAY
    went_on: bool = False  # the run resumed an interrupted repair

    def describe(self) -> str:
        """Return one line for the terminal."""
        reader = f"a reader gets {self.delivered} entries" + ("" if self.not_verified else ", none of them aborted")
        return (
            f"{self.topic} is loaded again and has {self.aborted} aborted ids (its old snapshot had {self.known}); "
            f"{reader}. The old index is {self.journal} in the journal" + self._unwritten()
        )

    def _unwritten(self) -> str:
        if not self.not_written:
            return ""
        again = (
            "the whole topic again"
            if self.remedy is Remedy.REPLAY
            else "again what follows the last segment of the repair's index in the topic,"
        )
        return (
            f". Its broker has not written its own snapshot yet: {self.not_written}. That is a fault of Pulsar's "
            "(apache/pulsar#26565), and loses nothing: the broker goes on writing when new messages come, and "
            f"until then it reads {again} at each load"
        )
