"""The receipts of lanes, read from the table in any of its forms."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streaming import schemas
from streaming.state import lane_rows
from streaming.state.receipts import Receipts, compact
from tests.tasks import Tasks
from udfs import columns as c
from udfs.requests.lane_receipts import COLUMNS

ACME, RIVAL = "persistent://acme/ledger-deletion/__ledger_deletion", "persistent://rival/n/__ledger_deletion"


@pytest.fixture(params=["as written", "compacted"])
def state(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    spark: Any = None
    receipts = Receipts(spark, str(tmp_path))
    blank = dict.fromkeys(schemas.RECEIPT.names)
    for chunk in (1, 2, 3):
        lanes = ((ACME, f"{chunk}:1:0"), (ACME, f"{chunk}:0:0"), (RIVAL, f"{chunk}:2:0"), (None, f"{chunk}:3:0"))
        about = {c.CHUNK: chunk, c.AT_MS: 100 * chunk}
        rows = [blank | about | {c.LANE: lane, c.ORIGIN_MESSAGE_ID: message_id} for lane, message_id in lanes]
        tasks: Any = Tasks(pa.Table.from_pylist(rows, schema=schemas.RECEIPT))
        receipts.append(tasks, chunk)
    if request.param == "compacted":
        compact(str(tmp_path))
    return str(tmp_path)


def test_receipts_are_counted_by_lane_and_chunk(state: str) -> None:
    assert sorted(lane_rows.counted(state, (2, 3), 0)) == [(ACME, 2, 2), (ACME, 3, 2), (RIVAL, 2, 1), (RIVAL, 3, 1)]
    assert sorted(lane_rows.counted(state, (1, 3), 300)) == [(ACME, 3, 2), (RIVAL, 3, 1)]


def test_each_lanes_receipts_come_in_order_and_from_its_chunks_only(state: str) -> None:
    tables = dict(lane_rows.tables(state, {ACME: (2, 3), RIVAL: (1, 1)}, 0))
    ids = {lane: table.column(c.ORIGIN_MESSAGE_ID).to_pylist() for lane, table in tables.items()}
    assert ids == {ACME: ["2:0:0", "2:1:0", "3:0:0", "3:1:0"], RIVAL: ["1:2:0"]}
    assert tables[ACME].column_names == list(COLUMNS)


def test_lanes_without_receipts_are_left_out(state: str) -> None:
    assert dict(lane_rows.tables(state, {}, 0)) == {}
    assert dict(lane_rows.tables(state, {ACME: (4, 9)}, 0)) == {}
    assert list(dict(lane_rows.tables(state, {ACME: (1, 1), RIVAL: (2, 3)}, 200))) == [RIVAL]


def test_there_may_be_no_table_yet(tmp_path: Path) -> None:
    assert list(lane_rows.counted(str(tmp_path), (1, 9), 0)) == []
    assert dict(lane_rows.tables(str(tmp_path), {ACME: (1, 9)}, 0)) == {}
