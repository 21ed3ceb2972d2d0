"""Remembers the requests for a topic's marks, so that a repeated call does not repeat requests that are hopeless."""

from collections.abc import Sequence

from streaming.phase_one.receipts_by_message import NewestReceipts
from udfs.phase_one.marks import Marks, Upload
from udfs.records import Outcome
from udfs.units import HOUR_MS

AFTER_DEAD_LETTER_MS = 24 * HOUR_MS
MOST = 10_000  # a client that may write properties could mark a million ledgers


class Requested:
    """The newest request for each of at most MOST marks of a topic. Not thread-safe, and lost at a restart."""

    def __init__(self) -> None:
        self._sent: dict[int | Upload, tuple[str, int]] = {}
        self._dead: dict[int | Upload, int] = {}  # when the request was sent that became a dead letter

    def note(self, names: Sequence[int | Upload], message_ids: Sequence[str], at_ms: int) -> None:
        """Remember sent requests."""
        for name, message_id in zip(names, message_ids, strict=True):
            self._dead.pop(name, None)
            self._sent[name] = (message_id, at_ms)
        for requests in (self._sent, self._dead):
            while len(requests) > MOST:
                requests.pop(next(iter(requests)))  # the oldest; without it, that request is only repeated sooner

    def worth_asking(self, marks: Marks, newest: NewestReceipts, now_ms: int) -> Marks:
        """Return the marks without those whose request of the last day became a dead letter."""
        names = {*marks.ledgers, *marks.uploads}
        if sent := {name: request for name, request in self._sent.items() if name in names}:
            ids = [message_id for message_id, _at_ms in sent.values()]
            receipts = newest(ids, min(at_ms for _id, at_ms in sent.values()))
            for name, (message_id, at_ms) in sent.items():
                # by the ids of requests that we have sent: requests of other clients for the same ledger may become
                # dead letters, too
                if message_id in receipts and receipts[message_id].outcome is Outcome.DEAD_LETTER:
                    self._dead[name] = at_ms
                    del self._sent[name]
        # the request would most often become a dead letter again, and each is more work for the operator
        dead = [name for name, at_ms in self._dead.items() if now_ms - at_ms < AFTER_DEAD_LETTER_MS]
        ledgers = [name for name in dead if isinstance(name, int)]
        return marks.without(ledgers, [name for name in dead if not isinstance(name, int)])
