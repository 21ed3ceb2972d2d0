"""Reads a partition's entries with Pulsar's binary protocol, without decoding them.

Pulsar's own clients decode what a sender wrote before they return it. The C++ client (pulsar-client) ends the process
for some batches and allocates gigabytes for some compressed messages; the Java client skips what it can't decode.
One entry and a few more kilobytes are in memory at a time; TCP slows down a broker that sends faster.
"""

import socket
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError

from streaming.adapters.pulsar.credentials import Credentials
from streaming.adapters.pulsar.tls import Tls, tls_context
from streaming.config.hosts import hosts_of, may_carry_secret
from streaming.config.sections import PulsarSettings
from streaming.errors import RefusedError, UnavailableError
from udfs.formats.entry import Head, Weight, head_in, messages_in, weight_of
from udfs.formats.internal_stats import Position
from udfs.proto import pulsar_api_pb2 as api
from udfs.requests.retry import DEFAULT_MESSAGE_BYTES

CONNECT, CONNECTED, SUBSCRIBE, MESSAGE, ACK, FLOW, SUCCESS, ERROR = 2, 3, 4, 9, 10, 11, 13, 14
CLOSE_CONSUMER, CONSUMER_STATS, CONSUMER_STATS_ANSWER = 16, 25, 26
PING, PONG, LOOKUP, LOOKED_UP, GET_LAST, LAST = 18, 19, 23, 24, 29, 30
AUTH_CHALLENGE, AUTH_RESPONSE = 36, 37

_PROTOCOL_VERSION = 19
LOOKUP_REDIRECT, LOOKUP_FAILED = 0, 2
_REDIRECTS = 5
_AUTHENTICATION_ERRORS, _NO_TOPIC, _NO_SUBSCRIPTION = (3, 4), 11, 12
_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
_PERMITS = 1000
_REFILL_AT = _PERMITS // 2
_MOST_PERMITS = (1 << 31) - 1  # a Java int
# Far above what brokers store (maxMessageSize, 5 MiB by default): anything larger is not a frame of Pulsar's protocol.
_MAX_FRAME_BYTES = 256 * 1024 * 1024
_FRAME = struct.Struct(">II")
_CHUNK_BYTES, _MOST_CHUNK_BYTES = 1 << 16, 1 << 20  # that are received at once
_LONG = 1 << 64
# A broker reports the last message in milliseconds, or never: for some metadata of the last entry it does not answer.
_LAST_SECONDS = 5.0


class BrokerError(UnavailableError):
    """The broker answered with an error."""


class NoTopicError(BrokerError):
    """There is no such topic."""


class NoSubscriptionError(BrokerError):
    """The subscription does not exist, and the broker creates none for a consumer (allowAutoSubscriptionCreation)."""


class ReceiveTimeout(Exception):  # noqa: N818 - not an error: the broker sent nothing more for now
    """Nothing arrived before the deadline."""


class Connection:
    """A connection to one broker. A context manager, for one thread.

    Args:
        proxied_to: the address of the broker, if `url` is that of a proxy.
    """

    def __init__(self, settings: PulsarSettings, url: str, proxied_to: str = "") -> None:
        self._settings = settings
        self._credentials = Credentials.of(settings)
        self._url = url
        self._proxied_to = proxied_to
        self._requests = 0
        self._buffer, self._at = b"", 0  # what was received, and how much of it was returned
        self.heard_s = time.monotonic()  # when the broker last sent something
        self.max_message_bytes = DEFAULT_MESSAGE_BYTES  # the largest message that the broker accepts

    def __enter__(self) -> Self:
        """Connect to the first of the URL's hosts that answers, and authenticate.

        Raises UnavailableError, RefusedError.
        """
        hosts_of(self._url).first_answer(self._connect)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connection, and with it the readers that were opened on it."""
        self._socket.close()

    def send(self, command: api.BaseCommand) -> None:
        """Send a command. Raises UnavailableError."""
        serialized = command.SerializeToString()
        try:
            self._socket.settimeout(self._settings.timeout_seconds)
            self._socket.sendall(_FRAME.pack(4 + len(serialized), len(serialized)) + serialized)
        except OSError as error:
            raise UnavailableError(f"{self._url} does not accept a command: {error}") from error

    def receive(self, deadline: float) -> tuple[api.BaseCommand, bytes]:
        """Return the next command that is no error, and its payload. Raises ReceiveTimeout, UnavailableError."""
        command, payload = self.receive_any(deadline)
        if command.type == ERROR:
            raise refusal(f"{self._url} returns an error", command.error.error, command.error.message)
        return command, payload

    def receive_any(self, deadline: float) -> tuple[api.BaseCommand, bytes]:
        """Return the next command and its payload; pings are answered here. Raises ReceiveTimeout, UnavailableError."""
        while True:
            size, command_size = _FRAME.unpack(self._take(_FRAME.size, deadline))
            if not 4 + command_size <= size <= _MAX_FRAME_BYTES:
                raise UnavailableError(f"{self._url} sends something that is not a frame of Pulsar's protocol")
            # the rest of a frame is read even if it arrives after the deadline
            rest = self._take(size - 4, time.monotonic() + self._settings.timeout_seconds)
            try:
                command = api.BaseCommand.FromString(rest[:command_size])
            except DecodeError as error:
                raise UnavailableError(
                    f"{self._url} sends something that is not a command of Pulsar's protocol"
                ) from error
            if command.type == PING:
                self.send(api.BaseCommand(type=PONG, pong=api.CommandEmpty()))
            elif command.type == AUTH_CHALLENGE:  # our token has expired, and the file may have a new one
                data = api.AuthData(auth_method_name=self._credentials.method, auth_data=self._secret())
                response = api.CommandAuthResponse(response=data, protocol_version=_PROTOCOL_VERSION)
                self.send(api.BaseCommand(type=AUTH_RESPONSE, auth_response=response))
            else:
                return command, rest[command_size:]

    def ask(self, command: api.BaseCommand, answer: int) -> api.BaseCommand:
        """Send a command, drop other commands until its answer comes, and return the answer.

        Raises UnavailableError, RefusedError.
        """
        try:
            return self.ask_within(command, answer, self._settings.timeout_seconds)
        except ReceiveTimeout:
            raise UnavailableError(f"{self._url} does not answer within {self._settings.timeout_seconds} s") from None

    def ask_within(self, command: api.BaseCommand, answer: int, timeout_seconds: float) -> api.BaseCommand:
        """Do the same as ask, but raise ReceiveTimeout if no answer comes in time. receive() returns a late answer."""
        self.send(command)
        deadline = time.monotonic() + timeout_seconds
        while (received := self.receive(deadline)[0]).type != answer:
            pass
        return received

    def next_request(self) -> int:
        """Return a new request id."""
        self._requests += 1
        return self._requests

    def _connect(self, url: str) -> None:
        self._socket = _connected(self._settings, url)
        self._buffer, self._at = b"", 0
        self._url = url
        try:
            self._introduce()
        except BaseException:
            self._socket.close()
            raise

    def _introduce(self) -> None:
        connect = api.CommandConnect(client_version="ledger-reaper", protocol_version=_PROTOCOL_VERSION)
        if self._credentials.method:
            connect.auth_method_name, connect.auth_data = self._credentials.method, self._secret()
            connect.feature_flags.supports_auth_refresh = True
        if self._proxied_to:
            connect.proxy_to_broker_url = self._proxied_to
        connected = self.ask(api.BaseCommand(type=CONNECT, connect=connect), CONNECTED).connected
        if connected.max_message_size > 0:
            self.max_message_bytes = connected.max_message_size

    def _secret(self) -> bytes:
        if self._credentials.sends_secret and not may_carry_secret(self._url):
            raise UnavailableError(f"{self._url} is not reached over TLS; no secret is sent there")
        return self._credentials.secret().encode()

    def _take(self, size: int, deadline: float) -> bytes:
        """Return the next `size` bytes. Raises ReceiveTimeout only if none of them arrived in time."""
        if self._at + size > len(self._buffer):
            self._receive(size, deadline)
        taken = self._buffer[self._at : self._at + size]
        self._at += size
        if size > _CHUNK_BYTES:  # hundreds of readers that wait must not keep their last entries
            self._buffer, self._at = self._buffer[self._at :], 0
        return taken

    def _receive(self, size: int, deadline: float) -> None:
        """Receive until the buffer has `size` bytes that were not returned yet, and maybe more."""
        read = bytearray(self._buffer[self._at :])
        while len(read) < size:
            left = float(self._settings.timeout_seconds) if read else deadline - time.monotonic()
            try:
                self._socket.settimeout(max(left, 0.001))
                part = self._socket.recv(min(max(size - len(read), _CHUNK_BYTES), _MOST_CHUNK_BYTES))
            except TimeoutError as error:
                if not read:
                    raise ReceiveTimeout from None
                raise UnavailableError(f"{self._url} stopped in the middle of a frame") from error
            except OSError as error:
                raise UnavailableError(f"the connection to {self._url} broke: {error}") from error
            if not part:
                raise UnavailableError(f"{self._url} closed the connection")
            read += part
        self.heard_s = time.monotonic()
        self._buffer, self._at = bytes(read), 0


class FrameReader:
    """Reads the entries of a partition after a position, in order. Created by opened(); for one thread.

    Attributes:
        last: position of the last entry that the broker would send to a reader, when this one was opened. None: the
            broker could not read the metadata of the partition's last entry, and so returned an error, or did not
            answer. Brokers up to Pulsar 3.2 may report the position of a marker.
        subscription: its name, as in the partition's internalStats.
    """

    def __init__(
        self,
        connection: Connection,
        partition: str,
        after: Position,
        *,
        compacted: bool = False,
        creates: bool = True,
    ) -> None:
        self.subscription = f"ledger-reaper-{uuid.uuid4().hex[:10]}"
        subscribe = api.CommandSubscribe(
            topic=partition,
            subscription=self.subscription,
            sub_type=0,
            consumer_id=1,
            request_id=connection.next_request(),
            # the subscription ends with its connection, so we need not acknowledge anything
            durable=False,
            start_message_id=message_id(after),
            read_compacted=compacted,
            force_topic_creation=creates and not compacted,  # only brokers create system topics
        )
        connection.ask(api.BaseCommand(type=SUBSCRIBE, subscribe=subscribe), SUCCESS)
        self.last = last_of(connection)
        self._connection = connection
        self._permits_left = 0

    def next(self, timeout_seconds: float) -> tuple[Position, bytes]:
        """Return the position and bytes of the next entry. Raises ReceiveTimeout, UnavailableError."""
        position, data, _head = self.next_parsed(timeout_seconds)
        return position, data

    def next_weight(self, timeout_seconds: float) -> tuple[Position, Weight]:
        """Return the position and weight of the next entry. Raises ReceiveTimeout, UnavailableError."""
        position, data, head = self.next_parsed(timeout_seconds)
        return position, weight_of(data, head)

    def next_parsed(self, timeout_seconds: float) -> tuple[Position, bytes, Head | None]:
        """Return the same as next, and the entry's parsed start; None: it can't be parsed."""
        if self._permits_left <= _REFILL_AT:
            permits = min(_PERMITS + max(-self._permits_left, 0), _MOST_PERMITS)
            flow = api.CommandFlow(consumer_id=1, message_permits=permits)
            self._connection.send(api.BaseCommand(type=FLOW, flow=flow))
            self._permits_left = max(self._permits_left, 0) + _PERMITS
        deadline = time.monotonic() + timeout_seconds
        while True:
            command, data = self._connection.receive(deadline)
            if command.type == MESSAGE:
                head = head_in(data)
                # brokers count messages, not entries, and stop sending to a reader that has used all its permits
                self._permits_left -= messages_in(head)
                return _position(command.message.message_id), data, head
            if command.type == CLOSE_CONSUMER:
                raise UnavailableError("the broker closed the reader: the topic is being moved, or was deleted")


@contextmanager
def opened(
    settings: PulsarSettings, partition: str, after: Position, *, compacted: bool = False, creates: bool = True
) -> Iterator[FrameReader]:
    """Open a reader of a partition's entries. Raises UnavailableError, RefusedError.

    Args:
        after: the reader starts after this position; (-1, -1): at the first entry.
        compacted: the reader gets the latest message of each key up to the compaction horizon, and all messages after
            it.
        creates: the broker creates the topic if it does not exist; never for a compacted reader.
    """
    url, proxied_to = owner_of(settings, partition)
    with Connection(settings, url, proxied_to) as connection:
        yield FrameReader(connection, partition, after, compacted=compacted, creates=creates)


def largest_message(settings: PulsarSettings, partition: str) -> int:
    """Return maxMessageSize of the broker that serves a partition. Raises UnavailableError, RefusedError."""
    url, proxied_to = owner_of(settings, partition)
    with Connection(settings, url, proxied_to) as connection:
        return connection.max_message_bytes


def last_of(connection: Connection) -> Position | None:
    """Return the last position that the broker reports to the connection's consumer; None: an error, or no answer.

    Raises UnavailableError, RefusedError.
    """
    request = api.CommandGetLastMessageId(consumer_id=1, request_id=connection.next_request())
    try:
        command = api.BaseCommand(type=GET_LAST, get_last_message_id=request)
        answer = connection.ask_within(command, LAST, _LAST_SECONDS)
    except (BrokerError, ReceiveTimeout):
        return None
    return _position(answer.get_last_message_id_response.last_message_id)


def owner_of(settings: PulsarSettings, partition: str) -> tuple[str, str]:
    """Look up a partition. Raises UnavailableError, RefusedError.

    Returns:
        The URL to connect to; and, if that is a proxy, the address of the broker behind it, otherwise "".
    """
    url, is_authoritative = settings.service_url, False
    for _ in range(_REDIRECTS):
        with Connection(settings, url) as connection:
            number = connection.next_request()
            lookup = api.CommandLookupTopic(topic=partition, request_id=number, authoritative=is_authoritative)
            answer = connection.ask(api.BaseCommand(type=LOOKUP, lookup_topic=lookup), LOOKED_UP).lookup_topic_response
        if answer.response == LOOKUP_FAILED:
            raise refusal(f"no broker serves {partition}", answer.error, answer.message)
        if answer.response != LOOKUP_REDIRECT:
            return address_in(settings, answer)
        url, is_authoritative = _broker_in(settings, answer), answer.authoritative
    raise UnavailableError(
        f"the lookup of {partition} is redirected too often; do the brokers advertise the right addresses?"
    )


def address_in(settings: PulsarSettings, answer: api.CommandLookupTopicResponse) -> tuple[str, str]:
    """Return what owner_of does, from the answer of a lookup that is neither an error nor a redirect."""
    broker = _broker_in(settings, answer)
    return (settings.service_url, urlsplit(broker).netloc) if answer.proxy_through_service_url else (broker, "")


def _broker_in(settings: PulsarSettings, answer: api.CommandLookupTopicResponse) -> str:
    is_tls = urlsplit(settings.service_url).scheme == "pulsar+ssl"
    return answer.broker_service_url_tls if is_tls else answer.broker_service_url


def _connected(settings: PulsarSettings, url: str) -> socket.socket:
    parts = urlsplit(url)
    try:
        address = (parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 6650))
        plain = socket.create_connection(address, timeout=settings.timeout_seconds)
        try:
            return _secured(settings, plain, address[0]) if parts.scheme == "pulsar+ssl" else plain
        except BaseException:
            plain.close()
            raise
    except OSError as error:
        raise UnavailableError(f"{url} does not answer: {error}") from error


def _secured(settings: PulsarSettings, plain: socket.socket, host: str) -> socket.socket:
    context = tls_context(Tls.of(settings))
    return context.wrap_socket(plain, server_hostname=host)


def refusal(what: str, code: int, message: str) -> RefusedError | BrokerError:
    """Return the error for an answer of the broker."""
    text = f"{what}: {message} (error {code} of Pulsar's protocol)"
    if code in _AUTHENTICATION_ERRORS:
        return RefusedError(text)
    return {_NO_TOPIC: NoTopicError, _NO_SUBSCRIPTION: NoSubscriptionError}.get(code, BrokerError)(text)


def message_id(position: Position) -> api.MessageId:
    """Return the id of an entry."""
    return api.MessageId(ledger_id=position[0] % _LONG, entry_id=position[1] % _LONG)


def _position(sent: api.MessageId) -> Position:
    ledger, entry = sent.ledger_id, sent.entry_id
    return ledger - _LONG if ledger >> 63 else ledger, entry - _LONG if entry >> 63 else entry
