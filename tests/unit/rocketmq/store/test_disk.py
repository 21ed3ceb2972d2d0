import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from streaming.errors import SafetyError
from streaming.rocketmq.convert.backfill import Backfill
from streaming.rocketmq.store.disk import Disk, disk_of, require_room
from streaming.rocketmq.store.store_paths import store_paths
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import CLOCK, context, files_below, nothing, paths
from tests.unit.rocketmq.followed_store import follow


def full_to(monkeypatch: pytest.MonkeyPatch, percent: int) -> None:
    """A disk of 100 GB of which so much is used, and 10 GB more that only root may use."""
    disk = SimpleNamespace(f_frsize=1000, f_blocks=110_000_000, f_bfree=(110 - percent) * 10**6,
                           f_bavail=(100 - percent) * 10**6)  # fmt: skip
    monkeypatch.setattr(os, "statvfs", lambda _path: disk)


def test_a_disk_is_counted_as_a_broker_counts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_store(tmp_path).write()
    full_to(monkeypatch, 40)
    assert disk_of(paths(tmp_path)) == Disk(100 * 10**9, 60 * 10**9)


def test_a_broker_is_not_brought_to_delete_messages_before_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_store(tmp_path).write()
    full_to(monkeypatch, 82)
    require_room(paths(tmp_path), 10**9)
    with pytest.raises(SafetyError, match=r"84 % full, .* deletes messages early"):
        require_room(paths(tmp_path), 2 * 10**9)
    full_to(monkeypatch, 84)
    with pytest.raises(SafetyError, match="deletes messages early"):
        follow(tmp_path)
    full_to(monkeypatch, 86)
    before = files_below(tmp_path)
    with pytest.raises(SafetyError, match="CROWDED_DISK"):
        Backfill(paths=paths(tmp_path), clock=CLOCK, say=nothing).run(context())
    assert files_below(tmp_path) == before


def test_the_brokers_own_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_store(tmp_path / "s").write()
    (tmp_path / "broker.conf").write_text("diskSpaceCleanForciblyRatio=60")
    full_to(monkeypatch, 59)
    with pytest.raises(SafetyError, match="above 58 %"):
        require_room(store_paths(tmp_path / "s", tmp_path / "broker.conf"))
