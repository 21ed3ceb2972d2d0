"""The last steps of a repair, once its index is published: load and verify.

A topic is loaded from the repair's index, never from an index that was written during a replay, and then it is read as
a client reads it.

A broker of Pulsar 4.0.8 writes segments one after another, and an index after the last segment. It queues the next
segment on another thread just before it clears its busy flag. If that thread still sees the flag set, it gives up. Then
the broker writes nothing until new messages come, and after them only one segment or a few (seen in a third of the
replays of fifteen segments). In a rarer case the flag stays set for ever. The broker logs neither case
(apache/pulsar#26565 fixes both). Another load restarts the replay. That helps if there are few segments; with a
hundred, hardly any replay would complete.
"""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics
from streaming.clock import Clock
from streaming.errors import RefusedError, SafetyError, UnavailableError
from streaming.snapshots.repair.repair_journal import Act
from streaming.snapshots.repair.repair_result import RepairResult
from streaming.snapshots.repair.topic_session import Session, TopicLoader, TopicState
from udfs.snapshots.codec import Index, decode_index
from udfs.snapshots.repair_rules import Remedy, all_known_ids, empty_index, ignorance, is_half, missing_in
from udfs.snapshots.topic_findings import READY, BufferFacts
from udfs.snapshots.values import ReadValue

LOADS, FEW_SEGMENTS = 8, 50
_PATIENCE_MINUTES, _WAIT_SECONDS = 10, 1.0  # a broker that replays a topic reads all of it
_PATIENCE_MS = _PATIENCE_MINUTES * 60_000
_QUIET_SECONDS = 10.0  # the time that a broker may take to write a segment
_SAY_MS = 30_000  # interval of progress messages
_SAY_ENTRIES = 100_000


def silent(_text: str) -> None:
    """Ignore a progress message."""


def finish(session: Session, name: str, states: Sequence[TopicState], new: bytes, *, is_whole: bool) -> RepairResult:
    """Load and verify a topic whose new index is published.

    Args:
        session: the topic.
        name: the journal entry that the repair started with.
        states: the topic before this run, and before the repair that it resumes.
        new: the repair's index.
        is_whole: whether the replaced index was complete, not written during a replay.
    """
    topic = session.topic
    loading = Loading(session=session, new=new)
    loading.ready()
    not_written, loads = loading.first_index()
    _refuse_doubled(session)
    buffer = loading.ready()
    ids = all_known_ids([state.known_ids() for state in states])
    delivered, why = Verification(session.topics, session.loader, session.say).read(topic, ids.known)
    if buffer.aborted < len(ids.certain):  # some markers may have gone during the replay
        ledgers = session.ledgers()
        ids = all_known_ids([state.known_ids(ledgers) for state in states])
    if buffer.aborted < len(ids.certain):
        shortfall = f"{buffer.aborted} aborted ids, and its old snapshot has {len(ids.certain)} that must be there"
        read = why or f"a reader gets {delivered} entries, none of them aborted"
        raise SafetyError(
            f"{topic} is loaded and has {shortfall}; {read}: keep consumers away until the cause is known"
        )
    not_verified = ignorance(ids, is_whole=is_whole) or why
    if not not_verified:  # also if its broker has written no index: later messages make it do so, not another repair
        session.journal.mark_done(name)
    return RepairResult(
        topic=topic,
        journal=name,
        aborted=buffer.aborted,
        known=len(ids.known),
        expected=len(ids.certain),
        delivered=delivered,
        not_verified=not_verified,
        loads=loads,
        not_written=not_written,
        remedy=Remedy.REPLAY if new == empty_index(topic) else Remedy.REPUBLISH,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Loads one topic."""

    session: Session
    new: bytes  # the index that the repair published

    def ready(self) -> BufferFacts:
        """Load the topic, and return its transaction buffer. Raises UnavailableError, SafetyError."""
        session, clock, more = self.session, self.session.clock, self.session.topics.more
        topic = session.topic
        start_ms = said_ms = clock.now_ms()
        while True:
            buffer = None
            try:
                # A broker writes indexes while it replays a topic, without a maxReadPosition: a broker that loads such
                # an index takes its ids, replays the whole topic, and seals the ids again.
                if more.buffer(topic) is None:
                    self._replace_half()
                session.loader.load(topic)
                trouble = ""
            except (UnavailableError, RefusedError) as error:
                trouble = f" The last error: {error}"
            with suppress(UnavailableError, RefusedError):
                buffer = more.buffer(topic)
            if buffer is not None and buffer.state == READY:
                return buffer
            if clock.now_ms() >= start_ms + _PATIENCE_MS:
                raise UnavailableError(
                    f"{topic} has a new index, and its broker has not loaded it within {_PATIENCE_MINUTES} minutes. If "
                    "the broker is still reading the topic, run the same command again later. If the broker's log "
                    f"reports that the recovery failed, `ledger-reaper snapshots undo --topic {topic}` restores the "
                    "old index." + trouble
                )
            if (now_ms := clock.now_ms()) - said_ms >= _SAY_MS:
                said_ms = now_ms
                state = "not loaded" if buffer is None else buffer.state
                session.say(f"{topic} is not ready after {(now_ms - start_ms) // 1_000} seconds; its state: {state}")
            session.sleep(_WAIT_SECONDS)

    def first_index(self) -> tuple[str, int]:
        """Wait for an index that a broker could load; return what it is missing, and how often the topic was loaded.

        If the broker's index stays incomplete, the repair's index replaces it: then the next load replays the topic.
        """
        session, more = self.session, self.session.topics.more
        wait = IndexWait(
            index=session.latest_index,
            buffer=lambda: more.buffer(session.topic, with_segments=True),
            again=self._again,
            quiet_seconds=2 * more.snapshot_seconds() + _QUIET_SECONDS,
            clock=session.clock,
            sleep=session.sleep,
            say=lambda text: session.say(f"{session.topic}: {text}"),
        )
        missing, loads = wait.wait()
        if missing:
            self._publish_again()
        return missing, loads

    def _again(self) -> None:
        self.session.unload()
        self._publish_again()
        # In the meantime a client may have caused a load from the broker's own index.
        self.session.unload()
        self.ready()

    def _replace_half(self) -> None:
        """Replace an index that was written during a replay, while no broker has the topic loaded."""
        index = self.session.latest_index()
        # the next load would start from such an index
        if index is not None and isinstance(index.value, Index) and is_half(index.value):
            self._publish_again()
            # In the meantime a client may have caused a load from the replaced index.
            self.session.unload()

    def _publish_again(self) -> None:
        """Replace the broker's incomplete index with the repair's index."""
        # with the broker's index, the topic's next load would seal every id again
        session = self.session
        index = session.latest()
        if index.data == self.new:
            return
        own_index = decode_index(self.new)
        session.hold(own_index)
        if lost := session.lost_in(own_index):
            raise SafetyError(
                f"{session.topic}: {lost} segments of the repair's own index can't be read any more, so the index is "
                "not published again: the topic would not load with it. Repair it again, with --replay"
            )
        name = session.record(index, self.new, Act.AGAIN)
        # allowed: the replaced index is in the journal, and with the repair's index a broker finds all that the topic
        # still has
        session.publish(self.new)
        session.journal.mark_sent(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexWait:
    """Waits for the index that a broker writes after a replay, and loads the topic again if none comes."""

    index: Callable[[], ReadValue | None]  # reads the latest index
    buffer: Callable[[], BufferFacts | None]  # requests the transaction buffer with its segments
    again: Callable[[], object]  # loads the topic again from the repair's index
    quiet_seconds: float  # the wait ends if nothing has changed for this long
    clock: Clock
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], object] = silent  # receives progress messages

    def wait(self) -> tuple[str, int]:
        """Return what the index is still missing ("": nothing), and how often the topic was loaded.

        Raises an UnavailableError or RefusedError of `index` or `buffer` if it still occurs ten minutes after the wait
        for this load started; raises their other errors, and all errors of `again`, at once.
        """
        for load in range(1, LOADS):
            missing, segments = self._missing()
            if not missing or segments > FEW_SEGMENTS:
                return missing, load
            self.say(f"{missing}, and its broker writes no more: loading the topic again ({load + 1} of {LOADS})")
            self.again()
        return self._missing()[0], LOADS

    def _missing(self) -> tuple[str, int]:
        """Return what is missing once nothing changes any more, and how many segments the broker has sealed."""
        seen: object = None
        changed_ms = start_ms = said_ms = self.clock.now_ms()
        while True:
            try:
                buffer, read = self.buffer(), self.index()
            except (UnavailableError, RefusedError):  # it may have changed: the quiet time starts again
                if self.clock.now_ms() - start_ms >= _PATIENCE_MS:
                    raise
                changed_ms = self.clock.now_ms()
                self.sleep(_WAIT_SECONDS)
                continue
            missing = _missing_in(buffer, read)
            segments = len(buffer.sealed) if buffer is not None else 0
            if not missing:
                return "", segments
            now_ms = self.clock.now_ms()
            now = (buffer, None if read is None else read.position)
            if now != seen:
                seen, changed_ms = now, now_ms
            if now_ms - said_ms >= _SAY_MS:
                said_ms = now_ms
                self.say(f"waiting for its broker's index, {(now_ms - start_ms) // 1_000} seconds so far: {missing}")
            if now_ms - changed_ms >= self.quiet_seconds * 1_000 or now_ms - start_ms >= _PATIENCE_MS:
                return missing, segments
            self.sleep(_WAIT_SECONDS)


def _missing_in(buffer: BufferFacts | None, read: ReadValue | None) -> str:
    if buffer is None or buffer.state != READY:
        return "its broker does not have it loaded any more"
    return missing_in(read.value if read is not None and isinstance(read.value, Index) else None, buffer.sealed)


def _refuse_doubled(session: Session) -> None:
    if session.state().facts.doubled_ids:
        raise SafetyError(
            f"{session.topic}: ids are in several segments of its new index, since a client had it loaded from an "
            "older index: disconnect its clients, and try again. Nothing is worse than before"
        )


@dataclass(frozen=True, slots=True)
class Verification:
    """Reads one topic at a time."""

    topics: SnapshotTopics
    loader: TopicLoader
    say: Callable[[str], object] = silent  # receives progress messages

    def read(self, topic: str, known: Collection[tuple[int, int]]) -> tuple[int, str]:
        """Return how many entries a reader gets, and why that is not the whole topic; "" if it is.

        known: ids of aborted transactions. Raises SafetyError at a message of such a transaction.
        """
        count = 0
        self.say(f"{topic} is loaded; reading it once, as a client does")
        try:
            hidden = self._hidden(topic)
            for transaction in self.loader.delivered(topic):
                count += 1
                if transaction is not None and transaction in known:
                    raise SafetyError(
                        f"{topic}: a reader got a message of aborted transaction {transaction}: keep consumers away, "
                        f"and restore the old index with `ledger-reaper snapshots undo --topic {topic}`"
                    )
                if count % _SAY_ENTRIES == 0:
                    self.say(f"{topic}: {count} entries read")
        except (UnavailableError, RefusedError) as error:
            return count, f"no reader reached the topic's end: {error}"
        return count, hidden

    def _hidden(self, topic: str) -> str:
        """Explain what a reader that starts now may not get; "" if it gets everything."""
        # requested first: later messages are out of scope
        last = self.topics.admin.internal_stats(topic).last
        buffer = self.topics.more.buffer(topic)
        if buffer is None:
            raise UnavailableError("its broker does not have it loaded any more")
        # A reader gets nothing after the first open transaction, and its end is before that transaction. So the end
        # that a broker reports to a reader may be long before the topic's last entry, and proves nothing about the
        # entries in between.
        if buffer.max_read >= last:
            return ""
        return (
            f"the topic was read up to {buffer.max_read[0]}:{buffer.max_read[1]}, and is not verified beyond: an open "
            f"transaction there hides the later entries, up to {last[0]}:{last[1]}. Run the repair again once that "
            "transaction has ended"
        )
