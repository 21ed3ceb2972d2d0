"""Our credentials at the brokers, of one kind: a token, OAuth2, user and password, or a client certificate.

Each use reads the secret's file again, so that the next connection after a rotation sends the new secret. With OAuth2,
each request of an access token does; oauth2.py keeps access tokens.
"""

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from streaming.adapters.pulsar.oauth2 import OAuth2, access_token, is_sendable, refused
from streaming.config.sections import PulsarSettings
from streaming.errors import ConfigError

_JAVA = "org.apache.pulsar.client.impl.auth."
OWN_JAVA = "ledgerreaper.FileAuthentication"  # streaming/spark/credentials.jar: the connector's client is Pulsar 2.4.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Files of [pulsar] with credentials, of at most one kind. Picklable, hashable, and free of secrets."""

    token_file: str = ""
    basic_file: str = ""
    oauth2: OAuth2 | None = None
    tls_cert_file: str = ""
    tls_key_file: str = ""

    @classmethod
    def of(cls, pulsar: PulsarSettings) -> Self:
        """Create the credentials from the configuration's section."""
        oauth2 = OAuth2(
            key_file=pulsar.oauth2_key_file,
            issuer_url=pulsar.oauth2_issuer_url,
            audience=pulsar.oauth2_audience,
            scope=pulsar.oauth2_scope,
        )
        return cls(
            token_file=pulsar.token_file,
            basic_file=pulsar.basic_file,
            oauth2=oauth2 if pulsar.oauth2_key_file else None,
            tls_cert_file=pulsar.tls_cert_file,
            tls_key_file=pulsar.tls_key_file,
        )

    @property
    def sends_secret(self) -> bool:
        """Whether a connection sends something with which the other side could act as us."""
        return bool(self.token_file or self.basic_file or self.oauth2)

    @property
    def method(self) -> str:
        """Pulsar's name of the authentication method; "" without credentials."""
        if self.token_file or self.oauth2:
            return "token"
        if self.basic_file:
            return "basic"
        return "tls" if self.tls_cert_file else ""

    def secret(self) -> str:
        """Return a token, or user:password; "" if a connection sends neither.

        Raises ConfigError for an unusable file; for OAuth2 also what access_token raises.
        """
        if self.oauth2:
            return access_token(self.oauth2)
        if self.basic_file:
            return "{}:{}".format(*self.user_and_password())
        token = _text(self.token_file, "pulsar.token_file") if self.token_file else ""
        if not is_sendable(token):
            raise ConfigError(f"pulsar.token_file {self.token_file} must contain one token, on one line")
        return token

    def user_and_password(self) -> tuple[str, str]:
        """Return the content of basic_file. Raises ConfigError."""
        text = _text(self.basic_file, "pulsar.basic_file")
        user, _colon, password = text.partition(":")
        # a broker splits what it gets at each colon
        if text.count(":") != 1 or "\n" in text:
            raise ConfigError(
                f"pulsar.basic_file {self.basic_file} must contain one line `user:password`, and no further colon"
            )
        return user, password

    def headers(self) -> dict[str, str]:
        """Return the headers of a request to the admin API. Raises what secret() raises."""
        if not self.sends_secret:
            return {}
        secret = self.secret()
        return {
            "Authorization": f"Basic {b64encode(secret.encode()).decode()}" if self.basic_file else f"Bearer {secret}"
        }

    def refused(self, headers: Mapping[str, str]) -> None:
        """Note that a broker answered 401 to these headers."""
        if self.oauth2:
            refused(self.oauth2, headers["Authorization"].removeprefix("Bearer "))

    def of_connector(self) -> tuple[str, str] | None:
        """Return class and parameters for the connector's Java client, without secrets; None without credentials."""
        if self.token_file:
            return f"{_JAVA}AuthenticationToken", f"file://{self.token_file}"
        if self.tls_cert_file:
            files = {"tlsCertFile": self.tls_cert_file, "tlsKeyFile": self.tls_key_file}
            return f"{_JAVA}AuthenticationTls", json.dumps(files)
        if self.basic_file:
            return OWN_JAVA, json.dumps({"basicFile": self.basic_file})
        if self.oauth2:
            grant = {
                "keyFile": self.oauth2.key_file,
                "issuerUrl": self.oauth2.issuer_url,
                "audience": self.oauth2.audience,
                "scope": self.oauth2.scope,
            }
            return OWN_JAVA, json.dumps(grant)
        return None


def _text(file: str, key: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{key} {file} can't be read: {error.strerror}") from error
    except UnicodeDecodeError:
        # without the cause, which quotes the file
        raise ConfigError(f"{key} {file} is not a text file in UTF-8") from None
