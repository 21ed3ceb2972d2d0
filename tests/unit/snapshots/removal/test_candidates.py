"""The receipts tell which topics had data ledgers that went; only allowed ones count."""

from pathlib import Path

import pytest

from streaming.config.load import load
from streaming.snapshots.removal.candidates import allowed_of, topics_with_deleted_ledgers
from udfs import columns as c

A, B = "persistent://t/ns/a", "persistent://t/other/b"


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        pytest.param((), set(), id="none unless an operator says so"),
        pytest.param(("t/ns",), {A}, id="a namespace"),
        pytest.param(("t",), {A, B}, id="a tenant"),
        pytest.param(("x", "x/ns"), set(), id="another tenant"),
    ],
)
def test_only_topics_that_an_operator_allowed_are_told(allowed: tuple[str, ...], expected: set[str]) -> None:
    rows = ({c.TOPIC_NAME: topic} for topic in (A, B, A))
    assert allowed_of(rows, frozenset(allowed)) == expected


def test_without_receipts_nothing_is_told(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[state]\ndir = "{tmp_path}"\n[snapshots]\ntrim_namespaces = ["t"]\n')
    assert topics_with_deleted_ledgers(load(file)) == []
