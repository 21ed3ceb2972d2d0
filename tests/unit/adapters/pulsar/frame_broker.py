"""A fake broker of one partition that implements Pulsar's protocol over a real socket, as far as readers need it."""

import socketserver
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from streaming.adapters.pulsar.readers import frames
from streaming.adapters.pulsar.snapshots import empty_transaction
from streaming.config.sections import PulsarSettings
from tests.pulsar_settings import pulsar_settings
from udfs.formats.entry import head_in, messages_in
from udfs.formats.internal_stats import Position
from udfs.proto import pulsar_api_pb2 as api

_LONG = 1 << 64


@dataclass
class Partition:
    """The stored entries, the behaviour of the broker, and what it recorded."""

    entries: Mapping[Position, bytes | None]  # None: passed over
    last: Position | None  # the last position that it reports; None: it answers with an error
    is_silent_on_last: bool = False  # it does not report the last position at all
    stalls_after: Position | None = None  # the first reader that has got this entry gets no more
    redirects: int = 0  # of lookups, before it answers
    closes_after: Position | None = None  # the first reader that has got this entry is closed
    lets_subscribe: threading.Event | None = None  # readers are answered only after it is set
    token: bytes = b""
    method: str = "token"  # of authentication, if there is a token
    challenges: bool = False  # it sends no entry before the client has sent the token again
    responses: list[bytes] = field(default_factory=list)  # to its challenges
    readers: list[Position] = field(default_factory=list)  # the start of each reader
    names: list[str] = field(default_factory=list)  # the subscription of each reader
    subscribed: list[tuple[bool, bool]] = field(default_factory=list)  # read_compacted, force_topic_creation
    ended: list[tuple[int, int, int, str]] = field(default_factory=list)  # transactions: most, least, action, topic
    refuses: int = 0  # the command of a transaction that it refuses
    timeouts_ms: list[int] = field(default_factory=list)  # txn_ttl_seconds, which brokers treat as milliseconds
    url: str = ""


def settings_for(partition: Partition, **more: Any) -> PulsarSettings:
    """Return the settings of a client that reaches the broker, but no admin API."""
    usual = {"admin_url": "http://127.0.0.1:1", "timeout_seconds": 5}
    return pulsar_settings(service_url=partition.url, **(usual | more))


@contextmanager
def serving(partition: Partition) -> Iterator[Partition]:
    """Serve until the block ends."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            _Connection(self.request, partition).serve()

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    partition.url = f"pulsar://127.0.0.1:{server.server_address[1]}"
    try:
        yield partition
    finally:
        server.shutdown()
        server.server_close()


class _Connection:
    def __init__(self, connection: object, partition: Partition) -> None:
        self._file = connection.makefile("rwb")  # type: ignore[attr-defined]
        self._partition = partition
        self._permits = 0

    def serve(self) -> None:
        to_send: Iterator[None] = iter(())
        while header := self._file.read(8):
            size, command_size = struct.unpack(">II", header)
            command = api.BaseCommand.FromString(self._file.read(size - 4)[:command_size])
            if command.type == frames.CONNECT:
                self._connected(command.connect)
            elif command.type == frames.LOOKUP:
                self._look_up()
            elif command.type == frames.SUBSCRIBE:
                to_send = self._subscribe(command.subscribe)
            elif command.type == frames.GET_LAST:
                self._report_last()
            elif command.type in (
                empty_transaction.JOIN,
                empty_transaction.NEW,
                empty_transaction.ADD,
                empty_transaction.END,
            ):
                self._transact(command)
            else:
                self._note(command)
                next(to_send, None)

    def _note(self, command: api.BaseCommand) -> None:
        if command.type == frames.AUTH_RESPONSE:
            self._partition.responses.append(command.auth_response.response.auth_data)
        elif command.type == frames.FLOW:
            self._permits += command.flow.message_permits

    def _subscribe(self, asked: api.CommandSubscribe) -> Iterator[None]:
        start = _position(asked.start_message_id)
        self._partition.readers.append(start)
        self._partition.names.append(asked.subscription)
        self._partition.subscribed.append((asked.read_compacted, asked.force_topic_creation))
        if self._partition.lets_subscribe is not None:
            self._partition.lets_subscribe.wait(60)
        self._send(api.BaseCommand(type=frames.SUCCESS))
        return self._entries(start)

    def _transact(self, command: api.BaseCommand) -> None:
        """Answer like a coordinator, whose transactions are (0, 7)."""
        no: dict[str, Any] = {"error": 22, "message": "it refuses"} if command.type == self._partition.refuses else {}
        if command.type == empty_transaction.JOIN:
            answer = api.BaseCommand(tc_client_connect_response=api.CommandTcClientConnectResponse(**no))
        elif command.type == empty_transaction.NEW:
            self._partition.timeouts_ms.append(command.new_txn.txn_ttl_seconds)
            started = api.CommandNewTxnResponse(txnid_most_bits=0, txnid_least_bits=7, **no)
            answer = api.BaseCommand(new_txn_response=started)
        elif command.type == empty_transaction.ADD:
            self._joined = command.add_partition_to_txn.partitions[0]
            answer = api.BaseCommand(add_partition_to_txn_response=api.CommandTxnResponse(**no))
        else:
            end = command.end_txn
            ended = (end.txnid_most_bits, end.txnid_least_bits, end.txn_action, self._joined)
            self._partition.ended.append(ended)
            answer = api.BaseCommand(end_txn_response=api.CommandTxnResponse(**no))
        answer.type = command.type + 1
        self._send(answer)

    def _connected(self, who: api.CommandConnect) -> None:
        if who.auth_data != self._partition.token or (who.auth_data and who.auth_method_name != self._partition.method):
            self._send(api.BaseCommand(type=frames.ERROR, error=api.CommandError(error=3, message="wrong token")))
        else:
            self._send(api.BaseCommand(type=frames.CONNECTED, connected=api.CommandConnected()))

    def _look_up(self) -> None:
        is_redirect = self._partition.redirects > 0
        self._partition.redirects -= 1
        response = api.CommandLookupTopicResponse(
            broker_service_url=self._partition.url, response=0 if is_redirect else 1, authoritative=True
        )
        self._send(api.BaseCommand(type=frames.LOOKED_UP, lookup_topic_response=response))

    def _report_last(self) -> None:
        last = self._partition.last
        if self._partition.is_silent_on_last:
            return
        if last is None:
            error = api.CommandError(error=1, message="Failed to get batch size for entry")
            self._send(api.BaseCommand(type=frames.ERROR, error=error))
            return
        message_id = api.MessageId(ledger_id=last[0] % _LONG, entry_id=last[1] % _LONG)
        response = api.CommandGetLastMessageIdResponse(last_message_id=message_id)
        self._send(api.BaseCommand(type=frames.LAST, get_last_message_id_response=response))

    def _entries(self, start: Position) -> Iterator[None]:
        """Send entries while permits are left, and pause without permits; like brokers, count messages."""
        is_first = len(self._partition.readers) == 1
        self._send(api.BaseCommand(type=frames.PING, ping=api.CommandEmpty()))
        if self._partition.challenges:
            self._send(api.BaseCommand(type=frames.AUTH_CHALLENGE, auth_challenge=api.CommandEmpty()))
            while not self._partition.responses:
                yield
        for position, data in sorted(self._partition.entries.items()):
            if position <= start or data is None:
                continue
            while self._permits <= 0:
                yield
            message_id = api.MessageId(ledger_id=position[0], entry_id=position[1])
            sent = api.BaseCommand(type=frames.MESSAGE, message=api.CommandMessage(message_id=message_id))
            self._send(sent, data)
            self._permits -= messages_in(head_in(data))
            if is_first and position == self._partition.closes_after:
                self._send(api.BaseCommand(type=frames.CLOSE_CONSUMER))
            if is_first and position == self._partition.stalls_after:
                return

    def _send(self, command: api.BaseCommand, data: bytes = b"") -> None:
        written = command.SerializeToString()
        self._file.write(struct.pack(">II", 4 + len(written) + len(data), len(written)) + written + data)
        self._file.flush()


def _position(message_id: api.MessageId) -> Position:
    ledger, entry = message_id.ledger_id, message_id.entry_id
    return ledger - _LONG if ledger >> 63 else ledger, entry - _LONG if entry >> 63 else entry
