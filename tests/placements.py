"""Builds ledger znodes with ensembles: bookies may be letters."""

from collections.abc import Mapping, Sequence

from udfs.proto.bookkeeper_pb2 import LedgerMetadataFormat

_STATES = {"OPEN": LedgerMetadataFormat.OPEN, "CLOSED": LedgerMetadataFormat.CLOSED}


def placed(
    *segments: tuple[int, Sequence[str]],
    write: int,
    ack: int,
    last: int | None = None,
    length_bytes: int = 1_000,
    custom: Mapping[str, bytes] | None = None,
) -> bytes:
    """Return a ledger znode of version 3.

    Args:
        segments: (first entry, bookies) of each ensemble; a text has a bookie for each letter.
        write: write quorum.
        ack: ack quorum.
        last: the last entry of a closed ledger; None: it is open.
        length_bytes: of a closed ledger.
        custom: custom metadata.
    """
    message = LedgerMetadataFormat(
        quorumSize=write,
        ensembleSize=len(segments[0][1]) if segments else 0,
        ackQuorumSize=ack,
        length=0 if last is None else length_bytes,
        lastEntryId=-1 if last is None else last,
        state=_STATES["OPEN" if last is None else "CLOSED"],
        segment=[
            LedgerMetadataFormat.Segment(ensembleMember=[*bookies], firstEntryId=first) for first, bookies in segments
        ],
        digestType=LedgerMetadataFormat.CRC32C,
        password=b"",
    )
    for key, value in (custom or {}).items():
        message.customMetadata.add(key=key, value=value)
    body = message.SerializeToString()
    size, prefix = len(body), bytearray()
    while size >= 0x80:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    return b"BookieMetadataFormatVersion\t3\n" + bytes([*prefix, size]) + body
