"""`ledger-reaper request --wait`: every valid line has its receipt, in order; other lines are reported."""

import subprocess
import sys

import pytest

from streaming.errors import UnavailableError
from streaming.phase_one.lines import publish_and_wait
from tests.builders import data_request
from tests.unit.phase_one.surroundings import Memory
from udfs.records import Outcome, Reason
from udfs.requests.request_format import encode


def test_each_valid_line_has_its_receipt_and_invalid_ones_are_listed() -> None:
    memory = Memory()
    lines = [encode(data_request(5)) + b"\n", b"\n", b"no request\n", encode(data_request(6))]
    report, found = publish_and_wait(memory.settings, memory.services(), lines, 5)
    assert [each.message_id for each in found] == [each.id for each in memory.sent()]
    assert (report.published, [number for number, _why in report.invalid]) == (2, [3])
    assert memory.senders[0].is_closed


def test_an_unchecked_line_is_waited_for_too() -> None:
    memory = Memory(answers=[(Outcome.DEAD_LETTER, Reason.NOT_JSON)])
    report, (found,) = publish_and_wait(memory.settings, memory.services(), [b"no request"], 5, unchecked=True)
    assert (report.published, report.invalid, found.reason) == (1, [], Reason.NOT_JSON)


def test_a_line_that_was_not_acknowledged_is_an_error_and_the_producer_is_closed() -> None:
    memory = Memory()
    memory.pulsar.faults.fail_at(30)  # after the topics are created
    around = memory.services()
    around.ensure_topic(memory.settings.topics.requests[0])
    memory.pulsar.faults.fail_at(9)
    with pytest.raises(UnavailableError):
        publish_and_wait(memory.settings, around, [encode(data_request(n)) for n in range(200)], 5)
    assert all(each.is_closed for each in memory.senders)


def test_it_needs_no_spark() -> None:
    """The command and the receipts can be imported without pyspark."""
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import streaming.phase_one.lines\n"
        "from streaming.phase_one.receipts_by_message import newest_receipts\n"
        "from streaming.state.waiting import outstanding\n"
        "assert newest_receipts(sys.argv[1], ['1:2:3'], 0) == {} and not list(outstanding(sys.argv[1]))\n"
    )
    subprocess.run([sys.executable, "-c", program, "/nonexistent/state"], check=True)
