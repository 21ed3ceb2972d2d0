"""The bucket that a context or policy names, in all spellings of brokers and operators, and the operator's list."""

import pytest

from udfs.offload_drivers import DRIVERS, Bucket, Target, allowed_bucket, normal_endpoint, supported_drivers, target_of

OURS = Bucket(endpoint="http://s3.internal:9000", name="offload", region="us-east-1")
CONTEXT = {  # as Pulsar 4.0.8 writes it
    "bucket": "offload",
    "managedLedgerOffloadDriver": "S3",
    "serviceEndpoint": "http://s3.internal:9000",
    "region": "us-east-1",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", "", id="AWS's own"),
        pytest.param("  ", "", id="blank"),
        pytest.param("http://host:9000", "http://host:9000", id="as it should be"),
        pytest.param("http://host:9000/", "http://host:9000", id="trailing slash"),
        pytest.param("HTTP://Host:9000", "http://host:9000", id="case"),
        pytest.param("https://host:443", "https://host", id="https' own port"),
        pytest.param("http://host:80", "http://host", id="http's own port"),
        pytest.param("http://host:443", "http://host:443", id="https' port, spoken to without TLS"),
        pytest.param("host", "https://host", id="no scheme"),
        pytest.param("http://[::1]:9000", "http://[::1]:9000", id="IPv6"),
        pytest.param("http://host/base/", "http://host/base", id="below a path"),
        pytest.param("https://s3.amazonaws.com", "", id="AWS, old global name"),
        pytest.param("https://s3.eu-central-1.amazonaws.com", "", id="AWS, a region's name"),
        pytest.param("http://s3-us-gov-west-1.amazonaws.com/", "", id="AWS, older name of a region"),
        pytest.param("https://s3.dualstack.eu-west-1.amazonaws.com", "", id="AWS, dual stack"),
        pytest.param("https://s3.amazonaws.com.evil.example", "https://s3.amazonaws.com.evil.example", id="not AWS"),
        pytest.param("https://evils3.amazonaws.com", "https://evils3.amazonaws.com", id="not S3's host"),
        pytest.param(
            "https://s3.cn-north-1.amazonaws.com.cn", "https://s3.cn-north-1.amazonaws.com.cn", id="China's AWS"
        ),
        pytest.param("http://user@host", "http://user@host", id="with a user: never equal to one without"),
        pytest.param("http://host?x=1", "http://host?x=1", id="with a query"),
        pytest.param("http://host:port", "http://host:port", id="no port"),
        pytest.param("http://", "http://", id="no host"),
    ],
)
def test_equal_endpoints_have_the_same_normal_form(text: str, expected: str) -> None:
    assert normal_endpoint(text) == expected
    assert normal_endpoint(expected) == expected


@pytest.mark.parametrize(
    ("driver", "properties", "expected"),
    [
        pytest.param("S3", CONTEXT, Target("S3", "http://s3.internal:9000", "offload"), id="a broker's context"),
        pytest.param("", CONTEXT, Target("S3", "http://s3.internal:9000", "offload"), id="driver among the properties"),
        pytest.param("aws-s3", {"bucket": "b"}, Target("aws-s3", "", "b"), id="AWS without endpoint"),
        pytest.param(
            "GOOGLE_CLOUD_STORAGE",
            {"bucket": "b", "serviceEndpoint": ""},
            Target("GOOGLE_CLOUD_STORAGE", "https://storage.googleapis.com", "b"),
            id="Google without endpoint",
        ),
        pytest.param(
            "",
            {
                "managedLedgerOffloadDriver": "S3",
                "managedLedgerOffloadBucket": "b",
                "managedLedgerOffloadServiceEndpoint": "http://h",
            },
            Target("S3", "http://h", "b"),
            id="a namespace's policies",
        ),
        pytest.param(
            "",
            {"managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadBucket": "b"},
            Target("aws-s3", "", "b"),
            id="a namespace's policies, older names",
        ),
        pytest.param(
            "",
            {"managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadServiceEndpoint": "http://h"},
            Target("aws-s3", "http://h", ""),
            id="a namespace's policies, older name of the endpoint",
        ),
        pytest.param(
            "google-cloud-storage",
            {"gcsManagedLedgerOffloadBucket": "b"},
            Target("google-cloud-storage", "https://storage.googleapis.com", "b"),
            id="a namespace's policies, older name of Google's bucket",
        ),
        pytest.param(
            "",
            {"gcsManagedLedgerOffloadBucket": "old", "managedLedgerOffloadBucket": "new", "bucket": "context"},
            Target("", "", "context"),
            id="a key of all drivers before a driver's own",
        ),
        pytest.param("", {}, Target("", "", ""), id="nothing"),
    ],
)
def test_driver_endpoint_and_bucket_are_read(driver: str, properties: dict[str, str], expected: Target) -> None:
    assert target_of(driver, properties) == expected


@pytest.mark.parametrize("driver", ["aws-s3", "S3", "s3", "AWS_S3", "google-cloud-storage", ""])
def test_drivers_that_speak_s3_are_supported(driver: str) -> None:
    assert Target(driver, "", "b").is_supported


def test_each_driver_of_the_table_is_supported_and_named_to_the_operator() -> None:
    for driver in DRIVERS:
        for name in driver.names:
            assert target_of(name, {}) == Target(name, driver.default_endpoint, "")
            assert Target(name, "", "b").is_supported
    assert supported_drivers() == "aws-s3, S3 and google-cloud-storage"


@pytest.mark.parametrize("driver", ["azureblob", "aliyun-oss", "filesystem", "transient", "FILE_SYSTEM", "s3-like"])
def test_other_drivers_are_not(driver: str) -> None:
    assert not Target(driver, "", "b").is_supported


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param(target_of("S3", CONTEXT), OURS, id="on the list"),
        pytest.param(
            target_of("S3", CONTEXT | {"serviceEndpoint": "HTTP://S3.internal:9000/"}), OURS, id="other spelling"
        ),
        pytest.param(target_of("S3", CONTEXT | {"bucket": "Offload"}), None, id="bucket names have case"),
        pytest.param(target_of("S3", CONTEXT | {"bucket": "theirs"}), None, id="another bucket"),
        pytest.param(
            target_of("S3", CONTEXT | {"serviceEndpoint": "http://s3.internal:9001"}), None, id="another port"
        ),
        pytest.param(
            target_of("S3", CONTEXT | {"serviceEndpoint": "https://s3.internal:9000"}), None, id="another scheme"
        ),
        pytest.param(target_of("aws-s3", {"bucket": "offload"}), None, id="the same bucket at AWS"),
    ],
)
def test_only_the_operators_buckets_are_touched(target: Target, expected: Bucket | None) -> None:
    assert allowed_bucket(target, [Bucket(endpoint="", name="other", region="us-east-1"), OURS]) == expected
