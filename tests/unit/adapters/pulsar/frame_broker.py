"""A broker of one partition that speaks Pulsar's frames over a real socket, as far as a reader needs it."""

import socketserver
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from streaming.adapters.pulsar import frames, transactions
from streaming.config.sections import PulsarSettings
from udfs.formats.entry import messages_in
from udfs.formats.internal_stats import Position
from udfs.proto import pulsar_api_pb2 as api

_LONG = 1 << 64


@dataclass
class Partition:
    """What is stored, and how the broker behaves.

    ended: transactions (most, least, action, topic). refuses: the command of a transaction that it says no to.
    timeouts_ms: of the transactions; Pulsar's field is called txn_ttl_seconds, and a broker takes it for milliseconds.
    entries: position -> what is sent; None: passed over. last: what it says is the last, None: it refuses to say.
    subscribed: of each reader whether it wants what compaction left, and whether a topic is to be made for it.
    is_silent_on_last: it gives no answer to that. stalls_behind: the first reader that has got this one gets nothing
    more. redirects: look-ups that are sent on first. lets_subscribe: no reader is answered before it is set.
    """

    entries: Mapping[Position, bytes | None]
    last: Position | None
    is_silent_on_last: bool = False
    stalls_behind: Position | None = None
    redirects: int = 0
    closes_behind: Position | None = None
    lets_subscribe: threading.Event | None = None
    token: bytes = b""
    readers: list[Position] = field(default_factory=list)
    subscribed: list[tuple[bool, bool]] = field(default_factory=list)
    ended: list[tuple[int, int, int, str]] = field(default_factory=list)
    refuses: int = 0
    timeouts_ms: list[int] = field(default_factory=list)
    url: str = ""


def settings_for(partition: Partition, **more: Any) -> PulsarSettings:
    """Settings of a client that reaches it, and no admin API. more: what is not as usual."""
    usual = {
        "admin_url": "http://127.0.0.1:1",
        "token_file": "",
        "tls_trust_certs_file": "",
        "tls_check_hostname": True,
        "timeout_seconds": 5,
    }
    return PulsarSettings(service_url=partition.url, **(usual | more))


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
                self._tell_last()
            elif command.type in (transactions.JOIN, transactions.NEW, transactions.ADD, transactions.END):
                self._transact(command)
            elif command.type == frames.FLOW:
                self._permits += command.flow.message_permits
                next(to_send, None)

    def _subscribe(self, asked: api.CommandSubscribe) -> Iterator[None]:
        start = _position(asked.start_message_id)
        self._partition.readers.append(start)
        self._partition.subscribed.append((asked.read_compacted, asked.force_topic_creation))
        if self._partition.lets_subscribe is not None:
            self._partition.lets_subscribe.wait(60)
        self._send(api.BaseCommand(type=frames.SUCCESS))
        return self._entries(start)

    def _transact(self, command: api.BaseCommand) -> None:
        """What a coordinator answers; its transactions are (0, 7)."""
        no: dict[str, Any] = {"error": 22, "message": "it says no"} if command.type == self._partition.refuses else {}
        if command.type == transactions.JOIN:
            answer = api.BaseCommand(tc_client_connect_response=api.CommandTcClientConnectResponse(**no))
        elif command.type == transactions.NEW:
            self._partition.timeouts_ms.append(command.new_txn.txn_ttl_seconds)
            made = api.CommandNewTxnResponse(txnid_most_bits=0, txnid_least_bits=7, **no)
            answer = api.BaseCommand(new_txn_response=made)
        elif command.type == transactions.ADD:
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
        if who.auth_data != self._partition.token:
            self._send(api.BaseCommand(type=frames.ERROR, error=api.CommandError(error=3, message="wrong token")))
        else:
            self._send(api.BaseCommand(type=frames.CONNECTED, connected=api.CommandConnected()))

    def _look_up(self) -> None:
        is_redirect = self._partition.redirects > 0
        self._partition.redirects -= 1
        found = api.CommandLookupTopicResponse(
            broker_service_url=self._partition.url, response=0 if is_redirect else 1, authoritative=True
        )
        self._send(api.BaseCommand(type=frames.LOOKED_UP, lookup_topic_response=found))

    def _tell_last(self) -> None:
        last = self._partition.last
        if self._partition.is_silent_on_last:
            return
        if last is None:
            said = api.CommandError(error=1, message="Failed to get batch size for entry")
            self._send(api.BaseCommand(type=frames.ERROR, error=said))
            return
        message_id = api.MessageId(ledger_id=last[0] % _LONG, entry_id=last[1] % _LONG)
        told = api.CommandGetLastMessageIdResponse(last_message_id=message_id)
        self._send(api.BaseCommand(type=frames.LAST, get_last_message_id_response=told))

    def _entries(self, start: Position) -> Iterator[None]:
        """Send entries while permits are left, and stop at each lack of them; as brokers do, they count by messages."""
        is_first = len(self._partition.readers) == 1
        self._send(api.BaseCommand(type=frames.PING, ping=api.CommandEmpty()))
        for position, data in sorted(self._partition.entries.items()):
            if position <= start or data is None:
                continue
            while self._permits <= 0:
                yield
            message_id = api.MessageId(ledger_id=position[0], entry_id=position[1])
            sent = api.BaseCommand(type=frames.MESSAGE, message=api.CommandMessage(message_id=message_id))
            self._send(sent, data)
            self._permits -= messages_in(data)
            if is_first and position == self._partition.closes_behind:
                self._send(api.BaseCommand(type=frames.CLOSE_CONSUMER))
            if is_first and position == self._partition.stalls_behind:
                return

    def _send(self, command: api.BaseCommand, data: bytes = b"") -> None:
        written = command.SerializeToString()
        self._file.write(struct.pack(">II", 4 + len(written) + len(data), len(written)) + written + data)
        self._file.flush()


def _position(message_id: api.MessageId) -> Position:
    ledger, entry = message_id.ledger_id, message_id.entry_id
    return ledger - _LONG if ledger >> 63 else ledger, entry - _LONG if entry >> 63 else entry
