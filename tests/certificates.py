"""Certificates for servers that tests start, and for their clients."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


def certificate(folder: Path, *names: str) -> tuple[Path, Path]:
    """Create a self-signed certificate for host names or IP addresses; return the PEM files of certificate and key.

    The certificate is also a certificate authority.
    """
    key = rsa.generate_private_key(65537, 2048)
    builder = (
        _builder(names[0], key, names[0], timedelta(hours=1), _DAY)
        .add_extension(x509.SubjectAlternativeName(map(_general_name, names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    return _written(builder.sign(key, hashes.SHA256()), key, folder, "cert.pem", "key.pem")


def client_certificate(
    folder: Path, role: str, authority: tuple[Path, Path], *, life: timedelta = _DAY
) -> tuple[Path, Path]:
    """Create a client's certificate, whose common name is the role; return the PEM files of certificate and key.

    authority: the PEM files of the certificate and key that sign it. life: from now on; below zero, it has ended.
    """
    issuer, issuer_key = (file.read_bytes() for file in authority)
    signed_by = x509.load_pem_x509_certificate(issuer).subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    signing_key = serialization.load_pem_private_key(issuer_key, None)
    assert isinstance(signing_key, rsa.RSAPrivateKey)
    key = rsa.generate_private_key(65537, 2048)
    builder = _builder(role, key, str(signed_by), 2 * _DAY, life)
    return _written(builder.sign(signing_key, hashes.SHA256()), key, folder, "client.pem", "client-key.pem")


def _builder(
    name: str, key: rsa.RSAPrivateKey, issuer: str, old: timedelta, life: timedelta
) -> x509.CertificateBuilder:
    subject, signed_by = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer))
    now = datetime.now(UTC)
    serial = x509.random_serial_number()
    return x509.CertificateBuilder(signed_by, subject, key.public_key(), serial, now - old, now + life)


def _written(
    signed: x509.Certificate, key: rsa.RSAPrivateKey, folder: Path, name: str, key_name: str
) -> tuple[Path, Path]:
    pem, key_pem = folder / name, folder / key_name
    pem.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key_pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return pem, key_pem


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
