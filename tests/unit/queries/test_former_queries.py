"""Passes continue where a query has ended, and the checkpoint stays usable for a later query."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.queries import former_queries
from streaming.queries.checkpoints import is_unfinished, newest_number, partitions_of
from streaming.queries.former_queries import positions_of_queries
from streaming.queries.names import checkpoint_of, further_query
from udfs.proto import pulsar_api_pb2 as api

ACMES, RIVALS = "persistent://acme/reaper/d1", "persistent://rival/reaper/d2"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "config.toml"
    file.write_text(f'[checkpoints]\ndir = "{tmp_path}/checkpoints"\n')
    return load(file)


def _batch(settings: Settings, topic: str, number: int, entry: int, *, committed: bool, name: str = "") -> Path:
    """Write a batch that read a partition up to an entry of ledger 5; return the checkpoint."""
    checkpoint = Path(checkpoint_of(settings, name or further_query(topic).name))
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
    serialized = api.MessageId(ledger_id=5, entry_id=entry).SerializeToString()
    signed = [byte - 256 if byte > 127 else byte for byte in serialized]
    (checkpoint / "offsets" / str(number)).write_text("v1\n{}\n" + json.dumps({f"{topic}-partition-0": signed}))
    (checkpoint / "offsets" / f".{number}.crc").write_bytes(b"crc")
    if committed:
        (checkpoint / "commits" / str(number)).write_text("v1\n{}")
    return checkpoint


def test_the_committed_position_is_taken_over(settings: Settings) -> None:
    _batch(settings, ACMES, 0, 7, committed=True)
    _batch(settings, ACMES, 1, 9, committed=True)
    assert positions_of_queries(settings, [ACMES, RIVALS]) == {f"{ACMES}-partition-0": (5, 9)}


def test_a_batch_that_is_not_committed_is_forgotten_so_that_a_later_query_plans_its_first_batch_up_to_the_end(
    settings: Settings,
) -> None:
    _batch(settings, ACMES, 0, 7, committed=True)
    checkpoint = str(_batch(settings, ACMES, 1, 9, committed=False))
    for _ in range(2):
        assert positions_of_queries(settings, [ACMES]) == {f"{ACMES}-partition-0": (5, 7)}
        assert not is_unfinished(checkpoint)
        assert newest_number(checkpoint, "offsets") == 0
    assert not list(Path(checkpoint, "offsets").glob(".1*"))


def test_a_query_that_committed_nothing_has_no_position(settings: Settings) -> None:
    checkpoint = str(_batch(settings, ACMES, 0, 7, committed=False))
    assert positions_of_queries(settings, [ACMES]) == {}
    assert newest_number(checkpoint, "offsets") == -1


def test_a_short_named_checkpoint_is_taken_over_if_it_read_this_topic(settings: Settings) -> None:
    short = f"requests-{sha256(ACMES.encode()).hexdigest()[:8]}"
    _batch(settings, ACMES, 0, 7, committed=True, name=short)
    assert positions_of_queries(settings, [ACMES]) == {f"{ACMES}-partition-0": (5, 7)}
    assert partitions_of(checkpoint_of(settings, further_query(ACMES).name)) == {f"{ACMES}-partition-0"}


def test_topics_whose_digests_start_alike_have_checkpoints_of_their_own(settings: Settings) -> None:
    one, other = (f"persistent://acme/reaper/d{number}" for number in (19504, 73725))  # 32 bits of SHA-256 are equal
    _batch(settings, one, 0, 7, committed=True)
    _batch(settings, other, 0, 8, committed=True)
    assert positions_of_queries(settings, [one, other]) == {
        f"{one}-partition-0": (5, 7),
        f"{other}-partition-0": (5, 8),
    }


def test_a_damaged_checkpoint_stops_no_other_topic(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    damaged = _batch(settings, ACMES, 0, 7, committed=True)
    (damaged / "offsets" / "0").write_text("")
    _batch(settings, RIVALS, 0, 7, committed=True)
    assert positions_of_queries(settings, [ACMES, RIVALS]) == {f"{RIVALS}-partition-0": (5, 7)}
    assert f"{ACMES}: its messages are compared with the receipts" in caplog.text


def test_a_checkpoint_that_can_t_be_read_now_is_read_again_before_its_topic_is(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    _batch(settings, ACMES, 0, 7, committed=True)

    def unavailable(_checkpoint: str) -> dict[str, object]:
        raise UnavailableError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(former_queries, "committed_positions", unavailable)
        with pytest.raises(UnavailableError, match="away"):  # not without its position: receipts go back some days only
            positions_of_queries(settings, [ACMES])
    assert positions_of_queries(settings, [ACMES]) == {f"{ACMES}-partition-0": (5, 7)}


def test_a_list_without_new_topics_asks_no_store(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(location: str) -> None:
        raise AssertionError(location)

    monkeypatch.setattr(former_queries, "folder_of", asked)
    assert positions_of_queries(settings, []) == {}
