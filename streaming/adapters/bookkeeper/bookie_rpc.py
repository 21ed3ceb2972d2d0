"""Reads the entries that a bookie itself stores, by BookKeeper's binary protocol of version 2.

Such a read needs neither the ledger's metadata nor its password, and does not fence the ledger. `bookkeeper shell
readledger -bookieid` reads in the same way.
"""

import socket
import struct
import time
from dataclasses import dataclass

from streaming.errors import UnavailableError

# Requests and answers start with the length of the rest and this header: version 2, operation READENTRY, no flag.
_HEADER = 2 << 24 | 2 << 16
_REQUEST = struct.Struct(">iiqq")  # length, header, ledger id, entry id
_ANSWER = struct.Struct(">iiiqq")  # length, header, code, ledger id, entry id; the entry follows
_LENGTH_BYTES = 4
_OK, _NO_LEDGER, _NO_ENTRY = 0, 1, 2
_MEANINGS = {101: " (it can't read its disk)", 102: " (it requires authentication, which this read can't do)"}
_CHUNK_BYTES = 1 << 16


@dataclass(slots=True)
class BookieConnection:
    """A connection to a bookie, for one read after the other. After an error it must be closed."""

    connection: socket.socket
    timeout_seconds: float  # of each read

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def has_entry(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether the bookie stores the entry. Raises UnavailableError without an answer, or for an error."""
        deadline = time.monotonic() + self.timeout_seconds
        length = _REQUEST.size - _LENGTH_BYTES
        try:
            self.connection.sendall(_REQUEST.pack(length, _HEADER, ledger_id, entry_id))
            size, header, code, *answered = _ANSWER.unpack(self._read(_ANSWER.size, deadline))
            rest = size - (_ANSWER.size - _LENGTH_BYTES)
            if (header, answered) != (_HEADER, [ledger_id, entry_id]) or rest < 0:
                raise UnavailableError("its answer is not that of a bookie")
            while rest > 0:
                rest -= len(self._read(min(rest, _CHUNK_BYTES), deadline))
        except OSError as error:
            raise UnavailableError(str(error) or type(error).__name__) from error
        if code in (_NO_LEDGER, _NO_ENTRY):
            return False
        if code != _OK:
            raise UnavailableError(f"it answers with BookKeeper's error {code}{_MEANINGS.get(code, '')}")
        return True

    def _read(self, size: int, deadline: float) -> bytes:
        """Return exactly `size` bytes. Raises OSError."""
        read = bytearray()
        while len(read) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("its answer arrives too slowly")
            self.connection.settimeout(left)
            received = self.connection.recv(size - len(read))
            if not received:
                raise ConnectionError("it closed the connection")
            read += received
        return bytes(read)


def connected(host: str, port: int, timeout_seconds: float) -> BookieConnection:
    """Connect to a bookie. Raises UnavailableError."""
    try:
        return BookieConnection(socket.create_connection((host, port), timeout_seconds), timeout_seconds)
    # ValueError, OverflowError: what it registered is no host's name, or no port
    except (OSError, ValueError, OverflowError) as error:
        raise UnavailableError(str(error) or type(error).__name__) from error
