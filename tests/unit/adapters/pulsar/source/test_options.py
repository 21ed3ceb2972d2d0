"""The options of the Spark source."""

import pytest

from streaming.adapters.pulsar.source.options import OnGap, Start, parse_options
from streaming.errors import ConfigError

LEAST = {"serviceUrl": "pulsar://a:6650", "adminUrl": "http://a:8080", "topics": "t/ns/a, persistent://t/ns/b"}


def test_options_are_named_like_the_keys_of_the_configuration() -> None:
    options = parse_options(
        LEAST
        | {
            "tokenfile": "/run/token",
            "TIMEOUTSECONDS": "7",
            "subscription": "mine",
            "startingPosition": "subscription",
            "maxMessagesPerTrigger": "10",
            "maxBytesPerTrigger": "20",
            "isolation": "read_uncommitted",
            "onDataLoss": "fail",
            "waitSeconds": "5",
        }
    )
    assert options.wait_seconds == 5
    assert options.topics == ("persistent://t/ns/a", "persistent://t/ns/b")
    assert (options.pulsar.token_file, options.pulsar.timeout_seconds) == ("/run/token", 7)
    assert (options.max_messages, options.max_bytes) == (10, 20)
    assert (options.start, options.on_gap, options.reads_uncommitted) == (Start.SUBSCRIPTION, OnGap.FAIL, True)


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_options(
            {
                "serviceUrl": "http://a",
                "adminUrl": "http://a:8080",
                "startingPosition": "middle",
                "maxMessagesPerTrigger": "0",
                "maxBytesPerTrigger": "many",
                "isolation": "none",
                "topic": "t/ns/a",
            }
        )
    for part in ("serviceUrl:", "startingPosition:", "maxMessagesPerTrigger:", "maxBytesPerTrigger:", "isolation:"):
        assert part in str(refused.value)
    assert "topics: must name topics" in str(refused.value)
    assert "topic: there is no such option" in str(refused.value)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        pytest.param({"startingPosition": "subscription"}, "needs the option subscription", id="no subscription"),
        pytest.param({"waitSeconds": "61"}, "waitSeconds: must be a number from 0 to 60", id="a long wait"),
        pytest.param({"topics": "a/b"}, "topics: ", id="no topic's name"),
        pytest.param({"subscription": "  "}, "subscription: .* must not be blank", id="a blank subscription"),
        pytest.param({"subscription": "a\tb"}, "subscription: .* control character", id="a subscription with a tab"),
    ],
)
def test_a_combination_that_can_not_work_is_refused(more: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        parse_options(LEAST | more)
