"""Entries of a partition as the broker sends them, by Pulsar's binary protocol: nothing is decoded, nothing can crash.

Pulsar's own clients decode what a sender wrote before they hand it over: the C++ client (pulsar-client) ends the
process for some batches and takes gigabytes for some compressed messages, and Java's passes over what it can't decode.
1. A reader's subscription is not durable and goes with its connection: nothing is acknowledged.
2. One entry is in memory at a time; a broker that sends faster is slowed down by TCP.
3. Brokers count messages, not entries, and send nothing more to a reader that has got all that it allowed them.
"""

import socket
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError

from streaming.adapters.pulsar.http import tls_context
from streaming.config.hosts import hosts_of, may_carry_token
from streaming.config.sections import PulsarSettings
from streaming.errors import ConfigError, RefusedError, UnavailableError
from udfs.formats.entry import messages_in
from udfs.formats.internal_stats import Position
from udfs.proto import pulsar_api_pb2 as api
from udfs.retry import DEFAULT_MESSAGE_BYTES

CONNECT, CONNECTED, SUBSCRIBE, MESSAGE, FLOW, SUCCESS, ERROR = 2, 3, 4, 9, 11, 13, 14
CLOSE_CONSUMER, PING, PONG, LOOKUP, LOOKED_UP, GET_LAST, LAST = 16, 18, 19, 23, 24, 29, 30

_PROTOCOL_VERSION = 19
_REDIRECT, _FAILED = 0, 2
_REDIRECTS = 5
_AUTHENTICATION_ERRORS = (3, 4)
_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
_PERMITS = 1000
_REFILL_AT = _PERMITS // 2
_MOST_PERMITS = (1 << 31) - 1  # a Java int
# Far above what brokers store (maxMessageSize, 5 MiB unless they are told otherwise): more is no frame of Pulsar.
_MAX_FRAME_BYTES = 256 * 1024 * 1024
_FRAME = struct.Struct(">II")
_LONG = 1 << 64
# A broker tells the last message in milliseconds, or never: for some metadata of the last entry it has no answer.
_LAST_SECONDS = 5.0


class SaidNoError(UnavailableError):
    """The broker answered, in its own words, that it can't."""


class Silence(Exception):  # noqa: N818 - it is an answer: nothing more was sent for now
    """Nothing arrived within the time that was given."""


class Connection:
    """A connection to one broker. A context manager, for one thread. proxied_to: the broker behind a proxy.

    max_message_bytes: the largest message that the broker takes, as it said when we connected.
    """

    def __init__(self, settings: PulsarSettings, url: str, proxied_to: str = "") -> None:
        self._settings = settings
        self._url = url
        self._proxied_to = proxied_to
        self._requests = 0
        self.max_message_bytes = DEFAULT_MESSAGE_BYTES

    def __enter__(self) -> Self:
        """Connect to the first of the URL's hosts that answers, and say who we are.

        Raises UnavailableError, RefusedError.
        """
        hosts_of(self._url).first_answer(self._connect)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connection, and with it all that was opened on it."""
        self._socket.close()

    def send(self, command: api.BaseCommand) -> None:
        """Send a command. Raises UnavailableError."""
        written = command.SerializeToString()
        try:
            self._socket.sendall(_FRAME.pack(4 + len(written), len(written)) + written)
        except OSError as error:
            raise UnavailableError(f"{self._url} does not take a command: {error}") from error

    def receive(self, deadline: float) -> tuple[api.BaseCommand, bytes]:
        """Return the next command and what comes with it; pings are answered. Raises Silence, UnavailableError."""
        while True:
            size, command_size = _FRAME.unpack(self._read(_FRAME.size, deadline))
            if not 4 + command_size <= size <= _MAX_FRAME_BYTES:
                raise UnavailableError(f"{self._url} sends what is no frame of Pulsar's protocol")
            # a frame that has begun is read to its end, however late
            rest = self._read(size - 4, time.monotonic() + self._settings.timeout_seconds)
            try:
                command = api.BaseCommand.FromString(rest[:command_size])
            except DecodeError as error:
                raise UnavailableError(f"{self._url} sends what is no command of Pulsar's protocol") from error
            if command.type == PING:
                self.send(api.BaseCommand(type=PONG, pong=api.CommandEmpty()))
            elif command.type == ERROR:
                raise _refusal(f"{self._url} says no", command.error.error, command.error.message)
            else:
                return command, rest[command_size:]

    def ask(self, command: api.BaseCommand, answer: int) -> api.BaseCommand:
        """Send a command and return its answer; what comes before is dropped. Raises UnavailableError, RefusedError."""
        try:
            return self.ask_shortly(command, answer, self._settings.timeout_seconds)
        except Silence:
            raise UnavailableError(f"{self._url} does not answer within {self._settings.timeout_seconds} s") from None

    def ask_shortly(self, command: api.BaseCommand, answer: int, patience_seconds: float) -> api.BaseCommand:
        """The same, but raises Silence where no answer has come by then; one that comes later is for whoever reads."""
        self.send(command)
        deadline = time.monotonic() + patience_seconds
        while (received := self.receive(deadline)[0]).type != answer:
            pass
        return received

    def next_request(self) -> int:
        """A number for a request, as the protocol wants one."""
        self._requests += 1
        return self._requests

    def _connect(self, url: str) -> None:
        self._socket = _connected(self._settings, url)
        self._url = url
        try:
            self._introduce()
        except BaseException:
            self._socket.close()
            raise

    def _introduce(self) -> None:
        who = api.CommandConnect(client_version="ledger-reaper", protocol_version=_PROTOCOL_VERSION)
        if self._settings.token_file:
            if not may_carry_token(self._url):
                raise UnavailableError(f"{self._url} is not reached over TLS; the token is not sent there")
            who.auth_method_name, who.auth_data = "token", _token(self._settings.token_file)
        if self._proxied_to:
            who.proxy_to_broker_url = self._proxied_to
        connected = self.ask(api.BaseCommand(type=CONNECT, connect=who), CONNECTED).connected
        if connected.max_message_size > 0:
            self.max_message_bytes = connected.max_message_size

    def _read(self, size: int, deadline: float) -> bytes:
        """Read so many bytes. Raises Silence only where not one of them came."""
        read = bytearray()
        while len(read) < size:
            left = deadline - time.monotonic() if not read else float(self._settings.timeout_seconds)
            try:
                self._socket.settimeout(max(left, 0.001))
                part = self._socket.recv(min(size - len(read), 1 << 20))
            except TimeoutError as error:
                if not read:
                    raise Silence from None
                raise UnavailableError(f"{self._url} stopped in the middle of a frame") from error
            except OSError as error:
                raise UnavailableError(f"the connection to {self._url} broke: {error}") from error
            if not part:
                raise UnavailableError(f"{self._url} closed the connection")
            read += part
        return bytes(read)


class FrameReader:
    """Reads entries of one partition behind a position, in order. Made by opened(); for one thread.

    last: up to which position the broker had something to send when the reader was opened; None: it can't tell, as
    where nobody can read the metadata of a partition's last entry (for some it says so, for some it gives no answer).
    Up to Pulsar 3.2 it may be that of a marker.
    """

    def __init__(
        self,
        connection: Connection,
        partition: str,
        after: Position,
        *,
        compacted: bool = False,
        make: bool = True,
    ) -> None:
        start = api.MessageId(ledger_id=after[0] % _LONG, entry_id=after[1] % _LONG)
        subscribe = api.CommandSubscribe(
            topic=partition,
            subscription=f"ledger-reaper-{uuid.uuid4().hex[:10]}",
            sub_type=0,
            consumer_id=1,
            request_id=connection.next_request(),
            durable=False,
            start_message_id=start,
            read_compacted=compacted,
            force_topic_creation=make and not compacted,  # nobody but a broker may make a system topic
        )
        connection.ask(api.BaseCommand(type=SUBSCRIBE, subscribe=subscribe), SUCCESS)
        self.last = _last(connection)
        self._connection = connection
        self._left = 0

    def next(self, patience_seconds: float) -> tuple[Position, bytes]:
        """Return the next entry that the broker sends: position and bytes. Raises Silence, UnavailableError."""
        if self._left <= _REFILL_AT:
            permits = min(_PERMITS + max(-self._left, 0), _MOST_PERMITS)
            flow = api.CommandFlow(consumer_id=1, message_permits=permits)
            self._connection.send(api.BaseCommand(type=FLOW, flow=flow))
            self._left = max(self._left, 0) + _PERMITS
        deadline = time.monotonic() + patience_seconds
        while True:
            command, data = self._connection.receive(deadline)
            if command.type == MESSAGE:
                self._left -= messages_in(data)
                return _position(command.message.message_id), data
            if command.type == CLOSE_CONSUMER:
                raise UnavailableError("the broker closed the reader: the topic is being moved, or was deleted")


@contextmanager
def opened(
    settings: PulsarSettings, partition: str, after: Position, *, compacted: bool = False, make: bool = True
) -> Iterator[FrameReader]:
    """A reader of a partition's entries behind `after`; (-1, -1): all. Raises UnavailableError, RefusedError.

    compacted: up to the horizon of compaction it gets the latest message of each key, and behind it all of them.
    make: let the broker make the topic where there is none; of one that is compacted, it never does.
    """
    url, proxied_to = owner_of(settings, partition)
    with Connection(settings, url, proxied_to) as connection:
        yield FrameReader(connection, partition, after, compacted=compacted, make=make)


def largest_message(settings: PulsarSettings, partition: str) -> int:
    """Return how many bytes a message may have for the broker that serves a partition (its maxMessageSize).

    Raises UnavailableError, RefusedError.
    """
    url, proxied_to = owner_of(settings, partition)
    with Connection(settings, url, proxied_to) as connection:
        return connection.max_message_bytes


def _last(connection: Connection) -> Position | None:
    asked = api.CommandGetLastMessageId(consumer_id=1, request_id=connection.next_request())
    try:
        command = api.BaseCommand(type=GET_LAST, get_last_message_id=asked)
        answer = connection.ask_shortly(command, LAST, _LAST_SECONDS)
    except (SaidNoError, Silence):
        return None
    return _position(answer.get_last_message_id_response.last_message_id)


def owner_of(settings: PulsarSettings, partition: str) -> tuple[str, str]:
    """Return the URL of the broker that serves a partition, and that of the broker behind it where it is a proxy.

    Raises UnavailableError, RefusedError.
    """
    url, is_authoritative = settings.service_url, False
    for _ in range(_REDIRECTS):
        with Connection(settings, url) as connection:
            number = connection.next_request()
            look = api.CommandLookupTopic(topic=partition, request_id=number, authoritative=is_authoritative)
            answer = connection.ask(api.BaseCommand(type=LOOKUP, lookup_topic=look), LOOKED_UP).lookup_topic_response
        if answer.response == _FAILED:
            raise _refusal(f"no broker serves {partition}", answer.error, answer.message)
        is_tls = urlsplit(settings.service_url).scheme == "pulsar+ssl"
        broker = answer.broker_service_url_tls if is_tls else answer.broker_service_url
        if answer.response != _REDIRECT:
            return (settings.service_url, _host_of(broker)) if answer.proxy_through_service_url else (broker, "")
        url, is_authoritative = broker, answer.authoritative
    raise UnavailableError(
        f"the look-up of {partition} is redirected again and again; are its brokers advertised rightly?"
    )


def _host_of(url: str) -> str:
    return urlsplit(url).netloc


def _connected(settings: PulsarSettings, url: str) -> socket.socket:
    where = urlsplit(url)
    try:
        address = (where.hostname or "", where.port or _PORTS.get(where.scheme, 6650))
        made = socket.create_connection(address, timeout=settings.timeout_seconds)
        try:
            return _secured(settings, made, address[0]) if where.scheme == "pulsar+ssl" else made
        except BaseException:
            made.close()
            raise
    except OSError as error:
        raise UnavailableError(f"{url} does not answer: {error}") from error


def _secured(settings: PulsarSettings, plain: socket.socket, host: str) -> socket.socket:
    context = tls_context(settings.tls_trust_certs_file, check_hostname=settings.tls_check_hostname)
    return context.wrap_socket(plain, server_hostname=host)


def _token(name: str) -> bytes:
    try:
        return Path(name).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"pulsar.token_file {name} can't be read: {error.strerror}") from error


def _refusal(what: str, code: int, words: str) -> RefusedError | SaidNoError:
    said = f"{what}: {words} (error {code} of Pulsar's protocol)"
    return RefusedError(said) if code in _AUTHENTICATION_ERRORS else SaidNoError(said)


def _position(message_id: api.MessageId) -> Position:
    ledger, entry = message_id.ledger_id, message_id.entry_id
    return ledger - _LONG if ledger >> 63 else ledger, entry - _LONG if entry >> 63 else entry
