"""Unsafe settings are refused together, before any effect, with a remedy for each."""

import traceback
from pathlib import Path

import pytest

from streaming.config.load import load
from streaming.errors import ConfigError

SYSTEM = "persistent://pulsar/system/__ledger_deletion"
BESIDE = "persistent://pulsar/ledger-deletion/__ledger_deletion"
PRIVATE = "persistent://pulsar/ledger-reaper/requests"
MINE, THEIRS = "persistent://acme/reaper/requests", "persistent://rival/reaper/requests"


def write(folder: Path, text: str) -> Path:
    file = folder / "config.toml"
    file.write_text(text)
    return file


def test_the_defaults_are_safe() -> None:
    safety = load(None).safety
    assert (safety.open_quiet_period, safety.ask_broker, safety.max_shrink) == (6 * 3600, True, 0.8)
    topics = load(None).topics
    assert topics.requests == (SYSTEM,)
    assert topics.deduplicated == (f"{BESIDE}-RETRY", f"{BESIDE}-DLQ", f"{BESIDE}-WATCH")


def test_the_defaults_of_pip_186s_keys_are_pip_186s() -> None:
    keys = load(None).two_phase
    assert keys.ledger_deletion_parallelism == 4
    assert keys.reconsume_later_seconds == 600
    assert keys.max_retry_delete_count == 10
    assert keys.send_delay_seconds == 60  # of the first draft


@pytest.mark.parametrize("is_variable", [False, True])
def test_the_key_of_the_connector_is_accepted_and_ignored(
    is_variable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if is_variable:
        monkeypatch.setenv("LEDGER_REAPER__SPARK__CONNECTOR", "any:jar:1")
    file = write(tmp_path, "" if is_variable else '[spark]\nconnector = "any:jar:1"\nui_port = 1\n')
    assert load(file).spark == load(None).spark.model_copy(update={} if is_variable else {"ui_port": 1})
    assert "spark.connector has no effect" in caplog.text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(
            "[zookeeper]\nsession_timeout_seconds = 31\ntimeout_seconds = 30",
            "would cost the session",
            id="an answer may take longer than the session lives",
        ),
        pytest.param('[zookeeper]\nhosts = "oxia://oxia1:6648"', "is an address of Oxia", id="Oxia"),
        pytest.param('[zookeeper]\nhosts = "etcd:http://etcd1:2379"', "is an address of etcd", id="etcd"),
        pytest.param('[zookeeper]\nown_root = "/ledgers/x"', "is below a root", id="our znodes among ledgers"),
        pytest.param('[zookeeper]\nsasl_mechanism = "PLAIN"', "only DIGEST-MD5 and GSSAPI", id="another mechanism"),
        pytest.param(
            '[zookeeper]\nsasl_mechanism = "GSSAPI"\nkerberos_keytab_file = "k"',
            'zookeeper.kerberos_principal and sasl_mechanism = "GSSAPI" belong together',
            id="Kerberos without a principal",
        ),
        pytest.param(
            '[zookeeper]\nsasl_mechanism = "GSSAPI"\nkerberos_principal = "a@B"',
            'zookeeper.kerberos_keytab_file and sasl_mechanism = "GSSAPI" belong together',
            id="Kerberos without a keytab",
        ),
        pytest.param(
            '[zookeeper]\nsasl_mechanism = "GSSAPI"\ndigest_file = "d"',
            "zookeeper.digest_file has no effect",
            id="Kerberos and a digest",
        ),
        pytest.param(
            '[zookeeper]\nkerberos_principal = "a@B"',
            'kerberos_principal and sasl_mechanism = "GSSAPI" belong together',
            id="a principal without Kerberos",
        ),
        pytest.param('[zookeeper]\nsasl_mechanism = "DIGEST-MD5"', "needs zookeeper.digest_file", id="sasl, no secret"),
        pytest.param(
            '[pulsar]\ntoken_file = "t"\nadmin_url = "http://pulsar.example.com"', "unencrypted", id="token in clear"
        ),
        pytest.param(
            '[pulsar]\nbasic_file = "b"\nadmin_url = "http://pulsar.example.com"',
            "pulsar.basic_file: the secret would go over the network unencrypted",
            id="password in clea",
        ),
        pytest.param(
            '[pulsar]\nbasic_file = "b"\ntoken_file = "t"',
            "pulsar.token_file and pulsar.basic_file: give only one",
            id="two kinds of credentials",
        ),
        pytest.param('[pulsar]\ntls_key_file = "k"', "belong togethe", id="a key without a certificate"),
        pytest.param(
            '[pulsar]\ntls_cert_file = "c"\ntls_key_file = "k"\nadmin_url = "https://h"',
            "over TLS only; use a pulsar+ssl:// service_url",
            id="a certificate without TLS",
        ),
        pytest.param(
            '[pulsar]\noauth2_scope = "s"', "oauth2_scope needs pulsar.oauth2_key_file", id="OAuth2 without a key"
        ),
        pytest.param('[pulsar]\noauth2_key_file = "k"', "needs pulsar.oauth2_issuer_url", id="OAuth2 without an issue"),
        pytest.param(
            '[pulsar]\noauth2_key_file = "k"\noauth2_issuer_url = "http://issuer.example.com"',
            "the client secret would go over the network unencrypted",
            id="an issuer in clea",
        ),
        pytest.param(
            '[pulsar]\noauth2_key_file = "k"\noauth2_issuer_url = "https://me:hunter2@issue"',
            "pulsar.oauth2_key_file",
            id="a secret in the issuer's URL",
        ),
        pytest.param(
            '[metrics]\notlp_endpoint = "https://me:hunter2@collector"',
            "OTEL_EXPORTER_OTLP_HEADERS",
            id="a secret in the collector's URL",
        ),
        pytest.param(
            '[pulsar]\ntoken_file = "t"\nadmin_url = "http://127.0.0.1:8080,pulsar.example.com:8080"',
            "unencrypted",
            id="token in clear to the second of two",
        ),
        pytest.param(
            '[pulsar]\ntoken_file = "t"\nservice_url = "pulsar://pulsar.example.com:6650"',
            "use a pulsar+ssl:// service_url",
            id="token in clear to brokers",
        ),
        pytest.param(
            '[pulsar]\ntoken_file = "t"\nadmin_url = "http://127.evil.example:8080"',
            "use an https:// admin_url",
            id="token in clear to a name that starts like a loopback address",
        ),
        pytest.param(
            '[pulsar]\ntoken_file = "t"\nservice_url = "pulsar+ssl://b"\nadmin_url = "https://b"',
            "needs pulsar.tls_trust_certs_file",
            id="token to any server with a public certificate",
        ),
        pytest.param(
            '[pulsar]\nadmin_url = "http://a:8080,http://b:8080"', "pulsar.admin_url", id="a scheme for each of two"
        ),
        pytest.param(
            f'[topics]\nrequests = ["{MINE}", "{THEIRS}"]',
            "topics.retry persistent://acme/reaper/requests-RETRY belongs to tenant acme",
            id="two tenants, and one of them could write the retries of the other",
        ),
        pytest.param(
            f'[topics]\nrequests = ["{SYSTEM}", "{MINE}"]\ndead_letter = "{MINE}-DLQ"',
            "topics.dead_letter",
            id="a tenant could write dead letters of others",
        ),
        pytest.param(f'[topics]\nretry = "{SYSTEM}-RETRY"', "never deduplicate", id="retries could be doubled"),
        pytest.param(f'[topics]\ndead_letter = "{SYSTEM}-DLQ"', "never deduplicate", id="dead letters could be"),
        pytest.param(f'[topics]\nwatch = "{SYSTEM}-WATCH"', "never deduplicate", id="the watcher's requests could be"),
        pytest.param(
            '[topics]\nrequests = ["persistent://a/b/c"]\nwatch = "persistent://a/b/c"',
            "must all differ",
            id="the watcher's topic is a listed one",
        ),
        pytest.param(
            '[topics]\nwatch = "segment://public/default/x/0000-ffff-0"',
            "is a segment",
            id="a segment as a topic of ours",
        ),
        pytest.param(
            f'[topics]\nrequests = ["{MINE}"]\n[watch]\nenabled = true',
            "topics.watch persistent://acme/reaper/requests-WATCH belongs to tenant acme",
            id="a watcher that speaks for one tenant",
        ),
        pytest.param(
            f'[topics]\nrequests = ["{SYSTEM},x"]', "would read another topic", id="two topics to the connector"
        ),
        pytest.param('[topics]\nsubscription = " "', "must not be blank", id="a blank subscription"),
        pytest.param(
            '[topics]\nrequests_pattern = "persistent://acme/.*"', "a pattern is persistent://", id="half a name"
        ),
        pytest.param(
            f'[topics]\nrequests = ["{MINE}"]\nrequests_pattern = "persistent://.*/reaper/d"',
            "topics.retry persistent://acme/reaper/requests-RETRY belongs to tenant acme",
            id="a pattern over tenants, and one of them could write the retries of the others",
        ),
        pytest.param(
            f'[topics]\nlanes = "tenant"\nrequests = ["{MINE}"]\nretry = "{PRIVATE}-R"\ndead_letter = "{PRIVATE}-D"',
            "put a topic in a trusted tenant's namespace first",
            id="owners without a lane share the topic of one tenant",
        ),
        pytest.param("[topics]\nreceipts = true", "topics.receipts needs topics.lanes", id="receipts for no lane"),
        pytest.param("[safety]\nmax_shrink = 0.0", "safety.max_shrink", id="a limit that nothing meets"),
        pytest.param('[state]\ndir = "s3://bucket"', "must be s3://bucket/folder", id="receipts in a whole bucket"),
        pytest.param('[state]\ndir = "s3n://bucket/state"', "or s3://bucket/folder", id="an old name of S3"),
        pytest.param('[state]\ndir = "s3://b-1/a?x=y"', "must be s3://bucket/folder", id="options of the state"),
        pytest.param(
            '[state]\ndir = "s3://b-1/a/"\n[checkpoints]\ndir = "s3a://b-1/a"', "two directories", id="one in two names"
        ),
        pytest.param('[checkpoints]\ndir = "s3a://bucket"', "must be s3://bucket/folder", id="a whole bucket"),
        pytest.param('[checkpoints]\ndir = "s3a://key:word@bucket/c"', "never from here", id="a secret in a URI"),
        pytest.param('[checkpoints]\ndir = "s3a://bucket/c?x=y"', "s3://bucket/folder", id="options in a URI"),
        pytest.param('[checkpoints]\ndir = "s3a://bucket/../c"', "s3://bucket/folder", id="a way up"),
        pytest.param('[s3]\nendpoint = "minio:9000"', "s3.endpoint", id="an endpoint that is no URL"),
        pytest.param('[checkpoints]\nendpoint = "http://m:9000"', "write s3.endpoint instead", id="where it stood"),
        pytest.param('[checkpoints]\nregion = "r"\nendpoint = ""', "s3.endpoint and s3.region", id="both, there"),
        pytest.param("[service]\nmax_request_bytes = 1_023", "service.max_request_bytes", id="no room for a request"),
        pytest.param(
            "[service]\nmax_request_bytes = 1_048_577", "service.max_request_bytes", id="messages of megabytes"
        ),
        pytest.param("[safety]\nmax_shrnk = 0.5", "unknown key", id="a key with a typing error"),
    ],
)
def test_unsafe_combinations_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(write(tmp_path, text))
    assert says in str(refused.value)


KERBEROS = """
[zookeeper]
sasl_mechanism = "GSSAPI"
kerberos_principal = "ledger-reaper/host.example.com@EXAMPLE.COM"
kerberos_keytab_file = "keytab"
"""


@pytest.mark.parametrize("is_installed", [True, False])
def test_kerberos_needs_a_package_that_not_every_installation_has(
    is_installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.config.combinations.has_package", lambda name: is_installed and name == "kerberos")
    if is_installed:
        assert load(write(tmp_path, KERBEROS)).zookeeper.kerberos_service == "zookeeper"
    else:
        with pytest.raises(ConfigError, match=r"ledger-reaper\[kerberos\].*Debian: gcc and libkrb5-dev"):
            load(write(tmp_path, KERBEROS))


@pytest.mark.parametrize("principal", ["reaper", "reaper@", "@EXAMPLE.COM", "re aper@EXAMPLE.COM", "a@B@C"])
def test_a_principal_has_a_realm(principal: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a principal with its realm"):
        load(write(tmp_path, f'[zookeeper]\nkerberos_principal = "{principal}"'))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param('[pulsar]\nadmin_url = "https://ops:hunter2@h:8443"', "pulsar.token_file", id="admin_url"),
        pytest.param('[pulsar]\nadmin_url = "https://hunter2@h"', "pulsar.admin_url", id="only a user"),
        pytest.param('[pulsar]\nadmin_url = "https://h/?token=hunter2"', "pulsar.admin_url", id="a query"),
        pytest.param('[pulsar]\nadmin_url = "https://h/#hunter2"', "pulsar.admin_url", id="a fragment"),
        pytest.param('[pulsar]\nadmin_url = "ops:hunter2@h"', "pulsar.admin_url", id="no URL"),
        pytest.param('[pulsar]\nadmin_url = ["hunter2"]', "pulsar.admin_url", id="no text"),
        pytest.param('[pulsar]\nservice_url = "pulsar://a,o:hunter2@h:6650"', "pulsar.token_file", id="service_url"),
        pytest.param(
            '[tiered_storage]\nallowed = [{ endpoint = "https://k:hunter2@h", bucket = "abc" }]',
            "tiered_storage.credentials_file",
            id="a bucket's endpoint",
        ),
        pytest.param('[s3]\nendpoint = "https://k:hunter2@h"', "AWS's standard chain", id="the state's endpoint"),
        pytest.param('[checkpoints]\nendpoint = "https://k:hunter2@h"', "s3.endpoint", id="where it stood"),
        pytest.param('[checkpoints]\ndir = "s3a://k:hunt/hunter2@b/c"', "checkpoints.dir", id="a key with a slash"),
        pytest.param(
            '[checkpoints]\ndir = "s3a://b/c?secret_key=hunter2"', "checkpoints.dir", id="a directory's query"
        ),
        pytest.param('[checkpoints]\ndir = "abfs://c:hunter2@a/c"', "checkpoints.dir", id="another store's password"),
        pytest.param('[state]\ndir = "s3://k:hunter2@b/c"', "state.dir", id="receipts on S3"),
        pytest.param('[state]\ndir = "hdfs://n/c?user=u&x=hunter2"', "state.dir", id="receipts' query"),
        pytest.param('[state]\ndir = "hdfs://u:hunter2@n/c"', "state.dir", id="receipts' password"),
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(write(tmp_path, text))
    assert says in str(refused.value)
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


def test_a_secret_in_the_environment_is_not_repeated_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_REAPER__PULSAR__ADMIN_URL", "https://ops:hunter2@h")
    with pytest.raises(ConfigError) as refused:
        load(None)
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[zookeeper]\nsession_timeout_seconds = 30\ntimeout_seconds = 30", id="as long as the session"),
        pytest.param(f'[topics]\nrequests = ["{MINE}"]', id="one tenant alone"),
        pytest.param(
            f'[topics]\nrequests = ["{MINE}"]\nrequests_pattern = "persistent://acme/.*/d"', id="one tenant by pattern"
        ),
        pytest.param(f'[topics]\nrequests = ["{SYSTEM}", "{MINE}", "{THEIRS}"]', id="the system's first"),
        pytest.param(
            f'[topics]\nrequests = ["{MINE}", "{THEIRS}"]\ntrusted_tenants = ["acme", "rival"]', id="both are trusted"
        ),
        pytest.param('[checkpoints]\ndir = "s3a://my.bucket-1/a/b_c/"', id="checkpoints on an object store"),
        pytest.param('[state]\ndir = "s3://my.bucket-1/a/b_c/"', id="state on an object store"),
        pytest.param('[state]\ndir = "s3a://my.bucket-1/a"', id="state by Hadoop's name"),
        pytest.param('[checkpoints]\ndir = "s3://my.bucket-1/a"', id="checkpoints by everybody's name"),
        pytest.param('[pulsar]\nadmin_url = "https://h:8443/below"', id="an address with a path"),
        pytest.param('[pulsar]\nadmin_url = "https://h:8443,i:8443/"', id="two addresses"),
        pytest.param('[pulsar]\nservice_url = "pulsar://h:6650,i:6650"', id="two brokers"),
        pytest.param('[pulsar]\nservice_url = "pulsar+ssl://a:6651,b:6651"', id="several brokers"),
        pytest.param('[checkpoints]\ndir = "file:///var/c"', id="a URI of a local directory"),
        pytest.param('[zookeeper]\nhosts = "a , [::1]:2181,b:2182/pulsar/x"', id="several ZooKeepers and a chroot"),
        pytest.param('[safety]\nallowed_namespaces = ["shop", "shop/prod", "shop/eu/prod"]', id="tenants, namespaces"),
        *(
            pytest.param(f'[spark]\nmaster = "{master}"', id=master)
            for master in (
                "local",
                "local[*]",
                "local[4, 2]",
                "local-cluster[2,1,1024]",
                "yarn",
                "spark://a:1,b:2",
                "k8s://https://a",
            )
        ),
        *(pytest.param(f'[spark]\ndriver_memory = "{memory}"', id=memory) for memory in ("512m", "2g", "4G")),
        pytest.param('[state]\ndir = "/var/what?@home#1:2"', id="a local path may hold anything"),
    ],
)
def test_safe_combinations_are_accepted(tmp_path: Path, text: str) -> None:
    load(write(tmp_path, text))


def test_a_topic_that_no_watcher_can_use_refuses_nothing_while_none_runs(tmp_path: Path) -> None:
    assert load(write(tmp_path, f'[topics]\nrequests = ["{MINE}"]')).topics.watch == f"{MINE}-WATCH"
