"""How to reach Pulsar: addresses, credentials, TLS, and which request topic to use."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ledger_reaper_client.credentials import Basic, ClientCertificate, Credentials, OAuth2, Token, TokenFile
from ledger_reaper_client.errors import ConfigurationError, UnavailableError
from ledger_reaper_client.names import parse_topic
from ledger_reaper_client.urls import each_url, may_carry_secret

DEFAULT_SUBSCRIPTION = "ledger-reaper"
DEFAULT_RETENTION_MINUTES = 10_080
MOST_PARTITIONS = 64  # of a lane that the service reads
_STDERR = "/dev/stderr"  # where it can't be opened, the library's own lines are lost; errors are raised all the same


@dataclass(frozen=True)
class Tls:
    """How servers are verified."""

    trust_certs_file: str = ""  # PEM file of authorities; "": the system's
    check_hostname: bool = True


@dataclass(frozen=True)
class Settings:
    """Addresses, credentials and request topic. Exactly one of `lanes` and `topic` names where requests go.

    Attributes:
        service_url: pulsar:// or pulsar+ssl:// of the brokers.
        admin_url: http:// or https:// of the admin API; several hosts are separated by commas.
        lanes: "tenant" or "namespace": each request goes to the request topic of its owner's tenant or namespace. It
            has to be the service's own `topics.lanes`.
        topic: the request topic of all requests; one that the service reads.
        credentials: of the caller's role; None: the cluster requires none.
        tls: how the brokers' certificates are verified.
        timeout_seconds: for each call of Pulsar.
        subscription: the service's durable subscription (`topics.subscription`).
        lane_partitions: of a lane that the client creates (`topics.lane_partitions`).
        retention_minutes: of a topic that the client creates (`topics.retention_minutes`).
        receipts: True: the operator publishes receipts (`topics.receipts`); the client creates a missing receipt topic.
    """

    service_url: str
    admin_url: str
    lanes: str = ""
    topic: str = ""
    credentials: Credentials | None = None
    tls: Tls = field(default_factory=Tls)
    timeout_seconds: float = 30.0
    subscription: str = DEFAULT_SUBSCRIPTION
    lane_partitions: int = 1
    retention_minutes: int = DEFAULT_RETENTION_MINUTES
    receipts: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigurationError for settings that can't work."""
        _require(self.service_url.startswith(("pulsar://", "pulsar+ssl://")), "service_url starts with pulsar://")
        _require(self.admin_url.startswith(("http://", "https://")), "admin_url starts with http:// or https://")
        _require(self.lanes in ("", "tenant", "namespace"), 'lanes is "tenant" or "namespace"')
        _require(bool(self.lanes) != bool(self.topic), 'give either lanes="tenant", lanes="namespace" or a topic')
        _require(1 <= self.lane_partitions <= MOST_PARTITIONS, f"lane_partitions is 1 to {MOST_PARTITIONS}")
        _require(self.timeout_seconds > 0, "timeout_seconds is above 0")
        if self.topic:
            parsed = parse_topic(self.topic)
            _require(not parsed.descriptor and not parsed.is_v1, "topic is persistent://tenant/namespace/name")
        if self.sends_secret and not all(may_carry_secret(url) for url in (*each_url(self.service_url), *self.hosts)):
            raise ConfigurationError(
                "the credentials would be sent unencrypted to another machine: use pulsar+ssl:// and https://"
            )

    @property
    def hosts(self) -> tuple[str, ...]:
        """A URL for each host of the admin API."""
        return each_url(self.admin_url)

    @property
    def sends_secret(self) -> bool:
        """Whether a connection sends something with which the other side could act as the caller."""
        return isinstance(self.credentials, (Token, TokenFile, Basic, OAuth2))

    def headers(self, url: str) -> dict[str, str]:
        """Return the headers with which the admin API knows the caller's role."""
        if not self.sends_secret:
            return {}
        if not may_carry_secret(url):  # after a redirect
            raise UnavailableError(f"{url} is not reached over TLS; no secret is sent there")
        credentials = self.credentials
        if isinstance(credentials, Basic):
            pair = base64.b64encode(f"{credentials.user}:{credentials.password}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        assert isinstance(credentials, (Token, TokenFile, OAuth2))  # noqa: S101  for mypy
        return {"Authorization": f"Bearer {credentials.secret()}"}

    def ssl_context(self) -> ssl.SSLContext:
        """Return the context for https://, with the files as they are now."""
        try:
            context = ssl.create_default_context(cafile=self.tls.trust_certs_file or None)
            context.check_hostname = self.tls.check_hostname
            if isinstance(self.credentials, ClientCertificate):
                # without this password, OpenSSL would ask for one on the terminal
                context.load_cert_chain(self.credentials.cert_file, self.credentials.key_file, password="")
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"the files of TLS can't be used: {error}") from error
        return context

    def open_client(self) -> Any:
        """Open pulsar-client's client; the caller closes it."""
        import pulsar

        options: dict[str, Any] = {
            "operation_timeout_seconds": max(1, round(self.timeout_seconds)),
            "logger": pulsar.FileLogger(pulsar.LoggerLevel.Error, _STDERR),  # its ConsoleLogger prints to stdout
            "tls_validate_hostname": self.tls.check_hostname,
        }
        if self.tls.trust_certs_file:
            options["tls_trust_certs_file_path"] = self.tls.trust_certs_file
        credentials = self.credentials
        if isinstance(credentials, Basic):
            options["authentication"] = pulsar.AuthenticationBasic(credentials.user, credentials.password)
        elif isinstance(credentials, ClientCertificate):
            self.ssl_context()  # names faults of the files better than the client does
            options["authentication"] = pulsar.AuthenticationTLS(credentials.cert_file, credentials.key_file)
        elif credentials is not None:
            options["authentication"] = pulsar.AuthenticationToken(_Supplier(credentials.secret))
        try:
            return pulsar.Client(self.service_url, **options)
        except pulsar.PulsarException as error:
            raise ConfigurationError(f"service_url {self.service_url}: {error}") from error
        except ValueError as error:
            raise ConfigurationError(f"service_url {self.service_url}: {error}") from error


class _Supplier:
    """Supplies pulsar-client's own threads with secrets, and never raises there: a failure keeps the last secret."""

    def __init__(self, secret: Callable[[], str]) -> None:
        self._secret = secret
        self._last = secret()  # names a fault of the credentials to the caller

    def __call__(self) -> str:
        with suppress(Exception):  # the broker refuses a secret that has ended
            self._last = self._secret()
        return self._last


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise ConfigurationError(f"settings: {text}")
