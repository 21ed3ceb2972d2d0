"""Has a topic loaded from the index that a repair published, and never from one of half a replay.

A broker writes indexes while it replays a topic. They name what it has sealed by then, and have no maxReadPosition:
whoever loads the topic from such a one takes these ids, reads the whole topic, and seals them once more. So before a
topic is loaded that no broker has, such an index is replaced by the repair's own.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from streaming.errors import RefusedError, SafetyError, UnavailableError
from streaming.snapshots.repair.first_index import FirstIndex, silent
from streaming.snapshots.repair.journal import Act
from streaming.snapshots.repair.session import Replacing
from udfs.snapshots.audit import READY, BufferFacts
from udfs.snapshots.codec import Index, decode_index
from udfs.snapshots.repairing import is_half

_PATIENCE_MINUTES, _WAIT_SECONDS = 10, 1.0  # a broker that replays reads the whole topic
_QUIET_SECONDS = 10.0  # what a broker may take for one segment
_SAY_MS = 30_000  # how often a repair that waits says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Loads one topic. new: the index that the repair published. say: is told in words what is waited for."""

    replacing: Replacing
    topic: str
    new: bytes
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], object] = silent

    def ready(self) -> BufferFacts:
        """Return what its broker says once it has loaded the topic. Raises UnavailableError, SafetyError."""
        clock, more = self.replacing.clock, self.replacing.topics.more
        began_ms = said_ms = clock.now_ms()
        until_ms = began_ms + _PATIENCE_MINUTES * 60_000
        while True:
            buffer = None
            try:
                if more.buffer(self.topic) is None:
                    self._replace_half()
                self.replacing.loader.load(self.topic)
                trouble = ""
            except (UnavailableError, RefusedError) as error:
                trouble = f" What was asked for last: {error}"
            with suppress(UnavailableError, RefusedError):
                buffer = more.buffer(self.topic)
            if buffer is not None and buffer.state == READY:
                return buffer
            if clock.now_ms() >= until_ms:
                raise UnavailableError(
                    f"{self.topic} was given a new index and is not loaded after {_PATIENCE_MINUTES} minutes. Its "
                    "broker may still be reading the topic, then wait for it. If its log says that it failed to "
                    f"recover, `ledger-reaper snapshots undo --topic {self.topic}` puts the old index back." + trouble
                )
            if (now_ms := clock.now_ms()) - said_ms >= _SAY_MS:
                said_ms = now_ms
                state = "not loaded" if buffer is None else buffer.state
                self.say(f"{self.topic} is not ready after {(now_ms - began_ms) // 1_000} seconds: {state}")
            self.sleep(_WAIT_SECONDS)

    def first_index(self) -> tuple[str, int]:
        """Wait for an index from which the broker could go on; returns what it lacks, and how many loads that took.

        Where it lacks something to the end, ours stands there: with that one, the broker replays the topic once more.
        """
        more = self.replacing.topics.more
        wait = FirstIndex(
            index=lambda: self.replacing.looks.latest_index(self.topic),
            buffer=lambda: more.buffer(self.topic, with_segments=True),
            again=self._again,
            quiet_seconds=2 * more.snapshot_seconds() + _QUIET_SECONDS,
            clock=self.replacing.clock,
            sleep=self.sleep,
            say=lambda what: self.say(f"{self.topic}: {what}"),
        )
        lacks, loads = wait.wait()
        if lacks:
            self._once_more()
        return lacks, loads

    def _again(self) -> None:
        self.replacing.unload(self.topic)
        self._once_more()
        self.replacing.unload(self.topic)  # a client may have had it loaded from what its broker wrote
        self.ready()

    def _replace_half(self) -> None:
        """Replace an index of half a replay, where no broker has the topic: the load that comes would take it."""
        index = self.replacing.looks.latest_index(self.topic)
        if index is not None and isinstance(index.value, Index) and is_half(index.value):
            self._once_more()
            self.replacing.unload(self.topic)  # a client may have had it loaded from that one meanwhile

    def _once_more(self) -> None:
        """Replace what a broker wrote in the midst of a replay: its next load would seal every id once more."""
        index = self.replacing.latest(self.topic)
        if index.data == self.new:
            return
        index_of_ours = decode_index(self.new)
        self.replacing.hold(self.topic, index_of_ours)
        if lost := self.replacing.looks.lost_in(self.topic, index_of_ours):
            raise SafetyError(
                f"{self.topic}: {lost} segments of the repair's own index can't be read any more, so that it is not "
                "published once more: the topic would not load with it. Repair it again, with --replay"
            )
        name = self.replacing.write_down(self.topic, index, self.new, Act.AGAIN)
        # allowed: it is in the journal, and with ours a broker finds whatever the topic still has
        self.replacing.send(self.topic, self.new)
        self.replacing.journal.mark_sent(name)
