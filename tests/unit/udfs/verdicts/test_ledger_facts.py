"""A ledger's age counts from the latest time that its znode or its metadata names."""

from dataclasses import replace

import pytest

from tests.builders import data_custom, metadata
from udfs.formats.ledger_metadata import serialize_v3
from udfs.verdicts.ledger_facts import facts_of

LEDGER, PATH, VERSION = 5, "/ledgers/00/0000/L0005", 3
EARLY_MS, MIDDLE_MS, LATE_MS = 1_000, 2_000, 3_000


def written(ctime_ms: int | None) -> bytes:
    return serialize_v3(replace(metadata(data_custom()), ctime_ms=ctime_ms))


@pytest.mark.parametrize(
    ("data", "ctime_ms", "mtime_ms"),
    [
        pytest.param(written(LATE_MS), EARLY_MS, MIDDLE_MS, id="the metadata's creation time"),
        pytest.param(written(EARLY_MS), LATE_MS, MIDDLE_MS, id="the znode's creation"),
        pytest.param(written(EARLY_MS), MIDDLE_MS, LATE_MS, id="the znode's last change"),
        pytest.param(written(None), LATE_MS, EARLY_MS, id="metadata without a time, the znode's creation"),
        pytest.param(written(None), EARLY_MS, LATE_MS, id="metadata without a time, the znode's last change"),
        # the clock of ZooKeeper's new leader may be slow: then a change is earlier than the creation
        pytest.param(b"no metadata", LATE_MS, EARLY_MS, id="nothing to parse, the znode's creation"),
        pytest.param(b"no metadata", EARLY_MS, LATE_MS, id="nothing to parse, the znode's last change"),
    ],
)
def test_the_last_change_is_the_latest_time_of_all(data: bytes, ctime_ms: int, mtime_ms: int) -> None:
    facts = facts_of(LEDGER, PATH, data, VERSION, (ctime_ms, mtime_ms))
    assert facts.last_change_ms == LATE_MS


def test_facts_contain_the_read_values() -> None:
    facts = facts_of(LEDGER, PATH, written(EARLY_MS), VERSION, (1, 1))
    assert (facts.ledger_id, facts.path, facts.version) == (LEDGER, PATH, VERSION)
    assert facts.metadata == replace(metadata(data_custom()), ctime_ms=EARLY_MS)


@pytest.mark.parametrize("data", [b"", b"no metadata", b"BookieMetadataFormatVersion\t9\n"])
def test_metadata_that_can_not_be_parsed_is_none(data: bytes) -> None:
    assert facts_of(LEDGER, PATH, data, VERSION, (1, 1)).metadata is None
