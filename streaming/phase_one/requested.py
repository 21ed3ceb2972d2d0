"""Which requests were sent for a topic's marks, and when: a caller that asks again and again asks seldom for some.

A request that ended as a dead letter most often ends so again, and then a person has one letter more to look at. Only
the requests that we sent ourselves count, by their message ids: a dead letter that names the same ledger can come from
anybody.
"""

from collections.abc import Sequence

from streaming.phase_one.receipts import Look
from udfs.phase_one.marks import Marks, Upload
from udfs.records import Outcome
from udfs.units import HOUR_MS

AFTER_DEAD_LETTER_MS = 24 * HOUR_MS
MOST = 10_000  # who may write properties could mark a million ledgers


class Requested:
    """The newest request for each mark of one topic, of so many at most. Not thread-safe.

    A restart forgets it all, and then all is asked for again.
    """

    def __init__(self) -> None:
        self._sent: dict[int | Upload, tuple[str, int]] = {}
        self._dead: dict[int | Upload, int] = {}  # when that request was sent

    def note(self, names: Sequence[int | Upload], message_ids: Sequence[str], at_ms: int) -> None:
        """Remember what was sent."""
        for name, message_id in zip(names, message_ids, strict=True):
            self._dead.pop(name, None)
            self._sent[name] = (message_id, at_ms)
        for some in (self._sent, self._dead):
            while len(some) > MOST:
                some.pop(next(iter(some)))  # the oldest: it may be asked for again a little soon

    def worth_asking(self, marks: Marks, look: Look, now_ms: int) -> Marks:
        """Return the marks but for those whose request of the last day ended as a dead letter."""
        names = {*marks.ledgers, *marks.uploads}
        if sent := {name: each for name, each in self._sent.items() if name in names}:
            found = look([message_id for message_id, _at_ms in sent.values()], min(at for _id, at in sent.values()))
            for name, (message_id, at_ms) in sent.items():
                if message_id in found and found[message_id].outcome is Outcome.DEAD_LETTER:
                    self._dead[name] = at_ms
                    del self._sent[name]
        kept = [name for name, at_ms in self._dead.items() if now_ms - at_ms < AFTER_DEAD_LETTER_MS]
        ledgers = [each for each in kept if isinstance(each, int)]
        return marks.without(ledgers, [each for each in kept if not isinstance(each, int)])
