"""Authenticates to ZooKeeper by Kerberos (SASL's GSSAPI), with the key in a keytab and libkrb5's configuration.

libkrb5 reads the keytab whenever a connection needs a ticket and the last one has passed half of its life. So nothing
has to renew tickets, and a connection after a rotation uses the new key.
"""

import importlib
import os
from itertools import count
from pathlib import Path
from typing import Any

from kazoo.exceptions import AuthFailedError
from puresasl import QOP
from puresasl.mechanisms import GSSAPIMechanism, mechanisms

from streaming.config.packages import NEEDS_KERBEROS
from streaming.errors import ConfigError

_MECHANISM = "GSSAPI from a keytab"  # its key in pure-sasl's registry; ZooKeeper never sees it
_KEYTAB_FORMATS = (b"\x05\x01", b"\x05\x02")
_caches = count()
_cache = next(_caches)

# libkrb5's codes -> what to do
_ADVICE = {
    -1765328228: "Check that the KDC runs, and the address that krb5.conf (or DNS) gives for this realm",
    -1765328230: "Name the realm's KDC in krb5.conf",
    -1765328243: "Check that zookeeper.kerberos_keytab_file is a keytab that this user can read",
    -1765328353: "The keytab's key is not the one that the KDC has: export the keytab again",
    -1765328360: "The keytab's key is not the one that the KDC has: export the keytab again",
    -1765328377: "Check zookeeper.kerberos_service, and that zookeeper.hosts has the names by which the KDC knows the "
    "servers",
    -1765328378: "Check the keytab and the principal in the KDC",
}


class KerberosLogin:
    """One client's login. `fault`: why the last attempt got no ticket, or has none yet; "" if it has one."""

    def __init__(self, principal: str, keytab: Path) -> None:
        self.principal = principal
        self.keytab = keytab
        self.fault = ""

    @property
    def advice(self) -> str:
        """The end of a message about a connection that could not be authenticated."""
        if self.fault:
            return f": no Kerberos ticket for {self.principal}: {self.fault}"
        return (
            f": it refused the Kerberos ticket of {self.principal}. Check that the server's keytab has its current key "
            "and that the clocks agree"
        )


def sasl_options(principal: str, keytab: Path, service: str) -> dict[str, Any]:
    """Return kazoo's options. Raises ConfigError if the keytab, the package `kerberos` or its libraries are missing."""
    try:
        importlib.import_module("kerberos")
    except ImportError as error:
        raise ConfigError(f"{NEEDS_KERBEROS} ({error})") from error
    try:
        with keytab.open("rb") as file:
            is_keytab = file.read(2) in _KEYTAB_FORMATS
    except OSError as error:
        raise ConfigError(f"zookeeper.kerberos_keytab_file {keytab} can't be read: {error.strerror}") from error
    if not is_keytab:
        raise ConfigError(f"zookeeper.kerberos_keytab_file {keytab} is not a keytab")
    mechanisms[_MECHANISM] = _KeytabMechanism
    return {
        "mechanism": _MECHANISM,
        "service": service,
        "qops": [QOP.AUTH],  # kazoo encrypts nothing, so a server that demands it is refused
        "login": KerberosLogin(principal, keytab),
    }


def forget_tickets() -> None:
    """Let the next login request new tickets, because a server refused one, perhaps after its key was rotated."""
    global _cache  # noqa: PLW0603  libkrb5's environment is the process' too
    _cache = next(_caches)


class _KeytabMechanism(GSSAPIMechanism):  # type: ignore[misc]
    """pure-sasl's GSSAPI, which records its failures and refuses to log in as another principal."""

    def __init__(self, sasl: Any, login: KerberosLogin) -> None:
        self._login = login
        # libkrb5 reads both at each login, and the package has no other way to name them. Tickets are in this process'
        # memory only, and the operator's own are neither used nor replaced.
        os.environ["KRB5_CLIENT_KTNAME"] = f"FILE:{login.keytab.absolute()}"
        os.environ["KRB5CCNAME"] = f"MEMORY:ledger-reaper-{_cache}-{login.principal}"
        login.fault = "the KDC has not answered yet. Check that it runs and can be reached"
        try:
            # With a principal, the package asks the KDC here and holds the interpreter's lock: a silent KDC stopped
            # all threads of the process for 54 s. Without one, it asks in process(), and other threads run.
            super().__init__(sasl)
        except Exception as error:
            raise self._failure(_text(error)) from error  # kazoo's thread would die of any other exception

    def process(self, challenge: bytes | None = None) -> bytes:
        try:
            answer: bytes = super().process(challenge)
        except Exception as error:
            self.dispose()
            raise self._failure(_text(error)) from error
        self._login.fault = ""
        # libkrb5 takes the keytab's first principal; the server has not let it in yet
        if self.user is not None and self.user != self._login.principal:
            self.dispose()
            raise self._failure(
                f"the first key in zookeeper.kerberos_keytab_file is that of {self.user}, not that of "
                "zookeeper.kerberos_principal. Give a keytab of this principal alone"
            )
        return answer

    def _failure(self, fault: str) -> AuthFailedError:
        self._login.fault = fault
        return AuthFailedError(fault)


def _text(error: Exception) -> str:
    """Return what failed, and what to do about it; libkrb5's texts name principals, realms and caches only."""
    parts = [part for part in error.args if isinstance(part, tuple) and len(part) == 2]
    if not parts:
        return str(error)
    text, code = parts[-1]
    return f"{text}. {_ADVICE[code]}" if code in _ADVICE else str(text)
