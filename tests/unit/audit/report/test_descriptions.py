"""Texts for reasons."""

import pytest

from streaming.audit.report.descriptions import meaning_of
from udfs.records import Reason


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_meaning(reason: Reason) -> None:
    assert meaning_of(reason).endswith(".")
