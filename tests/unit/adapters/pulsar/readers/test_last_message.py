"""Both interfaces of a broker are asked for a partition's last message."""

import pytest

from streaming.adapters.pulsar.readers import frames
from streaming.adapters.pulsar.readers.last_message import reports_last_message
from streaming.errors import UnavailableError
from tests.unit.adapters.pulsar.frame_broker import Partition, serving, settings_for
from tests.unit.adapters.pulsar.stored_entries import LAST, STORED, TOPIC, Admin


@pytest.mark.parametrize(("knows_last", "expected"), [(True, True), (False, False)])
def test_a_reader_and_the_admin_api_must_report_the_last_message(knows_last: bool, expected: bool) -> None:
    with serving(Partition(STORED, LAST)) as partition:
        assert reports_last_message(settings_for(partition), Admin(knows_last=knows_last), TOPIC) is expected


def test_a_reader_without_an_answer_is_enough_to_deny_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_LAST_SECONDS", 0.2)
    with serving(Partition(STORED, None, is_silent_on_last=True)) as partition:
        assert not reports_last_message(settings_for(partition, timeout_seconds=60), Admin(), TOPIC)


def test_a_broker_that_does_not_answer_at_all_is_an_outage() -> None:
    with serving(Partition(STORED, LAST)) as partition, pytest.raises(UnavailableError, match="no broker answers"):
        reports_last_message(settings_for(partition), Admin(knows_last=False, is_up=False), TOPIC)
