"""ZooKeeper's multiRead (operation 22, servers since 3.6), which kazoo does not implement: many reads in one request.

Wire format: per read a MultiHeader (type, done, err) and the record; the end is a header with done set.
Each read succeeds or fails on its own; the whole request fails only if the connection does.
"""

import struct
from collections.abc import Callable, Sequence

from kazoo.protocol.serialization import (
    GetChildren,
    GetData,
    int_struct,
    multiheader_struct,
)

from streaming.ports import Znode

_DONE = multiheader_struct.pack(-1, True, -1)
_ERROR_TYPE = -1
MULTI_READ = 22
_HEADER_AND_NUMBER = struct.Struct("!iBii")  # the number: data length, count of children, or error code
_STAT = struct.Struct("!16xqqi4xiq16x")  # ctime, mtime, version, aversion, ephemeralOwner of a Stat's 68 bytes

Answer = Znode | list[str] | int  # int: ZooKeeper's error code for that path


class MultiRead:
    """A request for the data (GetData.type) or the children (GetChildren.type) of many absolute paths."""

    def __init__(self, operation: int, paths: Sequence[str], number: int = MULTI_READ) -> None:
        self.type = number
        self.operation = operation
        self.paths = paths

    def __repr__(self) -> str:
        return f"MultiRead(operation={self.operation}, paths={len(self.paths)})"

    def serialize(self) -> bytes:
        """Return the request: for each path 14 bytes and the path in UTF-8; at the end 9 bytes."""
        header = multiheader_struct.pack(self.operation, False, -1)
        parts: list[bytes] = []
        for path in self.paths:
            encoded = path.encode()
            parts += (header, int_struct.pack(len(encoded)), encoded, b"\0")  # the last byte: no watch
        parts.append(_DONE)
        return b"".join(parts)

    def deserialize(self, buffer: bytes, offset: int) -> list[Answer]:
        """Return the answers in the order of the paths."""
        parse = _PARSERS[self.operation]
        answers: list[Answer] = []
        for _ in self.paths:
            kind, _done, _error, number = _HEADER_AND_NUMBER.unpack_from(buffer, offset)
            offset += _HEADER_AND_NUMBER.size
            if kind == _ERROR_TYPE:
                answers.append(number)
                continue
            answer, offset = parse(buffer, offset, number)
            answers.append(answer)
        return answers


class SingleRead:
    """An ordinary read of one path, for servers without multiRead and for paths that break a multiRead."""

    def __init__(self, operation: int, path: str) -> None:
        self.type = operation
        self.path = path

    def __repr__(self) -> str:
        return f"SingleRead(operation={self.type}, path={self.path})"

    def serialize(self) -> bytes:
        """Return the request's bytes."""
        encoded = self.path.encode()
        return b"".join((int_struct.pack(len(encoded)), encoded, b"\0"))

    def deserialize(self, buffer: bytes, offset: int) -> list[Answer]:
        """Return a list with the answer, as MultiRead does."""
        (number,) = int_struct.unpack_from(buffer, offset)
        return [_PARSERS[self.type](buffer, offset + int_struct.size, number)[0]]


def _znode(buffer: bytes, offset: int, length: int) -> tuple[Answer, int]:
    end = offset + length if length > 0 else offset  # -1: null data, which is read as empty
    ctime_ms, mtime_ms, version, acl_version, owner = _STAT.unpack_from(buffer, end)
    return Znode(
        data=buffer[offset:end],
        version=version,
        ctime_ms=ctime_ms,
        mtime_ms=mtime_ms,
        acl_version=acl_version,
        is_ephemeral=owner != 0,
    ), end + _STAT.size


def _children(buffer: bytes, offset: int, count: int) -> tuple[Answer, int]:
    names = []
    length_of = int_struct.unpack_from
    for _ in range(count):
        (length,) = length_of(buffer, offset)
        end = offset + 4 + length
        names.append(buffer[offset + 4 : end].decode())
        offset = end
    return names, offset


_PARSERS: dict[int, Callable[[bytes, int, int], tuple[Answer, int]]] = {
    GetData.type: _znode,
    GetChildren.type: _children,
}
