"""Completeness certificates: their text, the baseline of the next read, and which losses are too large."""

from dataclasses import replace

import pytest

from tests.builders import TOPIC, gone, reference
from udfs.owners.completeness import baseline_in, certificate, is_unread, shrunk
from udfs.records import Counts, Presence

PRESENT = replace(reference(checks=(("/managed-ledgers/x", 7),)), counts=Counts(12, 11))


@pytest.mark.parametrize(
    ("before", "now", "source"),
    [
        pytest.param(Counts(101, 101), Counts(20, 101), "ZooKeeper", id="one more than a fifth is gone from the list"),
        pytest.param(Counts(101, 101), Counts(101, 20), "the broker", id="the broker forgot most"),
        pytest.param(Counts(500, 500), Counts(0, 500), "ZooKeeper", id="an empty list"),
    ],
)
def test_a_source_that_names_far_fewer_ledgers_is_named(before: Counts, now: Counts, source: str) -> None:
    why = shrunk(before, now, most=0.8, above=100)
    assert why.startswith(f"{source} named")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        pytest.param(None, Counts(0, 0), id="nothing is known of before"),
        pytest.param(Counts(500, 500), Counts(100, 100), id="exactly as much as may go"),
        pytest.param(Counts(100, 100), Counts(0, 0), id="too few to judge by"),
        pytest.param(Counts(500, 500), Counts(500, -1), id="the broker is not asked any more"),
        pytest.param(Counts(500, -1), Counts(600, 3), id="the broker was not asked before"),
        pytest.param(Counts(500, 500), Counts(-1, -1), id="the owner is gone"),
    ],
)
def test_a_source_that_names_about_as_many_ledgers_did_not_shrink(before: Counts | None, now: Counts) -> None:
    assert shrunk(before, now, most=0.8, above=100) == ""


@pytest.mark.parametrize(
    ("of", "baseline", "text"),
    [
        pytest.param(PRESENT, None, "zookeeper=12@7 broker=11 at=1700000000000", id="present"),
        pytest.param(
            PRESENT, Counts(500, -1), "zookeeper=12@7 broker=11 at=1700000000000 was=500/-1", id="far less than before"
        ),
        pytest.param(
            replace(PRESENT, counts=Counts(12, -1)), None, "zookeeper=12@7 broker=- at=1700000000000", id="one source"
        ),
        pytest.param(gone(), None, "zookeeper=- broker=- at=1700000000000", id="gone"),
        pytest.param(
            reference(presence=Presence.UNREADABLE), None, "? no answer at=1700000000000", id="could not be read"
        ),
    ],
)
def test_a_certificate_records_the_answer_of_each_source(of, baseline, text) -> None:  # type: ignore[no-untyped-def]
    assert certificate(of, baseline) == text
    assert is_unread(text) == (of.presence is Presence.UNREADABLE)


@pytest.mark.parametrize(
    ("text", "baseline"),
    [
        pytest.param("zookeeper=12@7 broker=11 at=1", Counts(12, 11), id="its own counts"),
        pytest.param("zookeeper=12@7,9,2,… broker=- at=1", Counts(12, -1), id="several znodes, no broker"),
        pytest.param("zookeeper=12@7 broker=11 at=1 was=500/480", Counts(500, 480), id="the earlier baseline"),
        pytest.param("zookeeper=- broker=- at=1", None, id="an owner that is gone"),
        pytest.param("? no answer zookeeper=12@7 broker=11 at=1", None, id="a source that was not read"),
        pytest.param("", None, id="an old receipt"),
    ],
)
def test_the_next_read_is_compared_with_the_baseline(text: str, baseline: Counts | None) -> None:
    assert baseline_in(text) == baseline


def test_a_certificate_of_several_znodes_names_the_first_versions() -> None:
    many = tuple((f"/managed-ledgers/{TOPIC}/c{n}", n) for n in range(5))
    assert certificate(replace(PRESENT, checks=many)).startswith("zookeeper=12@0,1,2,… broker=11")
