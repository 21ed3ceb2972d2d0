"""Whatever the znode of Pulsar's migration contains, it names a reason to judge and delete nothing."""

import json

import pytest

from udfs.formats.store_migration import MIGRATION_PATH, MigrationPhase, describe_migration, unknown_migration

TARGET = "oxia://oxia1:6648/default"


def state(phase: object, target: object = TARGET) -> bytes:
    """Return the bytes that Pulsar writes (MigrationState by Jackson)."""
    return json.dumps({"phase": phase, "targetUrl": target}, separators=(",", ":")).encode()


@pytest.mark.parametrize("phase", list(MigrationPhase))
def test_every_phase_is_named_with_its_target_and_a_remedy(phase: MigrationPhase) -> None:
    text = describe_migration(state(phase))
    assert f"to {TARGET} has phase {phase}. Nothing is judged or deleted while {MIGRATION_PATH} exists. " in text
    assert not text.endswith("exists. ")


@pytest.mark.parametrize(
    ("phase", "remedy"),
    [
        (MigrationPhase.COPYING, "Wait until it has ended"),
        (MigrationPhase.COMPLETED, "stop Ledger Reaper for this cluster"),
        (MigrationPhase.FAILED, "delete the znode"),
    ],
)
def test_the_remedy_fits_the_phase(phase: MigrationPhase, remedy: str) -> None:
    assert remedy in describe_migration(state(phase))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'"COPYING"', id="no object"),
        pytest.param(b"{}", id="no phase"),
        pytest.param(state("ROLLED_BACK"), id="a later version's phase"),
        pytest.param(state(["COPYING"]), id="a list"),
        pytest.param(state(None), id="null"),
        pytest.param(state("copying"), id="another spelling"),
    ],
)
def test_content_that_is_not_understood_counts_as_a_migration_of_unknown_phase(data: bytes) -> None:
    text = describe_migration(data)
    assert text.startswith(f"{MIGRATION_PATH} exists, so Pulsar's migration to another metadata store has started")
    assert "its phase is unknown" in text
    assert "Nothing is judged or deleted" in text
    assert len(text) < 1_500


@pytest.mark.parametrize("target", [None, "", 7, {}])
def test_a_missing_target_does_not_hide_the_phase(target: object) -> None:
    assert "to another metadata store has phase COPYING" in describe_migration(state("COPYING", target))


def test_a_znode_that_can_not_be_read_counts_as_a_migration() -> None:
    assert "its phase is unknown: no permission to read it" in unknown_migration("no permission to read it")


def test_a_long_target_does_not_flood_the_log() -> None:
    assert len(describe_migration(state("COPYING", "oxia://" + "x" * 10_000))) < 1_500
