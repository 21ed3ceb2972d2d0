"""Ensembles and quorums of ledger znodes: BookKeeper's own golden vectors, and metadata that contradict themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.placements import placed
from tests.unit.udfs.formats.test_ledger_metadata import HEADER, VERSION_1, VERSION_2, VERSION_3
from udfs.formats.errors import FormatError
from udfs.formats.ledger_metadata import parse_ledger_metadata, serialize_v3
from udfs.formats.ledger_placement import Segment, bookies_of_entry, placement_of
from udfs.records import LedgerMetadata, LedgerState

THREE = ("192.0.2.1:1234", "192.0.2.2:1234", "192.0.2.3:1234")


@pytest.mark.parametrize(
    ("data", "bookies", "write", "ack"),
    [
        pytest.param(VERSION_1, THREE, 2, 2, id="version 1"),
        pytest.param(VERSION_1.replace(b"-102\tCLOSED", b""), THREE, 2, 2, id="version 1, open"),
        pytest.param(VERSION_2, THREE, 2, 2, id="version 2"),
        pytest.param(VERSION_2.replace(b"ackQuorumSize: 2\n", b""), THREE, 2, 2, id="one quorum"),
        pytest.param(VERSION_3, ("192.0.2.1:3181", "192.0.2.2:3181", "192.0.2.3:3181"), 2, 1, id="version 3"),
    ],
)
def test_every_version_names_its_bookies(data: bytes, bookies: tuple[str, ...], write: int, ack: int) -> None:
    placement = placement_of(data)

    assert placement.segments == (Segment(0, bookies),)
    assert (placement.write_quorum, placement.ack_quorum) == (write, ack)
    assert placement.metadata == parse_ledger_metadata(data)


def test_each_segment_has_its_first_entry_and_its_ensemble() -> None:
    data = placed((0, "abc"), (7, "abd"), write=2, ack=1, last=9)

    placement = placement_of(data)
    assert placement.segments == (Segment(0, ("a", "b", "c")), Segment(7, ("a", "b", "d")))
    assert (placement.write_quorum, placement.ack_quorum) == (2, 1)


@pytest.mark.parametrize(("entry_id", "bookies"), [(0, "ab"), (2, "ca"), (6, "ab"), (7, "bd"), (9, "ab")])
def test_an_entry_is_on_as_many_bookies_of_its_ensemble_as_the_write_quorum(entry_id: int, bookies: str) -> None:
    placement = placement_of(placed((0, "abc"), (7, "abd"), write=2, ack=1, last=9))

    assert bookies_of_entry(placement, entry_id) == tuple(bookies)


def test_what_tests_write_is_read() -> None:
    metadata = LedgerMetadata(
        state=LedgerState.CLOSED, length_bytes=5, last_entry_id=9, ctime_ms=1, custom_metadata={"a": b"b" * 500}
    )
    assert placement_of(serialize_v3(metadata, bookies=("a", "b"))).segments == (Segment(0, ("a", "b")),)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(HEADER + b"9\n", id="unknown version"),
        pytest.param(placed(write=1, ack=1, last=9), id="no ensemble"),
        pytest.param(placed((0, "ab"), (5, "abc"), write=2, ack=2, last=9), id="ensembles of two sizes"),
        pytest.param(placed((0, "ab"), write=3, ack=2, last=9), id="a write quorum above the ensemble"),
        pytest.param(placed((0, "ab"), write=1, ack=2, last=9), id="an ack quorum above the write quorum"),
        pytest.param(placed((0, "ab"), write=2, ack=0, last=9), id="no ack quorum"),
        pytest.param(placed((0, "ab"), (0, "ac"), write=2, ack=2, last=9), id="two ensembles from one entry on"),
        pytest.param(placed((3, "ab"), write=2, ack=2, last=9), id="no ensemble of entry 0"),
        pytest.param(placed((0, "a" * 1_001), write=1, ack=1, last=9), id="a huge ensemble"),
    ],
)
def test_metadata_that_are_damaged_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        placement_of(data)


@given(st.binary(max_size=200), st.sampled_from([b"", HEADER, HEADER + b"1\n", HEADER + b"2\n", HEADER + b"3\n"]))
def test_any_bytes_are_read_or_refused(data: bytes, start: bytes) -> None:
    try:
        placement = placement_of(start + data)
    except FormatError:
        return
    assert placement.segments
