"""Only a receipt of the same request proves the origin of a dead letter, never the letter's own content."""

from pathlib import Path
from typing import Any

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.dlq.letters import DeadLetter
from streaming.dlq.origins import Origins
from streaming.ports import StoredMessage
from tests.builders import NOW_MS, data_request
from tests.unit.reconcile.rows import write_rows
from udfs import columns as c
from udfs.requests.replay_target import MORE_RIGHTS, UNPROVEN, Stays
from udfs.requests.request_format import MAX_PAYLOAD_BYTES, decode, encode
from udfs.requests.retry import CUT_BYTES, ORIGIN_MESSAGE_ID, REAL_TOPIC, REASON

OURS = "persistent://pulsar/system/__ledger_deletion"
ACME = "persistent://acme/reaper/deletions"
ASKED = encode(data_request(5))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """One request topic, and those that match a pattern."""
    file = tmp_path / "config.toml"
    file.write_text('[topics]\nrequests_pattern = "persistent://[^/]+/reaper/deletions"\n[state]\ndir = "state"\n')
    return load(file)


@pytest.fixture
def admin(settings: Settings) -> MemoryPulsar:
    """Both topics exist."""
    memory = MemoryPulsar(ManualClock(NOW_MS))
    for topic in (OURS, ACME):
        memory.ensure_namespace(topic)
        memory.create_partitioned_topic(topic, 1)
    return memory


def _letter(payload: bytes = ASKED, **properties: str) -> DeadLetter:
    about = {ORIGIN_MESSAGE_ID: "1:2:0", REASON: "OTHER_TENANT: no", REAL_TOPIC: OURS} | properties
    dlq = "persistent://pulsar/ledger-deletion/__ledger_deletion-DLQ-partition-0"
    return DeadLetter(
        StoredMessage(
            partition=dlq,
            ledger_id=7,
            entry_id=0,
            batch_index=-1,
            publish_ms=NOW_MS,
            key="k",
            payload=payload,
            properties=about,
        ),
        decode(payload),
    )


def _receipt(settings: Settings, topic: str, **columns: Any) -> None:
    about = {
        c.ORIGIN_MESSAGE_ID: "1:2:0",
        c.OUTCOME: "DEAD_LETTER",
        c.TARGET: settings.topics.dead_letter,
        c.PAYLOAD: ASKED,
        c.MESSAGE_PROPERTIES: [(REAL_TOPIC, topic)],
    }
    write_rows(Path(settings.state.dir), "receipts", [(1, 2, -1)], about=about | columns)


def _target(settings: Settings, admin: MemoryPulsar, letter: DeadLetter, to: str = "") -> str | Stays:
    ((_letter, target),) = Origins(settings, admin, to).targets([letter])
    return target


def test_a_letter_of_a_patterns_topic_returns_there_whatever_its_properties(
    settings: Settings, admin: MemoryPulsar
) -> None:
    _receipt(settings, ACME)
    assert _target(settings, admin, _letter()) == ACME
    assert _target(settings, admin, _letter(), to=OURS) == Stays(MORE_RIGHTS)


def test_a_letter_of_a_deleted_topic_of_a_pattern_stays_and_becomes_no_trusted_request(
    settings: Settings, admin: MemoryPulsar
) -> None:
    gone = "persistent://gone/reaper/deletions"
    _receipt(settings, gone)
    assert _target(settings, admin, _letter()) == Stays(f"there is no partitioned topic {gone} any more")
    assert _target(settings, admin, _letter(), to=OURS) == Stays(MORE_RIGHTS)


def test_without_any_state_a_letter_stays_unless_a_person_names_the_topic(
    settings: Settings, admin: MemoryPulsar
) -> None:
    letter = _letter(REASON="IN_USE: listed")
    assert _target(settings, admin, letter) == Stays(UNPROVEN)
    assert _target(settings, admin, letter, to=OURS) == OURS


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({c.PAYLOAD: encode(data_request(6))}, id="another request's, whose origin the letter claims"),
        pytest.param({c.ORIGIN_MESSAGE_ID: "1:3:0"}, id="another origin's"),
        pytest.param({c.OUTCOME: "RETRY"}, id="a retry's"),
        pytest.param({c.TARGET: "persistent://pulsar/ledger-deletion/another-DLQ"}, id="of another dead-letter topic"),
        pytest.param({c.MESSAGE_PROPERTIES: []}, id="one that names no topic"),
    ],
)
def test_a_receipt_of_something_else_proves_nothing(
    settings: Settings, admin: MemoryPulsar, columns: dict[str, Any]
) -> None:
    _receipt(settings, OURS, **columns)
    assert _target(settings, admin, _letter()) == Stays(UNPROVEN)


def test_the_copy_of_a_message_that_was_too_long_is_known_by_its_beginning(
    settings: Settings, admin: MemoryPulsar
) -> None:
    whole = bytes(MAX_PAYLOAD_BYTES + 1)
    _receipt(settings, ACME, **{c.PAYLOAD: whole})
    assert _target(settings, admin, _letter(whole[:CUT_BYTES])) == ACME
