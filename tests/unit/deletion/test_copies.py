"""Copies for RETRY and DLQ as they are sent: none that is stored already, and each so that a broker stores it."""

from streaming.adapters.pulsar.publish import Copy
from streaming.config.load import load
from streaming.deletion.copies import _Publisher, sequence_id
from udfs import columns as c
from udfs.retry import COPY_ID, CUT_BYTES, CUT_FROM, REAL_TOPIC, REASON

SETTINGS = load(None).pulsar
PUBLISHER = _Publisher(SETTINGS, "T", "p", {})


def test_what_is_stored_is_not_sent_and_the_others_keep_their_places() -> None:
    rows = [
        {c.CHUNK: 3, c.MESSAGE_KEY: b"", c.PAYLOAD: b"%d" % place, c.MESSAGE_PROPERTIES: None, c.DELAY_MS: 0}
        for place in range(4)
    ]
    publisher = _Publisher(SETTINGS, "T", "p", {"RETRY-0": sequence_id(3, 1)})
    sent = [(copy.sequence_id, copy.payload, copy.properties) for copy in publisher._copies("RETRY-0", iter(rows))]
    assert sent == [(sequence_id(3, place), b"%d" % place, {COPY_ID: f"T/{sequence_id(3, place)}"}) for place in (2, 3)]
    assert len(list(publisher._copies("RETRY-1", iter(rows)))) == 4


def test_a_copy_that_no_broker_would_store_is_made_to_fit() -> None:
    row = {
        c.CHUNK: 3,
        c.MESSAGE_KEY: b"k" * 300_000,
        c.PAYLOAD: bytes(8 << 20),
        c.MESSAGE_PROPERTIES: {"foreign": "x" * 5_000_000, REASON: "NOT_JSON", REAL_TOPIC: "y" * 5_000_000},
        c.DELAY_MS: 0,
    }
    (copy,) = PUBLISHER._copies("p", iter([row]))
    assert copy.properties == {REASON: "NOT_JSON", CUT_FROM: str(8 << 20), COPY_ID: f"T/{copy.sequence_id}"}
    assert (copy.key, copy.payload) == (b"", bytes(CUT_BYTES))


def test_a_copy_that_fits_goes_as_it_is() -> None:
    this = sequence_id(3, 0)
    properties = {"a": "b", COPY_ID: "of the message that it is a copy of"}
    row = {c.CHUNK: 3, c.MESSAGE_KEY: b"k", c.PAYLOAD: bytes(1 << 20), c.MESSAGE_PROPERTIES: properties, c.DELAY_MS: 7}
    (copy,) = PUBLISHER._copies("p", iter([row]))
    assert copy == Copy(this, b"k", bytes(1 << 20), {"a": "b", COPY_ID: f"T/{this}"}, 7)
