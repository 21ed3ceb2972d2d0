"""Names of queries, and checkpoints of versions that named queries by eight digits."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.queries.checkpoints import committed_positions, left_behind, partitions_of
from streaming.queries.names import checkpoint_of, queries_of
from streaming.queries.short_names import adopt_short_name

TOPIC = "persistent://pulsar/system/kept"
COLLIDING = tuple(f"persistent://acme/reaper/d{number}" for number in (19504, 73725))  # 32 bits of SHA-256 are equal


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def _settings(checkpoints: Path, *requests: str) -> Settings:
    file = checkpoints.parent / "config.toml"
    file.write_text(f'[topics]\nrequests = {json.dumps(requests)}\n[checkpoints]\ndir = "{checkpoints}"\n')
    return load(file)


OTHER = f"{TOPIC}-more"
SHORT = f"requests-{sha256(OTHER.encode()).hexdigest()[:8]}"


def _short_named(checkpoints: Path, *topics: str) -> Path:
    """Write a checkpoint of a version that named queries by eight hex digits, with one batch for each topic."""
    folder = checkpoints / SHORT / "v1"
    for number, topic in enumerate(topics):
        (folder / "offsets").mkdir(parents=True, exist_ok=True)
        written = json.dumps({f"{topic}-partition-0": [8, 1, 16, number]})
        (folder / "offsets" / str(number)).write_text(f"v1\n{{}}\n{written}")
    return folder


def test_no_two_topics_share_a_query_name(checkpoints: Path) -> None:
    settings = _settings(checkpoints, TOPIC)
    assert len({sha256(topic.encode()).hexdigest()[:8] for topic in COLLIDING}) == 1
    names = [query.name for query in queries_of(settings, COLLIDING)]
    assert len({*names}) == len(names)


def test_a_checkpoint_with_a_short_name_is_adopted_by_the_only_topic_it_has_read(checkpoints: Path) -> None:
    folder = _short_named(checkpoints, OTHER, OTHER)
    settings = _settings(checkpoints, TOPIC, OTHER)
    query = queries_of(settings)[1]
    assert left_behind(settings, queries_of(settings), lambda _topic: 4) == [], "its query takes it over"
    assert adopt_short_name(settings, query)
    assert not folder.parent.exists()
    assert committed_positions(checkpoint_of(settings, query.name)) == {}
    assert partitions_of(checkpoint_of(settings, query.name)) == {f"{OTHER}-partition-0"}
    assert not adopt_short_name(settings, query)


@pytest.mark.parametrize("topics", [(TOPIC,), (TOPIC, OTHER), (OTHER, TOPIC), ()])
def test_a_checkpoint_with_a_short_name_that_has_read_another_topic_stays_where_it_is(
    checkpoints: Path, topics: tuple[str, ...]
) -> None:
    folder = _short_named(checkpoints, *topics)
    settings = _settings(checkpoints, TOPIC, OTHER)
    query = queries_of(settings)[1]
    assert not adopt_short_name(settings, query)
    assert not Path(checkpoint_of(settings, query.name)).exists()
    assert folder.exists() == bool(topics)


def test_a_checkpoint_with_the_full_name_is_never_overwritten(checkpoints: Path) -> None:
    settings = _settings(checkpoints, TOPIC, OTHER)
    query = queries_of(settings)[1]
    own = Path(checkpoint_of(settings, query.name), "offsets")
    own.mkdir(parents=True)
    (own / "7").write_text(f"v1\n{{}}\n{json.dumps({f'{OTHER}-partition-1': [8, 1, 16, 9]})}")
    _short_named(checkpoints, OTHER)
    assert not adopt_short_name(settings, query)
    assert partitions_of(checkpoint_of(settings, query.name)) == {f"{OTHER}-partition-1"}
