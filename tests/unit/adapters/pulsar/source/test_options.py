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
    assert "topic: there is no such option; did you mean topics?" in str(refused.value)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        pytest.param({"startingPosition": "subscription"}, "needs the option subscription", id="no subscription"),
        pytest.param({"waitSeconds": "61"}, "waitSeconds: must be a number from 0 to 60", id="a long wait"),
        pytest.param({"topics": "a/b"}, "topics: ", id="no topic's name"),
        pytest.param(
            {"topics": "t/ns/a-partition-0,t/ns/b,t/ns/a"},
            "topics: persistent://t/ns/a-partition-0 is a partition of persistent://t/ns/a",
            id="a topic and its partition",
        ),
        pytest.param(
            {"tokenFile": "/t", "basicFile": "/b"},
            "tokenFile and basicFile: give only one",
            id="two credentials",
        ),
        pytest.param({"tlsCertFile": "/c"}, "tlsCertFile and tlsKeyFile belong together", id="half a certificate"),
        pytest.param(
            {"adminUrl": "http://u:p@a:8080"}, "adminUrl: .* of tokenFile or basicFile", id="a secret in a URL"
        ),
        pytest.param(
            {"serviceUrl": "http://a"}, "serviceUrl: must be a URL that starts with pulsar://", id="no scheme"
        ),
        pytest.param({"timeoutSeconds": "soon"}, "timeoutSeconds: .* integer", id="no number"),
        pytest.param({"subscription": "  "}, "subscription: .* must not be blank", id="a blank subscription"),
        pytest.param({"subscription": "a\tb"}, "subscription: .* control character", id="a subscription with a tab"),
    ],
)
def test_a_combination_that_can_not_work_is_refused(more: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        parse_options(LEAST | more)


def test_the_addresses_must_be_given() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_options({"topics": "t/ns/a"})
    assert "- serviceUrl: must be given\n- adminUrl: must be given" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        pytest.param("startingoffsets", "startingPosition", id="of another source"),
        pytest.param("service.url", "serviceUrl", id="of the connector"),
        pytest.param("admin_url", "adminUrl", id="a key of the configuration"),
        pytest.param("subscriptionname", "subscription", id="longer"),
    ],
)
def test_an_unknown_option_is_answered_with_the_most_similar_one(name: str, similar: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: there is no such option; did you mean {similar}"):
        parse_options(LEAST | {name: "x"})


def test_an_unknown_option_that_resembles_none_is_answered_with_all() -> None:
    with pytest.raises(ConfigError, match=r"qqq: there is no such option; there are topics, .*, tokenFile"):
        parse_options(LEAST | {"qqq": "x"})


def test_a_partition_beside_its_topic_does_not_end_a_query_that_permits_it() -> None:
    both = LEAST | {"topics": "t/ns/a-partition-0,t/ns/a"}
    assert len(parse_options(both, permits_partitions=True).topics) == 2
