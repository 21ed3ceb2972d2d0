"""The wrapper that brokers put around the znodes of managed ledgers and cursors when compression is configured.

`[magic u16 0x4778][header size i32][ManagedInfoMetadata][compressed message]`, big-endian. Without the magic there is
no wrapper. A broker that can't unwrap a znode tries to parse it as a bare message. We raise an error instead, as that
parse can't succeed (0x47 would be field 8 with wire type 7, which does not exist).
"""

import struct
import zlib
from collections.abc import Callable
from enum import StrEnum

import cramjam
from google.protobuf.message import DecodeError

from udfs.formats.errors import FormatError
from udfs.proto.managed_ledger_pb2 import CompressionType, ManagedInfoMetadata

_MAGIC = b"\x47\x78"
_PREFIX = struct.Struct(">2si")

# A list of a million ledgers with offload contexts is about 150 MiB; a damaged header can claim 2 GiB.
MAX_UNCOMPRESSED_BYTES = 256 * 1024 * 1024


class Compression(StrEnum):
    """managedLedgerInfoCompressionType and managedCursorInfoCompressionType."""

    NONE = "NONE"
    LZ4 = "LZ4"
    ZLIB = "ZLIB"
    ZSTD = "ZSTD"
    SNAPPY = "SNAPPY"


def unwrap(data: bytes) -> bytes:
    """Return the bare message. Raises FormatError if a wrapper's content contradicts its header."""
    if not data.startswith(_MAGIC):
        return data
    metadata, payload = _split(data)
    size = metadata.uncompressedSize
    if not 0 <= size <= MAX_UNCOMPRESSED_BYTES:
        raise FormatError(f"compressed znode claims {size} bytes; at most {MAX_UNCOMPRESSED_BYTES} are read")
    return decompress(payload, Compression(CompressionType.Name(metadata.compressionType)), size, "znode")


def decompress(payload: bytes, compression: Compression, size: int, what: str) -> bytes:
    """Return exactly `size` bytes. Raises FormatError, which names `what`.

    However far the payload would expand, no buffer for the result is larger than `size` (ZLIB: `size` + 1). LZ4, ZSTD
    and SNAPPY copy the result once. The caller has checked that it can allocate `size` bytes.
    """
    try:
        message = _DECODERS[compression](payload, size)
    except (cramjam.DecompressionError, zlib.error, ValueError, OverflowError) as error:
        raise FormatError(f"{what} does not decompress with {compression}: {str(error)[:200]!a}") from None
    if len(message) != size:
        raise FormatError(f"{what} decompresses to {len(message)} bytes, not to its header's {size}")
    return message


def wrap(message: bytes, compression: Compression) -> bytes:
    """Wrap a message as a broker does that has this compression type configured; NONE adds no wrapper."""
    if compression is Compression.NONE:
        return message
    metadata = ManagedInfoMetadata(compressionType=compression.value, uncompressedSize=len(message)).SerializeToString()
    return _PREFIX.pack(_MAGIC, len(metadata)) + metadata + _ENCODERS[compression](message)


def _split(data: bytes) -> tuple[ManagedInfoMetadata, bytes]:
    if len(data) < _PREFIX.size:
        raise FormatError("compressed znode ends within its header")
    _magic, header_size = _PREFIX.unpack_from(data)
    end = _PREFIX.size + header_size
    if not _PREFIX.size <= end <= len(data):
        raise FormatError(f"compressed znode of {len(data)} bytes claims a header of {header_size}")
    try:
        metadata = ManagedInfoMetadata.FromString(data[_PREFIX.size : end])
    except DecodeError as error:
        raise FormatError(f"header of a compressed znode is damaged: {error}") from None
    # FromString does not check that required fields are present, and treats an unknown type as absent.
    if not metadata.IsInitialized():
        raise FormatError("header of a compressed znode names no size or no known compression type")
    return metadata, data[end:]


def _lz4_block(payload: bytes, size: int) -> bytes:
    """Decompress a bare LZ4 block."""
    # decompress_block_into guesses whether a size precedes the block, and is wrong for some blocks
    message = bytes(cramjam.lz4.decompress_block(payload, output_len=size))
    # The library pads its result to the requested size. So if the content also fits into one byte less, the block is
    # too short.
    try:
        cramjam.lz4.decompress_block(payload, output_len=size - 1)
    except (cramjam.DecompressionError, ValueError, OverflowError):
        return message
    raise FormatError(f"LZ4 block is shorter than its header's {size} bytes")


def _zlib(payload: bytes, size: int) -> bytes:
    """Decompress what brokers write: a stream that is flushed but never finished, which zlib.decompress refuses."""
    return zlib.decompressobj().decompress(payload, size + 1)


def _zlib_like_pulsar(message: bytes) -> bytes:
    deflater = zlib.compressobj()
    return deflater.compress(message) + deflater.flush(zlib.Z_SYNC_FLUSH)


def _into(decompress: Callable[[bytes, bytearray], int]) -> Callable[[bytes, int], bytes]:
    """Decompress into a buffer of the claimed size: data that expand to more than that raise an error."""

    def decode(payload: bytes, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(memoryview(buffer)[: decompress(payload, buffer)])

    return decode


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "NONE": lambda payload, _size: payload,
    "LZ4": _lz4_block,
    "ZLIB": _zlib,
    "ZSTD": _into(cramjam.zstd.decompress_into),
    "SNAPPY": _into(cramjam.snappy.decompress_raw_into),
}
_ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "LZ4": lambda message: bytes(cramjam.lz4.compress_block(message, store_size=False)),
    "ZLIB": _zlib_like_pulsar,
    "ZSTD": lambda message: bytes(cramjam.zstd.compress(message)),
    "SNAPPY": lambda message: bytes(cramjam.snappy.compress_raw(message)),
}
