"""`audit --verify-only --before-removing`: topics whose ledgers would lose data or copies without a bookie."""

import json

import pytest

from streaming.adapters.memory.bookies import MemoryBookies
from streaming.adapters.memory.store import MemoryStore
from streaming.errors import ConfigError, SafetyError
from streaming.space.bookie_removal import commands, conclude, documents
from streaming.space.removal_search import Autorecovery, RemovalReport, report_of
from streaming.sweep.pace import Pace
from tests.builders import OTHER_TOPIC, ROOT, TOPIC, data_custom, put, schema_custom
from tests.placements import placed
from udfs.paths import Layout, ledger_path, topic_of
from udfs.space.survival import Effect

LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
LONG_ID = 5_000_000_000


class Cluster:
    def __init__(self, *registered: str) -> None:
        self.store, self.bookies = MemoryStore(), MemoryBookies()
        self.bookies.addresses = dict.fromkeys(registered, "")
        put(self.store.tree, f"{ROOT}/underreplication/auditorelection/V_0000000001")
        put(self.store.tree, f"{ROOT}/LAYOUT", LAYOUT)
        put(self.store.tree, f"{ROOT}/available")

    def add(self, ledger_id: int, data: bytes) -> None:
        put(self.store.tree, ledger_path(Layout.HIERARCHICAL, ROOT, ledger_id), data)

    def without(self, bookie: str) -> RemovalReport:
        return report_of(self.store, self.bookies, ROOT, bookie, Pace(0))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", "b", "c")


def test_ledgers_are_grouped_by_effect_and_topic_the_worst_first(cluster: Cluster) -> None:
    cluster.add(1, placed((0, "a"), write=1, ack=1, last=9, custom=data_custom()))
    cluster.add(2, placed((0, "ab"), write=2, ack=2, last=9, length_bytes=70, custom=data_custom()))
    cluster.add(3, placed((0, "ab"), write=2, ack=2, last=9, length_bytes=30, custom=data_custom()))
    cluster.add(4, placed((0, "ac"), write=2, ack=2, custom=data_custom(OTHER_TOPIC)))
    cluster.add(5, placed((0, "bc"), write=2, ack=2, last=9, custom=data_custom()))
    cluster.add(LONG_ID, placed((0, "ab"), write=2, ack=2, last=9, length_bytes=500, custom=schema_custom()))
    cluster.add(7, placed((0, "ab"), write=2, ack=2, last=9, length_bytes=9))

    report = cluster.without("a")

    rows = [
        (row.effect, row.topic, row.ledgers, row.size_bytes, row.open_ledgers, row.written) for row in report.topics
    ]
    orders, payments = topic_of(TOPIC), topic_of(OTHER_TOPIC)
    assert rows == [
        (Effect.LOST, orders, 1, 1_000, 0, 0),
        (Effect.BELOW_ACK_QUORUM, orders, 3, 600, 0, 0),
        (Effect.BELOW_ACK_QUORUM, "", 1, 9, 0, 0),
        (Effect.BELOW_ACK_QUORUM, payments, 1, 0, 1, 1),
    ]
    assert sorted(report.topics[1].examples) == [2, 3, LONG_ID]
    assert (report.ledgers, report.affected, report.remaining, report.absent) == (7, 6, ("b", "c"), ())
    assert not report.is_safe


def test_a_bookie_can_be_removed_if_every_entry_has_another_copy(cluster: Cluster) -> None:
    cluster.add(1, placed((0, "ab"), write=2, ack=2, last=9))

    report = cluster.without("a")

    assert report.is_safe
    assert commands(report)[-2:] == [
        "stop a, and keep its disks",
        "bookkeeper shell decommissionbookie -bookieid a   (waits until its ledgers are on other bookies)",
    ]
    assert not any("recover" in command for command in commands(report))


def test_a_bookie_without_ledgers_can_be_removed(cluster: Cluster) -> None:
    cluster.add(1, placed((0, "bc"), write=2, ack=2, last=9))

    report = cluster.without("a")

    assert (report.is_safe, report.affected, report.ledgers) == (True, 0, 1)


def test_copies_on_bookies_that_do_not_run_do_not_count() -> None:
    cluster = Cluster("a", "c")
    cluster.add(1, placed((0, "ab"), write=2, ack=2, last=9))

    report = cluster.without("a")

    assert [row.effect for row in report.topics] == [Effect.LOST]
    assert report.absent == ("b",)
    advice = " ".join(commands(report))
    assert "start the bookies that do not run, if they still have their data: b" in advice
    assert "recover -f a" in advice
    assert "1 more bookie" in advice  # two are needed, and only c is left


def test_a_read_only_bookie_keeps_its_copies_and_takes_no_new_ones(cluster: Cluster) -> None:
    cluster.add(1, placed((0, "ab"), write=2, ack=2, last=9))
    cluster.add(2, placed((0, "ac"), write=2, ack=2, last=9))
    cluster.bookies.read_only_ids = {"c", "a"}

    report = cluster.without("a")

    # b can take the copy of 2; only c could take that of 1
    assert [(row.effect, row.ledgers, row.not_copied) for row in report.topics] == [(Effect.BELOW_ACK_QUORUM, 2, 1)]
    assert (report.missing_bookies, report.read_only) == (1, ("c",))
    assert commands(report)[0].startswith("start 1 more bookie, or make read-only bookies writable again (c):")


def test_a_full_ensemble_needs_another_bookie(cluster: Cluster) -> None:
    cluster.add(1, placed((0, "abc"), write=3, ack=2, last=9))

    assert commands(cluster.without("a"))[0].startswith("start 1 more bookie: new ledgers need")


def test_topics_need_as_many_writable_bookies_as_their_ensembles_have(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    # c takes the copies, and no other bookie takes new ledgers
    cluster.add(1, placed((0, "ab"), write=2, ack=2, last=9))
    cluster.bookies.read_only_ids = {"b"}

    report = cluster.without("a")
    conclude(report, as_json=False)

    assert (report.missing_bookies, report.writable, report.largest_ensemble) == (0, 1, 2)
    assert commands(report)[0].startswith("start 1 more bookie, or make read-only")
    assert "1 writable bookie would be left: topics with ensembles of 2 could not be written" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    ("change", "expected", "shown"),
    [
        ("none", Autorecovery.RUNS, "Autorecovery then copies 1 ledger to other bookies"),
        ("disable", Autorecovery.DISABLED, "bookkeeper shell autorecovery -enable"),
        ("stop", Autorecovery.NO_AUDITOR, "start autorecovery"),
        ("hide", Autorecovery.UNKNOWN, "Autorecovery, if it runs, then copies 1 ledger"),
    ],
)
def test_the_answer_says_what_autorecovery_does(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], change: str, expected: Autorecovery, shown: str
) -> None:
    cluster.add(1, placed((0, "ab"), write=2, ack=2, last=9))
    cluster.add(2, placed((0, "abc"), write=3, ack=2, last=9))
    if change == "disable":
        put(cluster.store.tree, f"{ROOT}/underreplication/disable")
    elif change == "stop":
        cluster.store.delete(f"{ROOT}/underreplication/auditorelection/V_0000000001")
    elif change == "hide":
        cluster.store.unreadable.add(f"{ROOT}/underreplication/auditorelection")

    report = cluster.without("a")
    conclude(report, as_json=False)

    assert report.autorecovery is expected
    text = " ".join(capsys.readouterr().out.split())
    assert shown in text
    assert ("leaves 1 ledger as they are" in text) is (expected in {Autorecovery.RUNS, Autorecovery.UNKNOWN})


def test_autorecovery_cannot_save_what_is_lost(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.add(1, placed((0, "a"), write=1, ack=1, last=9))

    with pytest.raises(SafetyError):
        conclude(cluster.without("a"), as_json=False)

    assert "can't copy 1 ledger, tries for ever" in " ".join(capsys.readouterr().out.split())


def test_a_bookie_that_does_not_run_is_known_by_the_ensembles() -> None:
    cluster = Cluster("b", "c")
    cluster.add(1, placed((0, "a"), write=1, ack=1, last=9))

    report = cluster.without("a")

    assert (report.is_registered, report.affected) == (False, 1)
    assert "start a again" in " ".join(commands(report))


def test_a_bookie_that_has_only_a_cookie_is_known() -> None:
    cluster = Cluster("b", "c")
    put(cluster.store.tree, f"{ROOT}/cookies/a")

    assert cluster.without("a").is_safe


@pytest.mark.parametrize("bookie", ["http://a:8000", "d"])
def test_an_unknown_bookie_is_refused_with_the_known_ones(cluster: Cluster, bookie: str) -> None:
    cluster.add(1, placed((0, "ez"), write=2, ack=2, last=9))
    put(cluster.store.tree, f"{ROOT}/cookies/y")

    with pytest.raises(ConfigError, match=r"known are a, b, c, e, y, z"):
        cluster.without(bookie)


def test_metadata_that_cannot_be_read_are_no_proof_of_safety(cluster: Cluster) -> None:
    cluster.add(1, placed((0, "bc"), write=2, ack=2, last=9))
    cluster.add(2, b"?")
    put(cluster.store.tree, f"{ROOT}/00/0000/odd")

    report = cluster.without("a")

    assert (report.is_safe, report.unread, report.ledgers) == (False, 2, 1)
    assert {path for path, _ in report.problems} == {
        f"{ROOT}/00/0000/odd",
        ledger_path(Layout.HIERARCHICAL, ROOT, 2),
    }


def test_json_ends_with_the_totals(cluster: Cluster) -> None:
    cluster.add(1, placed((0, "ab"), write=2, ack=2, last=9, custom=data_custom()))
    cluster.add(2, b"?")

    topic, totals = json.loads(json.dumps([*documents(cluster.without("a"))]))

    assert topic == {
        "effect": "BELOW_ACK_QUORUM",
        "topic": topic_of(TOPIC),
        "ledgers": 1,
        "bytes": 1_000,
        "open_ledgers": 0,
        "written_now": 0,
        "not_copied": 0,
        "examples": [1],
    }
    assert (totals["bookie"], totals["safe"], totals["ledgers_on_bookie"], totals["unread"]) == ("a", False, 1, 1)
    assert totals["ledgers_by_effect"]["BELOW_ACK_QUORUM"] == 1
    assert totals["problems"][0]["path"] == ledger_path(Layout.HIERARCHICAL, ROOT, 2)


def test_the_answer_names_effects_topics_and_commands(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    cluster.add(1, placed((0, "ab"), write=2, ack=2, custom=data_custom()))

    conclude(cluster.without("a"), as_json=False)

    shown = capsys.readouterr().out
    for text in (
        "BELOW_ACK_QUORUM",
        topic_of(TOPIC),
        "Clients write to 1 open ledger",
        "decommissionbookie -bookieid a",
    ):
        assert text in shown


@pytest.mark.parametrize("as_json", [False, True])
def test_a_loss_ends_with_an_error(cluster: Cluster, capsys: pytest.CaptureFixture[str], *, as_json: bool) -> None:
    cluster.add(1, placed((0, "a"), write=1, ack=1, last=9, custom=data_custom()))
    cluster.add(2, b"?")

    with pytest.raises(SafetyError, match=r"1 ledger would lose data.*1 path could not be read"):
        conclude(cluster.without("a"), as_json=as_json)

    assert "recover -f a" in capsys.readouterr().out


def test_a_hostile_bookie_or_topic_is_only_displayed(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster("a\x1b[2J", "b;x")
    topic = "public/default/persistent/%1B%5B2J"
    cluster.add(1, placed((0, "a"), write=1, ack=1, last=9, custom=data_custom(topic)))

    with pytest.raises(SafetyError):
        conclude(cluster.without("a"), as_json=False)
    conclude(cluster.without("b;x"), as_json=False)

    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "-bookieid 'b;x'" in shown
