import pytest

from udfs.rocketmq.broker_conf import BrokerConf, broker_conf, read_properties

TEXT = """# a comment
storePathRootDir = /data/store
enableLmq=false
enableLmq=true
listenPort=10911
"""


def test_a_brokers_configuration_is_read_and_the_later_line_wins() -> None:
    conf = broker_conf(read_properties(TEXT))
    assert conf == BrokerConf(store="/data/store", is_lmq=True, queue_file_units=300_000, log_file_bytes=1 << 30)


def test_missing_settings_are_not_invented() -> None:
    assert broker_conf({}) == BrokerConf(
        queue_file_units=300_000, log_file_bytes=1 << 30
    )  # the default of a broker that is known
    assert broker_conf({"enableLmq": "FALSE"}).is_lmq is False


def test_the_limit_from_which_a_broker_deletes_messages_is_read_as_the_broker_reads_it() -> None:
    said = {"99": 85, "85": 85, "60": 60, "5": 30, "": 85, "x": 85}
    found = {each: broker_conf({"diskSpaceCleanForciblyRatio": each}).clean_forcibly_percent for each in said}
    assert found == said


def test_the_size_of_a_queue_file_is_rounded_up_to_units_as_the_broker_does() -> None:
    said = {"6000000": 300_000, "20": 1, "21": 2, "x": 300_000}
    found = {each: broker_conf({"mappedFileSizeConsumeQueue": each}).queue_file_units for each in said}
    assert found == said


def test_the_size_of_a_log_file_is_read() -> None:
    said = {"1048576": 1 << 20, "x": 1 << 30}
    found = {each: broker_conf({"mappedFileSizeCommitLog": each}).log_file_bytes for each in said}
    assert found == said


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\tb", {"a": "b"}),
        ("  a  :  b c  ", {"a": "b c"}),
        ("a = = b", {"a": "= b"}),
        ("a=b:c=d", {"a": "b:c=d"}),
        ("a", {"a": ""}),
        ("a\\:b=c", {"a:b": "c"}),
        ("a=/x/\\\n   y\nb=z", {"a": "/x/y", "b": "z"}),
        ("a=1\\\n#2\nb=3", {"a": "1#2", "b": "3"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("# a=b\\\nc=d\n! e=f", {"c": "d"}),
        ("a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
        ("a=\\u0041\\q\\t.", {"a": "Aq\t."}),
        ("a=b\\", {"a": "b"}),
        ("", {}),
    ],
)
def test_a_file_is_read_as_java_reads_it(text: str, found: dict[str, str]) -> None:
    assert read_properties(text) == found
