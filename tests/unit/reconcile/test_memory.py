"""The facts that a check stores for the next check, and those that an operator's acceptance removes."""

from pathlib import Path

import pytest

from streaming.errors import UnavailableError
from streaming.reconcile.memory import UnreadMemory

PARTITION = "persistent://pulsar/system/d-partition-0"


def test_unread_messages_are_remembered_until_their_loss_is_accepted(tmp_path: Path) -> None:
    memory = UnreadMemory(str(tmp_path / "state"))
    assert memory.recall() == {}
    memory.remember({PARTITION: {5: 3, 6: 1}, "another": {}}, {PARTITION: (5, 1), "another": (2, 0)})
    assert memory.processed() == {PARTITION: (5, 1)}
    assert memory.recall() == {PARTITION: {5: 3, 6: 1}}
    memory.accept({PARTITION: (5,)})
    memory.accept({})
    assert memory.recall() == {PARTITION: {6: 1}}
    memory.accept({PARTITION: (6,), "another": (1,)})
    assert memory.recall() == {PARTITION: {}}


@pytest.mark.parametrize("name", ["accounts.json", "accounts-accepted.json"])
def test_a_damaged_file_is_named_and_nothing_is_concluded(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{")
    with pytest.raises(UnavailableError, match=f"{name} can't be read.*remove it to start over"):
        UnreadMemory(str(tmp_path)).recall()
