from pathlib import Path

import pytest

from streaming.adapters.rocksdb.database import opened
from streaming.errors import SafetyError
from streaming.rocketmq.store.bounds import Bounds, bounds_of
from tests.unit.rocketmq.converted import converted_store
from udfs.rocketmq import rows


def test_each_queue_has_its_first_and_last_row(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    with opened(tmp_path / "consumequeue", read_only=True) as database:
        bounds = bounds_of(database)
    assert bounds == {
        (topic.encode(), queue_id): Bounds(
            first=units[0][0], last=units[-1][0], max=(units[-1][1], units[-1][0]), min=(units[0][1], units[0][0])
        )
        for (topic, queue_id), units in store.units.items()
    }


def test_a_negative_queue_offset_is_damage(tmp_path: Path) -> None:
    converted_store(tmp_path)
    with opened(tmp_path / "consumequeue", (rows.OFFSET_FAMILY,), compressed=True) as database:
        database.put_all("default", [(rows.unit_key(b"Negative", 0, -1), bytes(28))])
        with pytest.raises(SafetyError, match="Negative, queue 0, has the queue offset -1"):
            bounds_of(database)
