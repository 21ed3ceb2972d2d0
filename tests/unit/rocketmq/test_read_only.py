"""Commands on a store of which nothing can be written: a snapshot that is mounted read-only."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.rocketmq.converted import converted_store, everything_below

# in a mount namespace of its own, in which the store is read-only
IN_SNAPSHOT = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
CALL = """
import sys
from pathlib import Path
from streaming.rocketmq.rollback.export import export
from streaming.rocketmq.failures import our_errors
from streaming.rocketmq.inspect.plan import plan_of
from streaming.rocketmq.rollback.run import rollback
from tests.unit.rocketmq.converted import CLOCK, backfill, check, converted_store, follow_untouched, paths

store, out = map(Path, sys.argv[2:])
commands = {
    "plan": lambda: plan_of(paths(store)).store,
    "check": lambda: check(store).is_sound,
    "export": lambda: export(paths(store), out).files,
    "export into the store": lambda: export(paths(store), store / "ledger-reaper" / "x").files,
    "backfill": lambda: backfill(store, replace=True),
    "follow": lambda: follow_untouched(store),
    "rollback": lambda: rollback(paths(store), CLOCK),
}
try:
    with our_errors():
        print(commands[sys.argv[1]]())
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    store = tmp_path / "s"
    converted_store(store)
    return store


def on_snapshot(store: Path, command: str) -> str:
    call = [sys.executable, "-c", CALL, command, str(store), str(store.parent / "out")]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", IN_SNAPSHOT, str(store), *call], capture_output=True, text=True, check=False
    )
    if done.returncode and not done.stdout:
        pytest.skip(f"this machine lets us make no mount namespace: {done.stderr}")
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("plan", "{store}"),
        ("check", "True"),
        ("export", "{{'topics.json': 3, 'subscriptionGroup.json': 1, 'lmqConsumerOffset.json': 3}}"),
    ],
)
def test_a_read_only_snapshot_is_read(snapshot: Path, command: str, expected: str) -> None:
    before = everything_below(snapshot)
    assert on_snapshot(snapshot, command) == expected.format(store=snapshot)
    assert everything_below(snapshot) == before


@pytest.mark.parametrize("command", ["backfill", "follow", "rollback", "export into the store"])
def test_what_would_write_to_a_read_only_snapshot_is_refused_in_a_line(snapshot: Path, command: str) -> None:
    said = on_snapshot(snapshot, command)
    assert said.startswith("ConfigError this file system is read-only")
    assert "\n" not in said


def test_a_database_is_read_without_a_file_of_ours_in_its_folder(snapshot: Path) -> None:
    from streaming.adapters.rocksdb.database import opened

    before = everything_below(snapshot)
    with opened(snapshot / "consumequeue", read_only=True) as database:
        assert next(database.rows("default"))
        assert everything_below(snapshot) == before
