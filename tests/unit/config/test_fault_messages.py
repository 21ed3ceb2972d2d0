"""Faults of a configuration are explained, with the wrong key or variable and an example."""

from pathlib import Path

import pytest

from streaming.config.fault_messages import unknown_variables
from streaming.config.load import load
from streaming.errors import ConfigError


def refusal(folder: Path, text: str) -> str:
    file = folder / "config.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(file)
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(
            '[pulsar]\nservice_url = "broker:6650"',
            'pulsar.service_url: "broker:6650" must be a URL that starts with pulsar:// or pulsar+ssl://, as in '
            '"pulsar+ssl://broker.example.com:6651"',
            id="a URL",
        ),
        pytest.param(
            '[pulsar]\nadminurl = "http://b:8080"',
            "pulsar.adminurl: unknown key; did you mean pulsar.admin_url?",
            id="a typing error",
        ),
        pytest.param(
            '[pulsar]\nledgers_root = "/ledgers"',
            "pulsar.ledgers_root: unknown key; did you mean zookeeper.ledgers_root?",
            id="another section's key",
        ),
        pytest.param("[pulsr]\n", "pulsr: unknown key; did you mean pulsar?", id="a section"),
        pytest.param(
            '[service]\nchunk_rows = "many"',
            'service.chunk_rows: "many" must be a whole number, as in 50000',
            id="no number",
        ),
        pytest.param(
            "[service]\nchunk_rows = 5", "service.chunk_rows: 5 must be at least 100", id="too small a number"
        ),
        pytest.param(
            "[safety]\nask_broker = 7",
            "safety.ask_broker: 7 must be true or false, as in true",
            id="neither yes nor no",
        ),
        pytest.param(
            '[tiered_storage]\nallowed = ["bucket"]',
            "tiered_storage.allowed.0: must be a table with the keys endpoint, bucket, region",
            id="a bucket's name alone",
        ),
        pytest.param(
            '[[tiered_storage.allowed]]\nbuckt = "b"',
            "tiered_storage.allowed.0.buckt: unknown key; did you mean tiered_storage.allowed.0.bucket?",
            id="a typing error in a list",
        ),
        pytest.param('[topics]\nrequests = "one"', 'topics.requests: "one" must be a list, as in', id="no list"),
        pytest.param("[topics]\nrequests = 5", "topics.requests: 5 must be a list, as in", id="a number for a list"),
        pytest.param("[topics]\nrequests = [5]", "topics.requests.0: 5 must be a text", id="numbers"),
        pytest.param("[topics]\nretry = [5]", "topics.retry: must be a text in quotes", id="a list for a topic"),
        pytest.param("topics = 5", "topics: must be a table with the keys requests,", id="a number for a section"),
        pytest.param(
            '[safety]\nallowed_components = ["LEDGERS"]',
            "safety.allowed_components.0: \"LEDGERS\" must be 'MANAGED_LEDGER',",
            id="an unknown component",
        ),
        pytest.param(
            '[service]\nname = "a b"',
            'service.name: "a b" must be 1 to 64 letters, digits, dashes and underscores, as in "main"',
            id="a name with a blank",
        ),
        pytest.param(
            '[spark]\ndriver_memory = "abc"',
            'spark.driver_memory: "abc" must be a whole number with the unit k, m, g or t, as in "2g"',
            id="no size of a heap",
        ),
        pytest.param(
            '[spark]\nmaster = "abc"',
            'spark.master: "abc" must be local[THREADS], yarn, or a URL that starts with spark:// or k8s://, as in '
            '"local[8]"',
            id="no master of Spark",
        ),
        pytest.param(
            '[zookeeper]\nhosts = "a b"',
            'zookeeper.hosts: "a b" must be host:port of each server, separated by commas, and a chroot, if there is '
            'one, as in "zk-0',
            id="no commas between servers",
        ),
        pytest.param('[zookeeper]\nhosts = "a:2181 ,b"', 'zookeeper.hosts: "a:2181 ,b" must be', id="a space"),
        pytest.param('[zookeeper]\nhosts = "a:2181,/b"', 'zookeeper.hosts: "a:2181,/b" must be', id="no last server"),
        pytest.param(
            '[safety]\nallowed_namespaces = ["shop/prod", "persistent://shop/prod"]',
            "safety.allowed_namespaces.1: 'persistent://shop/prod' is neither a namespace nor a tenant, as in "
            '"shop/prod" and "shop"',
            id="no namespace",
        ),
        pytest.param('[topics]\ntrusted_tenants = ["a/b"]', "topics.trusted_tenants.0: 'a/b' is not", id="no tenant"),
        pytest.param(
            '[state]\ndir = "gs://bucket/state"',
            "state.dir: gs:// is not supported, only file://, s3:// and s3a:// are",
            id="another object store",
        ),
        pytest.param('[topics]\nrequests = ["a/b/c", "x"]', "topics.requests.1: ", id="a request topic"),
        pytest.param('[topics]\nretry = "a//"', "topics.retry: ", id="the retry topic"),
        pytest.param('[topics]\nwatch = "a/b/c,d"', "topics.watch: ", id="the watcher's topic"),
    ],
)
def test_a_fault_is_explained_with_an_example(tmp_path: Path, text: str, says: str) -> None:
    said = refusal(tmp_path, text)
    assert says in said
    assert "config.toml can't be used" in said
    assert "Input should" not in said
    assert "pattern" not in said.replace("requests_pattern", "")
    assert "empty" not in said


def test_a_fault_of_a_pattern_names_its_key(tmp_path: Path) -> None:
    assert "topics.requests_pattern: a: a pattern is" in refusal(tmp_path, '[topics]\nrequests_pattern = "a"')


def test_a_password_in_a_url_is_not_shown(tmp_path: Path) -> None:
    assert "secret" not in refusal(tmp_path, '[pulsar]\nservice_url = "pulsr://user:secret@broker"')


@pytest.mark.parametrize(
    "text",
    [
        '[notify]\nwebhook_file = "https://hooks.example.com/services/s3cret"',
        '[pulsar]\ntoken_file = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.s3cret-_"',
        '[pulsar]\noauth2_key_file = \'{"client_secret": "s3cret"}\'',
        '[pulsar]\ntls_key_file = "-----BEGIN PRIVATE KEY----- s3cret"',
        '[zookeeper]\ntls_key_file = """line\ns3cret"""',
    ],
    ids=["URL", "token", "JSON", "PEM", "lines"],
)
def test_the_content_of_a_secret_file_instead_of_its_path_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    said = refusal(tmp_path, text)
    assert "_file: must be the path of a file, not its content" in said
    assert "s3cret" not in said


def test_a_fault_of_a_variable_names_the_variable_and_not_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEDGER_REAPER__PULSAR__SERVICEURL", "pulsar://b:6650")
    said = refusal(tmp_path, "")
    assert said.startswith("the environment can't be used")
    assert (
        "the variable LEDGER_REAPER__PULSAR__SERVICEURL: unknown key; did you mean LEDGER_REAPER__PULSAR__SERVICE_URL?"
        in said
    )
    monkeypatch.setenv("LEDGER_REAPER__SERVICE__CHUNK_ROWS", "x")
    assert 'LEDGER_REAPER__SERVICE__CHUNK_ROWS: "x" must be a whole number' in refusal(tmp_path, "")
    monkeypatch.setenv("LEDGER_REAPER__TOPICS__REQUESTS", "orders")
    assert "the environment can't be used" in refusal(tmp_path, "")


def test_variables_that_mean_nothing_are_named_and_those_of_others_are_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours = ["LEDGER_REAPER_CONFIG", "LEDGER_REAPER_JARS", "LEDGER_REAPER__PULSAR__SERVICE_URL", "PATH"]
    assert unknown_variables(ours) == []
    monkeypatch.setenv("LEDGER_REAPER_PULSAR_SERVICE_URL", "pulsar://b:6650")
    load(None)
    assert (
        "the variable LEDGER_REAPER_PULSAR_SERVICE_URL is no configuration key, and is ignored; did you mean "
        "LEDGER_REAPER__PULSAR__SERVICE_URL?" in caplog.text
    )


def test_a_file_of_a_windows_editor_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b'\xef\xbb\xbf[service]\r\nname = "other"\r\n')
    assert load(file).service.name == "other"
