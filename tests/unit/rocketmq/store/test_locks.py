import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from streaming.errors import BusyError, SafetyError
from streaming.rocketmq.inspect.plan import plan_of
from streaming.rocketmq.rollback.run import rollback
from streaming.rocketmq.store.locks import broker_kept_out, is_broker_running, one_writer
from streaming.rocketmq.store.store_paths import store_paths
from streaming.rocketmq.workspace.forget import forget
from streaming.rocketmq.workspace.handover import take_over
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.convert.test_backfill import KilledError, dying_rename
from tests.unit.rocketmq.converted import (
    CLOCK,
    TouchedError,
    backfill,
    converted_store,
    everything_below,
    files_below,
    follow_untouched,
    paths,
)
from tests.unit.rocketmq.followed_store import follow
from udfs.rocketmq.refusals import Code

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def broker(root: Path) -> Iterator[None]:
    """Another process that holds the lock as a broker does."""
    command = [sys.executable, "-c", HOLD, str(root / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield
        process.communicate()


def test_a_running_broker_is_detected_and_no_command_starts(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    assert not is_broker_running(paths(tmp_path))
    with broker(tmp_path):
        assert is_broker_running(paths(tmp_path))
        with pytest.raises(SafetyError, match="a broker runs"), broker_kept_out(paths(tmp_path)):
            pass
    with broker_kept_out(paths(tmp_path)):
        pass


@pytest.mark.parametrize("folder", ["commitlog", "config", "consumequeue"])
def test_a_copy_whose_links_lead_into_another_store_is_not_written_to(tmp_path: Path, folder: str) -> None:
    """The broker of that store holds another lock."""
    small_store(tmp_path / "s").write()
    small_store(tmp_path / "copy").write()
    shutil.rmtree(tmp_path / "copy" / folder)
    (tmp_path / "copy" / folder).symlink_to(tmp_path / "s" / folder)
    with pytest.raises(SafetyError, match=r"outside of .*--broker-conf"), broker_kept_out(paths(tmp_path / "copy")):
        pass
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={tmp_path}/copy\n")
    with broker_kept_out(store_paths(tmp_path / "copy", conf)):
        pass


@pytest.mark.parametrize("folder", ["Orders", "Orders/2"])
def test_a_copy_with_a_folder_that_leads_into_another_store_is_not_written_to(tmp_path: Path, folder: str) -> None:
    """rollback would replace and delete files of a broker that runs and holds another lock."""
    small_store(tmp_path / "s").write()
    small_store(tmp_path / "copy").write()
    link = tmp_path / "copy" / "consumequeue" / folder
    shutil.rmtree(link)
    link.symlink_to(tmp_path / "s" / "consumequeue" / folder)
    with pytest.raises(SafetyError, match=f"{folder} is a link"), broker_kept_out(paths(tmp_path / "copy")):
        pass
    before = files_below(tmp_path / "s")
    with broker(tmp_path / "s"), pytest.raises(SafetyError, match=f"{folder} is a link"):
        rollback(paths(tmp_path / "copy"), CLOCK)
    assert files_below(tmp_path / "s") == before
    refused = plan_of(paths(tmp_path / "copy"), "").refusals
    assert f"{folder} is a link" in next(each.text for each in refused if each.code is Code.BAD_BYTES)


def test_a_topic_on_another_disk_is_reported_before_anything_is_written(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    with broker_kept_out(paths(tmp_path)):
        pass
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("streaming.rocketmq.store.locks._folders_of_queues", lambda _paths: [Elsewhere()])
        with pytest.raises(SafetyError, match="is not on the same disk"), broker_kept_out(paths(tmp_path)):
            pass


class Elsewhere:
    """What os.scandir says of a folder where another disk is mounted."""

    path = "consumequeue/Orders"

    def is_symlink(self) -> bool:
        return False

    def stat(self) -> SimpleNamespace:
        return SimpleNamespace(st_dev=-1)


def test_a_store_that_no_broker_has_opened_has_no_lock(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "lock").unlink()
    assert not is_broker_running(paths(tmp_path))
    assert not (tmp_path / "lock").exists()


def test_only_one_command_writes(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    with one_writer(paths(tmp_path)), pytest.raises(BusyError), one_writer(paths(tmp_path)):
        pass
    with one_writer(paths(tmp_path)):
        pass


def test_a_file_system_without_locks_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_store(tmp_path).write()
    monkeypatch.setattr("fcntl.flock", _not_implemented)

    with pytest.raises(OSError, match="not implemented"), one_writer(paths(tmp_path)):
        pytest.fail("a second command would be here, too")


def _not_implemented(*_: object) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


class Command(NamedTuple):
    """A command that writes. made: makes the store that it works on, with something for it to do."""

    name: str
    made: Callable[[Path], None]
    run: Callable[[Path], object]


def upgraded(root: Path) -> None:
    converted_store(root)


def half_upgraded(root: Path) -> None:
    small_store(root).write()
    with pytest.raises(KilledError):
        backfill(root, rename=dying_rename(5))


def half_handed_over(root: Path) -> None:
    """What `follow` has made is in the staging folder of a backfill that was killed then: it has to go back."""
    small_store(root).write()
    follow(root)
    paths(root).staging.mkdir()
    take_over(paths(root))


def followed_until_spark(root: Path) -> None:
    """Nothing kept `follow` from its work, up to where it needs Spark."""
    with pytest.raises(TouchedError):
        follow_untouched(root)


BACKFILL = Command("backfill", upgraded, lambda root: backfill(root, replace=True))
ROLLBACK = Command("rollback", upgraded, lambda root: rollback(paths(root), CLOCK))
FORGET = Command("forget", half_upgraded, lambda root: forget(paths(root), [paths(root).staging]))
FOLLOW = Command("follow", half_handed_over, follow_untouched)


@pytest.mark.parametrize("command", [BACKFILL, ROLLBACK, FORGET], ids=lambda command: command.name)
def test_no_command_writes_to_a_store_beside_its_broker(tmp_path: Path, command: Command) -> None:
    command.made(tmp_path)
    before = everything_below(tmp_path)
    with broker(tmp_path), pytest.raises(SafetyError, match=r"a broker runs on .*: it holds the file lock"):
        command.run(tmp_path)
    assert everything_below(tmp_path) == before
    command.run(tmp_path)  # only the broker was in its way
    assert everything_below(tmp_path) != before


@pytest.mark.parametrize("command", [BACKFILL, ROLLBACK, FORGET, FOLLOW], ids=lambda command: command.name)
def test_no_command_writes_to_a_store_beside_another(tmp_path: Path, command: Command) -> None:
    command.made(tmp_path)
    with one_writer(paths(tmp_path)):
        before = everything_below(tmp_path)
        with pytest.raises(BusyError, match="another command of this program"):
            command.run(tmp_path)
        assert everything_below(tmp_path) == before
    (followed_until_spark if command is FOLLOW else command.run)(tmp_path)  # only the other one was in its way
    assert everything_below(tmp_path) != before
