"""A relative path always starts at the configuration file's folder, wherever a command is started."""

import os
from pathlib import Path

import pytest

from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import ConfigError

PATHS = {
    "pulsar": (
        "token_file",
        "basic_file",
        "oauth2_key_file",
        "tls_cert_file",
        "tls_key_file",
        "tls_trust_certs_file",
    ),
    "zookeeper": ("digest_file", "kerberos_keytab_file", "tls_ca_file", "tls_cert_file", "tls_key_file"),
    "tiered_storage": ("credentials_file",),
    "state": ("dir",),
    "checkpoints": ("dir",),
    "spark": ("local_dir",),
    "notify": ("webhook_file", "ca_file"),
}
KEYS = [(section, key) for section, keys in PATHS.items() for key in keys]


@pytest.fixture(autouse=True)
def _with_kerberos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.config.combinations.has_package", lambda name: True)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that is not the configuration's folder."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "config.toml"
    file.write_text(text)
    return file


def value(settings: Settings, section: str, key: str) -> str:
    return str(getattr(getattr(settings, section), key))


_TLS = 'service_url = "pulsar+ssl://h"\nadmin_url = "https://h"'
# what a file with this key needs besides
_BESIDE = {
    ("pulsar", "oauth2_key_file"): 'oauth2_issuer_url = "https://issuer"',
    ("pulsar", "tls_cert_file"): f'tls_key_file = "k"\n{_TLS}',
    ("pulsar", "tls_key_file"): f'tls_cert_file = "c"\n{_TLS}',
    ("zookeeper", "kerberos_keytab_file"): 'sasl_mechanism = "GSSAPI"\nkerberos_principal = "a@B"',
}


def _only(section: str, key: str, path: str) -> str:
    beside = _BESIDE.get((section, key), "")
    return f'[{section}]\n{key} = "{path}"\n{beside}'


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_a_relative_path_counts_from_the_folder_of_its_file(
    tmp_path: Path, elsewhere: Path, section: str, key: str
) -> None:
    file = write(tmp_path / "etc", _only(section, key, "below/it"))
    assert value(load(file), section, key) == str(tmp_path / "etc/below/it")
    assert value(load(os.path.relpath(file)), section, key) == str(tmp_path / "etc/below/it")


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_a_relative_path_of_the_environment_counts_from_the_working_directory(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, section: str, key: str
) -> None:
    file = write(tmp_path / "etc", _only(section, key, "of/the/file"))
    monkeypatch.setenv(f"LEDGER_REAPER__{section}__{key}".upper(), "below/it")
    assert value(load(file), section, key) == str(elsewhere / "below/it")


@pytest.mark.parametrize("section", ["state", "checkpoints"])
def test_a_directory_of_an_earlier_version_is_not_silently_abandoned(
    tmp_path: Path, elsewhere: Path, section: str
) -> None:
    file = write(tmp_path / "etc", f'[{section}]\ndir = "used"')
    (elsewhere / "used").mkdir()
    assert load(file)
    (elsewhere / "used" / "cluster.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"{section}.dir: .*{elsewhere}/used belongs to an earlier run"):
        load(file)
    (tmp_path / "etc" / "used").mkdir()
    assert value(load(file), section, "dir") == str(tmp_path / "etc/used")


def test_an_absolute_path_a_uri_and_nothing_stay_as_they_are(tmp_path: Path) -> None:
    settings = load(
        write(
            tmp_path,
            '[pulsar]\ntoken_file = ""\n[state]\ndir = "s3://name/state"\n'
            '[checkpoints]\ndir = "s3a://bucket/folder"\n[spark]\nlocal_dir = "/var/spark"',
        )
    )
    assert (settings.pulsar.token_file, settings.state.dir) == ("", "s3://name/state")
    assert (settings.checkpoints.dir, settings.spark.local_dir) == ("s3a://bucket/folder", "/var/spark")


def test_defaults_count_from_the_operators_file_and_without_one_from_the_working_directory(
    tmp_path: Path, elsewhere: Path
) -> None:
    assert load(write(tmp_path / "etc", "")).state.dir == str(tmp_path / "etc/state")
    assert load(None).state.dir == str(elsewhere / "state")


def test_values_that_are_no_paths_do_not_change(tmp_path: Path) -> None:
    settings = load(write(tmp_path, '[service]\nname = "main"\n[topics]\nsubscription = "reaper"'))
    assert (settings.service.name, settings.topics.subscription) == ("main", "reaper")


def test_every_key_that_is_called_a_file_or_a_directory_is_a_path() -> None:
    named = {
        (section, key)
        for section, field in Settings.model_fields.items()
        for key in getattr(field.annotation, "model_fields", {})
        if key.endswith("_file") or key in ("dir", "local_dir")
    }
    assert named == set(KEYS)
