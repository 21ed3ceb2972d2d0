"""A connection to a broker in a thread of its own, with many requests under way at once.

1. At most MOST_UNANSWERED requests wait for an answer; the others wait in the line until they are sent.
2. A request fails if it is not answered in time. A line ends if its connection breaks, or if the broker answers no
   ping; then its requests get no answer.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from streaming.adapters.pulsar.readers.frames import (
    CONSUMER_STATS_ANSWER,
    ERROR,
    LOOKED_UP,
    PING,
    SUCCESS,
    Connection,
    ReceiveTimeout,
    refusal,
)
from streaming.config.sections import PulsarSettings
from streaming.errors import ReaperError, UnavailableError
from udfs.proto import pulsar_api_pb2 as api

log = logging.getLogger("ledger-reaper")

MOST_UNANSWERED = 100
_POLL_S = 0.1  # between two checks for requests of other threads
_CHECK_S = 1.0  # between two checks for late answers
# Brokers ping a silent client every 30 s by default. We ping a silent broker too, which also keeps firewalls open.
PING_AFTER_S = 30.0
SILENT_S = 60.0

Answered = Callable[[api.BaseCommand | ReaperError], None]
"""Gets the answer of a request, or why there is none. It is called in the line's thread, and must not block."""


Command = Callable[[int], api.BaseCommand | None]
"""Creates the command for a request id; None: the request is no longer needed. Called in the line's thread."""


@dataclass(frozen=True, slots=True)
class _Request:
    command: Command
    answered: Answered


@dataclass(slots=True)
class _Sent:
    answered: Answered
    deadline_s: float


class Line:
    """A connection to a broker; start() starts its thread.

    Args:
        proxied_to: the address of the broker, if `url` is that of a proxy.
        received: gets every command that is no answer.
        ended: gets the reason when the line ends. After that, nothing is called.
    """

    def __init__(
        self,
        settings: PulsarSettings,
        url: str,
        proxied_to: str,
        received: Callable[[api.BaseCommand], None],
        ended: Callable[[ReaperError], None],
    ) -> None:
        self._settings = settings
        self._connection = Connection(settings, url, proxied_to)
        self._url = proxied_to or url
        self._received = received
        self._ended = ended
        self._waiting: deque[_Request] = deque()
        self._commands: deque[api.BaseCommand] = deque()
        self._sent: dict[int, _Sent] = {}
        self._pinged_s = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="doorbell-line", daemon=True)

    def start(self) -> None:
        """Connect, in the line's thread."""
        self._thread.start()

    def request(self, command: Command, answered: Answered, *, is_first: bool) -> None:
        """Send a request when fewer than MOST_UNANSWERED are unanswered.

        is_first: before those that wait already.
        """
        add = self._waiting.appendleft if is_first else self._waiting.append
        add(_Request(command, answered))

    def send(self, command: api.BaseCommand) -> None:
        """Send a command that has no answer, before the requests that wait."""
        self._commands.append(command)

    def close(self) -> None:
        """End the line soon; its requests fail."""
        self._closed.set()

    def join(self, timeout_s: float) -> None:
        """Wait until the line has ended."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        why: ReaperError = UnavailableError(f"the connection to {self._url} is closed")
        try:
            with self._connection:
                self._serve()
        except ReaperError as error:
            why = error
        except Exception as error:  # an answer that no one expects must not leave requests without one
            log.exception("the connection to %s", self._url)
            why = UnavailableError(f"the connection to {self._url} failed: {error!r}")
        self._ended(why)

    def _serve(self) -> None:
        checked_s = 0.0
        while not self._closed.is_set():
            self._send_waiting()
            with contextlib.suppress(ReceiveTimeout):
                self._handle(self._connection.receive_any(time.monotonic() + _POLL_S)[0])
            if (now_s := time.monotonic()) >= checked_s + _CHECK_S:
                checked_s = now_s
                self._check(now_s)
        self._send_commands()  # the last acknowledgements

    def _send_waiting(self) -> None:
        self._send_commands()
        while self._waiting and len(self._sent) < MOST_UNANSWERED:
            request = self._waiting.popleft()
            number = self._connection.next_request()
            if command := request.command(number):
                self._sent[number] = _Sent(request.answered, time.monotonic() + self._settings.timeout_seconds)
                self._connection.send(command)
            # also between two requests: a consumer may have been closed while its request was created
            self._send_commands()

    def _send_commands(self) -> None:
        while self._commands:
            self._connection.send(self._commands.popleft())

    def _handle(self, command: api.BaseCommand) -> None:
        number = _answers(command)
        if number is None:
            self._received(command)
            return
        sent = self._sent.pop(number, None)
        if sent is None:  # it came too late
            return
        if command.type == ERROR:
            sent.answered(refusal(f"{self._url} refuses", command.error.error, command.error.message))
        else:
            sent.answered(command)

    def _check(self, now_s: float) -> None:
        silent_s = now_s - self._connection.heard_s
        if silent_s >= SILENT_S:
            raise UnavailableError(f"{self._url} has sent nothing for {silent_s:.0f} s")
        if silent_s >= PING_AFTER_S and now_s - self._pinged_s >= PING_AFTER_S:
            self._pinged_s = now_s
            self._connection.send(api.BaseCommand(type=PING, ping=api.CommandEmpty()))
        late = [number for number, sent in self._sent.items() if sent.deadline_s <= now_s]
        for number in late:
            why = UnavailableError(f"{self._url} does not answer within {self._settings.timeout_seconds} s")
            self._sent.pop(number).answered(why)


def _answers(command: api.BaseCommand) -> int | None:
    """Return the id of the request that a command answers; None if it is no answer."""
    if command.type == SUCCESS:
        return command.success.request_id
    if command.type == ERROR:
        return command.error.request_id
    if command.type == LOOKED_UP:
        return command.lookup_topic_response.request_id
    if command.type == CONSUMER_STATS_ANSWER:
        return command.consumer_stats_response.request_id
    return None
