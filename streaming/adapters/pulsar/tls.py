"""The TLS contexts with which this process connects to brokers; a rotated certificate gives a new context."""

import base64
import binascii
import logging
import os
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from streaming.config.sections import PulsarSettings
from streaming.errors import ConfigError

log = logging.getLogger("ledger-reaper")

_KEY = (b"-----BEGIN PRIVATE KEY-----", b"-----END PRIVATE KEY-----")
_RSA = bytes.fromhex("06092a864886f70d010101")  # OID 1.2.840.113549.1.1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The PEM files of a context, as in [pulsar]; "" for none. Picklable, hashable, and free of secrets."""

    trust_certs_file: str = ""  # "": the system's authorities
    check_hostname: bool = True
    cert_file: str = ""
    key_file: str = ""

    @classmethod
    def of(cls, pulsar: PulsarSettings) -> Self:
        """Take the files from the configuration's section."""
        return cls(
            trust_certs_file=pulsar.tls_trust_certs_file,
            check_hostname=pulsar.tls_check_hostname,
            cert_file=pulsar.tls_cert_file,
            key_file=pulsar.tls_key_file,
        )

    @property
    def _files(self) -> tuple[str, ...]:
        return tuple(file for file in (self.trust_certs_file, self.cert_file, self.key_file) if file)


_Stamp = tuple[tuple[int, int, int], ...]
_contexts: dict[Tls, tuple[_Stamp, ssl.SSLContext]] = {}
_lock = threading.Lock()


def _forget_parents_lock() -> None:
    global _lock  # noqa: PLW0603  a lock that another thread of the parent held at the fork is never released
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_parents_lock)


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the context for the files as they are now; the same one until a file changes.

    While changed files do not fit together, or can't be used, the former context stays in use. Raises ConfigError if
    there is none.
    """
    stamp = _stamp(tls)
    with _lock:
        kept = _contexts.get(tls)
        if kept is None or kept[0] != stamp:
            try:
                kept = stamp, _new(tls)
            except ConfigError as error:
                if kept is None:
                    raise
                log.warning("%s; what it contained before stays in use", error)
                kept = stamp, kept[1]
            _contexts[tls] = kept
        return kept[1]


def _stamp(tls: Tls) -> _Stamp:
    stamps = []
    for file in tls._files:
        try:
            stat = Path(file).stat()
            stamps.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        except OSError:
            stamps.append((0, 0, 0))
    return tuple(stamps)


def _new(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.trust_certs_file or None)
        context.check_hostname = tls.check_hostname
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"pulsar.tls_trust_certs_file {tls.trust_certs_file} can't be used: {error}") from error
    if tls.cert_file:
        _require_key(tls.key_file)
        try:
            # without this password, OpenSSL would ask for one on the terminal
            context.load_cert_chain(tls.cert_file, tls.key_file, password="")
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"pulsar.tls_cert_file {tls.cert_file} with tls_key_file {tls.key_file} can't be used: {error}"
            ) from error
    return context


def _require_key(file: str) -> None:
    """Refuse keys that the connector's Java client, of Pulsar 2.4.2, can't read."""
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"pulsar.tls_key_file {file} can't be read: {error.strerror}") from error
    encoded = content.partition(_KEY[0])[2].partition(_KEY[1])[0]
    try:
        is_usable = _RSA in base64.b64decode(encoded)[:64]
    except binascii.Error:
        is_usable = False
    if not is_usable:
        raise ConfigError(
            f"pulsar.tls_key_file {file} must be an unencrypted RSA key in PKCS #8, headed BEGIN PRIVATE KEY, "
            "since Spark's connector reads no other: openssl pkcs8 -topk8 -nocrypt -in KEY -out FILE"
        )
