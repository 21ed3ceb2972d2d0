"""The preflight's lines about rights, clocks and directories; the checks leave nothing in the cluster."""

from pathlib import Path

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.check.questions import (
    Notice,
    delete_right,
    directory,
    identities,
    judged_clock,
    lanes,
    own_root_and_clock,
    parked_topics,
    watcher,
)
from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.state.notes import watcher_note
from streaming.state.notes.parked_queries import ParkedQuery, note
from streaming.state.notes.watcher_note import WatcherNote
from tests.builders import DAY_MS, NOW_MS, ROOT, put
from udfs.formats.acl import CREATE, DELETE, READ, AclEntry, acl_bytes
from udfs.requests.lanes import ALL_LANES


@pytest.mark.parametrize("ahead_ms", [-5_000, 0, 5_000])
def test_clocks_that_agree_are_well(ahead_ms: int) -> None:
    assert "differ by less" in judged_clock(ahead_ms, DAY_MS)


@pytest.mark.parametrize("ahead_ms", [-5_001, 5_001, DAY_MS - 1, -DAY_MS])
def test_clocks_that_differ_are_a_problem(ahead_ms: int) -> None:
    with pytest.raises(ConfigError):
        judged_clock(ahead_ms, DAY_MS)


def test_a_clock_that_makes_young_ledgers_old_is_a_danger() -> None:
    with pytest.raises(SafetyError):
        judged_clock(DAY_MS, DAY_MS)


def _store(*acl: AclEntry) -> MemoryStore:
    tree = MemoryTree(ManualClock())
    store = MemoryStore(tree)
    put(tree, f"{ROOT}/available")
    if acl:
        put(tree, f"{ROOT}/00")
        store.create(f"{ROOT}/00/0000", b"", acl=acl_bytes([*acl, AclEntry(READ | CREATE, "world", "anyone")]))
        put(tree, f"{ROOT}/00/0000/L0005")
    return store


@pytest.mark.parametrize(
    "entry", [AclEntry(DELETE, "world", "anyone"), AclEntry(DELETE | READ, "digest", "reaper:hash")], ids=["all", "us"]
)
def test_the_right_to_delete_is_seen_on_the_ledgers_parent(entry: AclEntry) -> None:
    known = {("world", "anyone"), ("digest", "reaper:hash")}
    assert f"{ROOT}/00/0000" in delete_right(_store(entry), ROOT, known)


def test_a_kerberos_principal_is_an_identity_of_scheme_sasl() -> None:
    settings = load(None)
    keys = {"sasl_mechanism": "GSSAPI", "kerberos_principal": "reaper@EXAMPLE.COM"}
    settings = settings.model_copy(update={"zookeeper": settings.zookeeper.model_copy(update=keys)})
    granted = _store(AclEntry(DELETE, "sasl", "reaper@EXAMPLE.COM"))
    assert f"{ROOT}/00/0000" in delete_right(granted, ROOT, identities(settings))


@pytest.mark.parametrize(
    "entry", [AclEntry(READ, "world", "anyone"), AclEntry(DELETE, "digest", "other:hash")], ids=["read only", "another"]
)
def test_a_missing_right_to_delete_is_refused(entry: AclEntry) -> None:
    with pytest.raises(RefusedError, match="does not let us delete"):
        delete_right(_store(entry), ROOT, {("world", "anyone")})


@pytest.mark.parametrize("acl", [(), (AclEntry(DELETE, "sasl", "broker"),)], ids=["no ledger", "another scheme"])
def test_an_unknown_right_is_reported_as_unknown(acl: tuple[AclEntry, ...]) -> None:
    with pytest.raises(Notice):
        delete_right(_store(*acl), ROOT, {("world", "anyone")})


@pytest.mark.parametrize("ahead_ms", [0, 60_000])
def test_the_clocks_are_compared_by_a_znode_that_is_deleted_at_once(ahead_ms: int) -> None:
    tree = MemoryTree(ManualClock(NOW_MS))
    settings = load(None)
    put(tree, settings.zookeeper.own_root)
    before = tree.paths()
    clock = ManualClock(NOW_MS + ahead_ms)
    if ahead_ms:
        with pytest.raises(ConfigError, match="differ by 60 s"):
            own_root_and_clock(MemoryStore(tree), settings, clock)
    else:
        assert "znodes can be created" in own_root_and_clock(MemoryStore(tree), settings, clock)
    assert tree.paths() == before


def test_a_missing_own_root_is_reported_and_not_created() -> None:
    store = MemoryStore(MemoryTree())
    with pytest.raises(Notice, match="does not exist yet; the first start creates it"):
        own_root_and_clock(store, load(None), ManualClock())
    assert (store.tree.paths(), store.faults.effects) == (["/"], 0)


def test_our_own_root_must_let_us_make_znodes() -> None:
    store = MemoryStore(MemoryTree())
    settings = load(None)
    store.create(settings.zookeeper.own_root, b"", acl=acl_bytes([AclEntry(READ, "world", "anyone")]))
    with pytest.raises(RefusedError):
        own_root_and_clock(store, settings, ManualClock())


def test_an_existing_directory_is_checked_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    changed_ns = tmp_path.stat().st_mtime_ns
    assert "can be written" in directory(str(tmp_path))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert tmp_path.stat().st_mtime_ns == changed_ns


@pytest.mark.parametrize("uri", [False, True], ids=["path", "uri"])
def test_a_missing_directory_is_reported_and_not_created(tmp_path: Path, uri: bool) -> None:
    wanted = tmp_path / "a" / "b"
    with pytest.raises(
        Notice, match=f"does not exist yet; the first start creates it. {tmp_path} can be written"
    ) as told:
        directory(wanted.as_uri() if uri else str(wanted))
    assert "if the service has run before" in str(told.value.do)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_created_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="can't create it"):
        directory(str(tmp_path / "file" / "state"))
    with pytest.raises(ConfigError, match="can't be written"):
        directory(str(tmp_path / "file"))


def test_a_parked_topic_is_a_problem_unless_the_fallback_reads_it(tmp_path: Path) -> None:
    base = load(None)
    settings = base.model_copy(update={"state": base.state.model_copy(update={"dir": str(tmp_path)})})
    assert lanes(settings) == "no topic is parked"
    read = ParkedQuery(topic="persistent://acme/reaper/d", why="long overflow", since_ms=NOW_MS, is_read=True)
    note(str(tmp_path), {"requests-1": read})
    with pytest.raises(Notice, match=r"reaper/d has been read without the connector since .* long overflow") as noticed:
        lanes(settings)
    assert noticed.value.do == ""
    of_lanes = ParkedQuery(topic=ALL_LANES, why="1 lane: big: too many", since_ms=NOW_MS, is_read=True)
    note(str(tmp_path), {"requests-1": read, "lanes": of_lanes})
    with pytest.raises(Notice, match=r"lanes have not been read since .*: 1 lane: big: too many") as noticed:
        lanes(settings)
    assert "have the tenant repair its lane" in str(noticed.value.do)
    assert parked_topics(settings) == []
    stuck = ParkedQuery(topic="persistent://pulsar/reaper/e", why="no rights", since_ms=NOW_MS, failures=7)
    note(str(tmp_path), {"requests-1": read, "requests-2": stuck})
    with pytest.raises(UnavailableError, match=r"tried again after growing pauses: .* no rights"):
        lanes(settings)
    assert parked_topics(settings) == ["persistent://pulsar/reaper/e"]


def test_the_watchers_last_scan_is_reported_and_whether_it_is_old_or_incomplete(tmp_path: Path) -> None:
    base = load(None)
    state = base.state.model_copy(update={"dir": str(tmp_path)})
    settings = base.model_copy(update={"state": state})
    enabled = settings.model_copy(update={"watch": base.watch.model_copy(update={"enabled": True})})
    assert watcher(settings, NOW_MS) == "not in use (watch.enabled)"
    with pytest.raises(Notice, match="no scan yet"):
        watcher(enabled, NOW_MS)
    watcher_note.note(str(tmp_path), WatcherNote(at_ms=NOW_MS, znodes=7, waiting=3, unreadable=0))
    assert "7 znodes known, 3 requests not sent yet" in watcher(settings, NOW_MS + 900_000)
    with pytest.raises(Notice, match="long ago"):
        watcher(enabled, NOW_MS + 900_001)
    watcher_note.note(str(tmp_path), WatcherNote(at_ms=NOW_MS, znodes=7, waiting=3, unreadable=2))
    with pytest.raises(Notice, match="2 znodes can't be read"):
        watcher(enabled, NOW_MS)
    unwatched = WatcherNote(
        at_ms=NOW_MS, znodes=7, waiting=3, unreadable=0, unwatched=1, unwatched_names=("/managed-ledgers/t/long",)
    )
    watcher_note.note(str(tmp_path), unwatched)
    with pytest.raises(Notice, match=r"1 names can't be watched \(/managed-ledgers/t/long\)"):
        watcher(enabled, NOW_MS)
    (tmp_path / watcher_note.FILE).write_text("{")
    assert watcher(settings, NOW_MS) == "not in use (watch.enabled)"
