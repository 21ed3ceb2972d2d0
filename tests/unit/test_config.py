"""Settings that can't be safe are refused together, before anything is touched, in words that say what to do."""

from pathlib import Path

import pytest

from streaming.config import load
from streaming.errors import ConfigError

SYSTEM = "persistent://pulsar/system/__ledger_deletion"
BESIDE = "persistent://pulsar/ledger-deletion/__ledger_deletion"
MINE, THEIRS = "persistent://acme/reaper/requests", "persistent://rival/reaper/requests"


def write(folder: Path, text: str) -> Path:
    file = folder / "config.toml"
    file.write_text(text)
    return file


def test_the_defaults_are_safe() -> None:
    safety = load(None).safety
    assert (safety.open_quarantine_days, safety.ask_broker, safety.max_shrink) == (0, True, 0.8)
    topics = load(None).topics
    assert topics.requests == (SYSTEM,)
    assert (topics.retry, topics.dead_letter) == (f"{BESIDE}-RETRY", f"{BESIDE}-DLQ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(
            "[zookeeper]\nsession_timeout_seconds = 31\ntimeout_seconds = 30",
            "would cost the session",
            id="an answer may take longer than the session lives",
        ),
        pytest.param('[zookeeper]\nown_root = "/ledgers/x"', "lies below a root", id="our znodes among ledgers"),
        pytest.param('[zookeeper]\nsasl_mechanism = "DIGEST-MD5"', "needs zookeeper.digest_file", id="sasl, no secret"),
        pytest.param(
            '[pulsar]\ntoken_file = "t"\nadmin_url = "http://pulsar.example.com"', "unencrypted", id="token in clear"
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
        pytest.param(
            '[topics]\nrequests_pattern = "persistent://acme/.*"', "a pattern is persistent://", id="half a name"
        ),
        pytest.param(
            f'[topics]\nrequests = ["{MINE}"]\nrequests_pattern = "persistent://.*/reaper/d"',
            "topics.retry persistent://acme/reaper/requests-RETRY belongs to tenant acme",
            id="a pattern over tenants, and one of them could write the retries of the others",
        ),
        pytest.param("[safety]\nmax_shrink = 0.0", "safety.max_shrink", id="a limit that nothing meets"),
        pytest.param('[state]\ndir = "s3://bucket/state"', "can't be on an object store", id="receipts on S3"),
        pytest.param('[state]\ndir = "s3a://bucket/state"', "can't be on an object store", id="receipts on s3a"),
        pytest.param('[checkpoints]\ndir = "s3://bucket/c"', "must be s3a://bucket/folder", id="not Hadoop's name"),
        pytest.param('[checkpoints]\ndir = "s3a://bucket"', "must be s3a://bucket/folder", id="a whole bucket"),
        pytest.param('[checkpoints]\ndir = "s3a://key:word@bucket/c"', "never from here", id="a secret in a URI"),
        pytest.param('[checkpoints]\ndir = "s3a://bucket/c?x=y"', "s3a://bucket/folder", id="options in a URI"),
        pytest.param('[checkpoints]\ndir = "s3a://bucket/../c"', "s3a://bucket/folder", id="a way up"),
        pytest.param('[checkpoints]\nendpoint = "minio:9000"', "checkpoints.endpoint", id="an endpoint that is no URL"),
        pytest.param("[safety]\nmax_shrnk = 0.5", "unknown key", id="a key with a typing error"),
    ],
)
def test_what_can_not_be_safe_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(write(tmp_path, text))
    assert says in str(refused.value)


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
    ],
)
def test_what_can_be_safe_is_taken(tmp_path: Path, text: str) -> None:
    load(write(tmp_path, text))
