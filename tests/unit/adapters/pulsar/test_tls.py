"""A TLS context is kept until a file changes; files that do not fit together leave the former one in use."""

import subprocess
from pathlib import Path

import pytest

from streaming.adapters.pulsar.tls import Tls, tls_context
from streaming.errors import ConfigError
from tests.certificates import certificate, client_certificate


@pytest.fixture
def files(tmp_path: Path) -> Tls:
    authority = certificate(tmp_path, "ca.example.com")
    cert, key = client_certificate(tmp_path, "reaper", authority)
    return Tls(trust_certs_file=str(authority[0]), cert_file=str(cert), key_file=str(key))


def test_a_changed_file_gives_a_new_context(files: Tls, tmp_path: Path) -> None:
    first = tls_context(files)
    assert tls_context(files) is first
    client_certificate(tmp_path, "reaper", (tmp_path / "cert.pem", tmp_path / "key.pem"))
    second = tls_context(files)
    assert second is not first
    certificate(tmp_path, "ca.example.com")
    assert tls_context(files) is not second


def test_while_only_one_of_two_files_is_rotated_the_former_ones_count(
    files: Tls, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = tls_context(files)
    (tmp_path / "new").mkdir()
    cert, key = client_certificate(tmp_path / "new", "reaper", (tmp_path / "cert.pem", tmp_path / "key.pem"))
    cert.replace(files.cert_file)
    assert tls_context(files) is first
    assert tls_context(files) is first
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    key.replace(files.key_file)
    assert tls_context(files) is not first


def test_files_that_cant_be_used_are_named(files: Tls, tmp_path: Path) -> None:
    pkcs1, encrypted = tmp_path / "pkcs1.pem", tmp_path / "encrypted.pem"
    _openssl("rsa", "-traditional", "-in", files.key_file, "-out", str(pkcs1))
    _openssl("pkcs8", "-topk8", "-passout", "pass:x", "-in", files.key_file, "-out", str(encrypted))
    ec = tmp_path / "ec.pem"
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(ec))
    for key in (pkcs1, encrypted, ec):
        with pytest.raises(ConfigError, match="must be an unencrypted RSA key in PKCS #8"):
            tls_context(Tls(cert_file=files.cert_file, key_file=str(key)))
    with pytest.raises(ConfigError, match="tls_key_file /no/such can't be read"):
        tls_context(Tls(cert_file=files.cert_file, key_file="/no/such"))
    with pytest.raises(ConfigError, match="tls_cert_file /no/such with"):
        tls_context(Tls(cert_file="/no/such", key_file=files.key_file))
    with pytest.raises(ConfigError, match="tls_trust_certs_file /no/such"):
        tls_context(Tls(trust_certs_file="/no/such"))


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
