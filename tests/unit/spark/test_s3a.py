"""Checkpoints on S3: Spark and pyarrow are sent to the same place, and neither is handed a secret."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from streaming.check import questions as preflight
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.config.stores import located
from streaming.errors import ReaperError, SafetyError, UnavailableError
from streaming.queries.checkpoints import location_of, root_of
from streaming.queries.names import checkpoint_of
from streaming.spark import ivy, s3a
from streaming.spark import jars as artifacts
from streaming.spark.s3a import faults_named, name_profiles_for_java, spark_conf
from streaming.spark.session import fetched_jars
from streaming.state.filesystem import shown


def _settings(folder: Path, text: str, store: str = "") -> Settings:
    file = folder / "config.toml"
    file.write_text(f"[checkpoints]\n{text}\n[s3]\n{store}\n")
    return load(file)


@pytest.mark.parametrize(
    ("text", "endpoint", "region"),
    [
        pytest.param('endpoint = "http://10.0.0.1:9000"', "http://10.0.0.1:9000", "us-east-1", id="a store"),
        pytest.param("", "https://s3.us-east-1.amazonaws.com", "us-east-1", id="AWS"),
        pytest.param(
            'region = "eu-central-1"', "https://s3.eu-central-1.amazonaws.com", "eu-central-1", id="AWS elsewhere"
        ),
    ],
)
def test_spark_and_pyarrow_are_sent_to_the_same_place_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, endpoint: str, region: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://elsewhere")
    settings = _settings(tmp_path, 'dir = "s3://bucket/a/b/"', text)

    conf = spark_conf(settings)
    read = urlsplit(location_of(settings, "requests"))
    options = {key: values[0] for key, values in parse_qs(read.query).items()}

    assert (conf["spark.hadoop.fs.s3a.endpoint"], conf["spark.hadoop.fs.s3a.endpoint.region"]) == (endpoint, region)
    assert f"{options['scheme']}://{options['endpoint_override']}" == endpoint
    assert options["region"] == region
    assert checkpoint_of(settings, "requests") == f"s3a://{read.netloc}{read.path}" == "s3a://bucket/a/b/requests/v1"
    assert shown(root_of(settings)) == "s3://bucket/a/b"


def test_no_secret_is_in_what_spark_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "my-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "my-secret")
    settings = _settings(tmp_path, 'dir = "s3a://bucket/a"')

    told = f"{spark_conf(settings)} {root_of(settings)}"

    assert "my-id" not in told
    assert "my-secret" not in told


@pytest.mark.parametrize("location", ["/var/lib/c", "checkpoints", "file:///c"])
def test_a_directory_on_a_disk_is_taken_as_it_is(tmp_path: Path, location: str) -> None:
    settings = _settings(tmp_path, f'dir = "{location}"')

    assert located(settings.s3, location) == location
    assert spark_conf(settings) == {}


def test_java_finds_the_profile_file_that_everybody_else_finds() -> None:
    environment = {"AWS_SHARED_CREDENTIALS_FILE": "/etc/aws"}
    name_profiles_for_java(environment)
    assert environment["AWS_CREDENTIAL_PROFILES_FILE"] == "/etc/aws"

    named, nothing = {**environment, "AWS_CREDENTIAL_PROFILES_FILE": "/java"}, dict[str, str]()
    name_profiles_for_java(named)
    name_profiles_for_java(nothing)
    assert (named["AWS_CREDENTIAL_PROFILES_FILE"], nothing) == ("/java", {})


DENIED = "copyFile on s3a://bucket/a: com.amazonaws.services.s3.model.AmazonS3Exception: Forbidden"


@pytest.mark.parametrize(
    ("location", "error", "raised"),
    [
        pytest.param(
            "s3a://bucket/a", ReaperError(f"query requests failed:\n{DENIED}\n at x"), UnavailableError, id="s3"
        ),
        pytest.param("s3a://bucket/a", RuntimeError(DENIED), UnavailableError, id="a query that could not be started"),
        pytest.param("s3a://bucket/a", ReaperError("query requests failed: a bug"), ReaperError, id="another fault"),
        pytest.param("s3a://bucket/a", SafetyError(DENIED), SafetyError, id="what stops for safety stays that"),
        pytest.param("/c", ReaperError(DENIED), ReaperError, id="no checkpoints on S3"),
    ],
)
def test_a_store_that_fails_spark_is_said_to_be_unavailable(
    tmp_path: Path, location: str, error: Exception, raised: type[Exception]
) -> None:
    settings = _settings(tmp_path, f'dir = "{location}"')

    with pytest.raises(raised) as said, faults_named(settings.checkpoints):
        raise error

    assert type(said.value) is raised
    assert (str(said.value) == f"the checkpoints at s3a://bucket/a can't be read or written: {DENIED}") is (
        raised is UnavailableError
    )


CONNECTOR = "pulsar-spark-connector_2.12-3.1.1.4.jar"


@pytest.mark.parametrize(
    ("has_connector", "location", "everywhere", "driver"),
    [
        (True, "s3a://bucket/a", [CONNECTOR], ["hadoop-aws-3.3.4.jar", "aws-java-sdk-bundle-1.12.262.jar"]),
        (True, "/var/lib/c", [CONNECTOR], []),
        (
            False,
            "s3a://bucket/a",
            [],
            ["hadoop-aws-3.5.0.jar", "bundle-2.35.4.jar", "analyticsaccelerator-s3-1.3.1.jar"],
        ),
        (False, "/var/lib/c", [], []),
    ],
)
def test_only_archives_that_are_needed_are_fetched(  # noqa: PLR0917  pytest gives each by name
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_connector: bool,
    location: str,
    everywhere: list[str],
    driver: list[str],
) -> None:
    settings = _settings(tmp_path, f'dir = "{location}"')
    monkeypatch.setattr(artifacts, "has_connector", lambda: has_connector)
    for module in (ivy, artifacts):
        monkeypatch.setattr(module, "fetch", lambda wanted, **_: [Path(each.file_name) for each in wanted])
    monkeypatch.setattr(ivy, "default_cache", lambda: tmp_path)

    found = fetched_jars(settings)

    assert [[path.name for path in paths] for paths in found] == [everywhere, driver]
    if not (everywhere or driver):
        assert preflight.jars(settings) == "none are needed"
        return
    with pytest.raises(preflight.Notice) as missing:
        preflight.jars(settings)
    assert str(missing.value).startswith(f"{', '.join([*everywhere, *driver])} (")


@pytest.mark.parametrize("has_connector", [True, False])
def test_each_spark_is_given_its_own_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_connector: bool
) -> None:
    monkeypatch.setattr(s3a, "has_connector", lambda: has_connector)
    conf = spark_conf(_settings(tmp_path, 'dir = "s3a://bucket/a"'))
    manager = conf["spark.sql.streaming.checkpointFileManagerClass"].removeprefix("org.apache.spark.sql.execution.")
    credentials = conf["spark.hadoop.fs.s3a.aws.credentials.provider"]
    assert manager == f"streaming.{'' if has_connector else 'checkpointing.'}FileSystemBasedCheckpointFileManager"
    assert credentials.startswith("com.amazonaws.auth." if has_connector else "software.amazon.awssdk.auth.")
