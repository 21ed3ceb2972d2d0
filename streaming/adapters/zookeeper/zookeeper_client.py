"""Connection settings that can be sent to a Spark worker, and the kazoo client that is created from them there."""

import logging
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.hosts import collect_hosts

from streaming.adapters.zookeeper.kerberos_login import KerberosLogin, sasl_options
from streaming.errors import ConfigError

# kazoo logs requests, including auth data, at DEBUG, so it gets a logger that never writes them.
_quiet = logging.getLogger("streaming.adapters.zookeeper.store.kazoo")
_quiet.setLevel(logging.CRITICAL)

_PROBE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperClientSettings:
    """How to reach ZooKeeper. Picklable, hashable, and free of secrets: files are read where the session is opened."""

    hosts: str  # host:port,host:port/chroot
    session_timeout_seconds: float = 30.0
    # The longest wait for any answer; at least the session timeout, because a request that times out ends the session.
    operation_timeout_seconds: float = 30.0
    connect_timeout_seconds: float = 10.0  # how long a call waits for a connection before it fails
    # One line `user:password`, used by scheme `digest`, or by SASL if sasl_mechanism is DIGEST-MD5.
    digest_file: str = ""
    sasl_mechanism: str = ""  # or DIGEST-MD5, GSSAPI
    kerberos_principal: str = ""  # of this client, for GSSAPI; with its realm
    kerberos_keytab_file: str = ""
    kerberos_service: str = "zookeeper"  # the servers' principals are <service>/<host>
    use_tls: bool = False
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_check_hostname: bool = True

    @property
    def has_credentials(self) -> bool:
        """Whether the server can authenticate this client: by digest, SASL or a client certificate."""
        return bool(self.digest_file or self.sasl_mechanism or (self.use_tls and self.tls_cert_file))


def client_for(settings: ZooKeeperClientSettings) -> KazooClient:
    """Create a client that is not started yet. Raises ConfigError for settings that can't work."""
    try:
        return KazooClient(
            hosts=settings.hosts,
            timeout=settings.session_timeout_seconds,
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 1.0},
            logger=_quiet,
            auth_data=[("digest", _credentials(settings))] if _uses_digest(settings) else None,
            sasl_options=_sasl_options(settings),
            **_tls_options(settings),
        )
    except ValueError as error:
        raise ConfigError(f"zookeeper.hosts = {settings.hosts!r} is not a list of host:port: {error}") from error


def connection_fault(settings: ZooKeeperClientSettings) -> str:
    """Try each host once and return why no connection is possible; "" if one is. For the operator, after a failure."""
    reasons = []
    for host, port in collect_hosts(settings.hosts)[0]:
        reason = _host_fault(settings, host, port)
        if not reason:
            return ""
        reasons.append(reason)
    return "; ".join(reasons)


def _host_fault(settings: ZooKeeperClientSettings, host: str, port: int) -> str:
    try:
        with socket.create_connection((host, port), _PROBE_SECONDS) as plain:
            if settings.use_tls:
                options = _tls_options(settings)
                context = ssl.create_default_context(cafile=options.get("ca"))
                context.check_hostname = settings.tls_check_hostname
                if "certfile" in options:
                    context.load_cert_chain(options["certfile"], options.get("keyfile"))
                context.wrap_socket(plain, server_hostname=host).close()
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"
    return ""


def _uses_digest(settings: ZooKeeperClientSettings) -> bool:
    return bool(settings.digest_file) and not settings.sasl_mechanism


def _credentials(settings: ZooKeeperClientSettings) -> str:
    text = _file(settings.digest_file, "zookeeper.digest_file").read_text().strip()
    if ":" not in text:
        raise ConfigError(f"zookeeper.digest_file {settings.digest_file} must contain one line `user:password`")
    return text


def refusal(client: KazooClient) -> str:
    """Return why a server or KDC refused this client's credentials, as the end of a message for the operator."""
    login = _login(client)
    return login.advice if login else ": it refused our credentials. Check zookeeper.digest_file and sasl_mechanism"


def pending_login(client: KazooClient) -> str:
    """Return why a client that is connected may not be authenticated yet, as the end of a message; "" if it is."""
    login = _login(client)
    return login.advice if login and login.fault else ""


def _login(client: KazooClient) -> KerberosLogin | None:
    return (client._connection.sasl_options or {}).get("login")


def _sasl_options(settings: ZooKeeperClientSettings) -> dict[str, Any] | None:
    if not settings.sasl_mechanism:
        return None
    if settings.sasl_mechanism == "GSSAPI":
        keytab = _file(settings.kerberos_keytab_file, "zookeeper.kerberos_keytab_file")
        return sasl_options(settings.kerberos_principal, keytab, settings.kerberos_service)
    user, _colon, password = _credentials(settings).partition(":")
    return {"mechanism": "DIGEST-MD5", "service": "zookeeper", "username": user, "password": password}


def _tls_options(settings: ZooKeeperClientSettings) -> dict[str, Any]:
    if not settings.use_tls:
        return {}
    files = {
        "ca": (settings.tls_ca_file, "zookeeper.tls_ca_file"),
        "certfile": (settings.tls_cert_file, "zookeeper.tls_cert_file"),
        "keyfile": (settings.tls_key_file, "zookeeper.tls_key_file"),
    }
    present = {option: str(_file(name, key)) for option, (name, key) in files.items() if name}
    if "ca" in present:
        try:
            ssl.create_default_context(cafile=present["ca"])
        except ssl.SSLError as error:
            raise ConfigError(f"zookeeper.tls_ca_file {present['ca']} contains no PEM certificate: {error}") from error
    return {"use_ssl": True, "check_hostname": settings.tls_check_hostname, **present}


def _file(name: str, key: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"{key}: there is no file {name}")
    return path
