"""What a login by Kerberos says when it can't work; tests/contract/test_zookeeper_kerberos.py has a real KDC."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kazoo.exceptions import AuthFailedError
from puresasl.mechanisms import GSSAPIMechanism

from streaming.adapters.zookeeper import kerberos_login
from streaming.adapters.zookeeper.kerberos_login import KerberosLogin, sasl_options
from streaming.errors import ConfigError

PRINCIPAL = "reaper@EXAMPLE.COM"


@pytest.fixture
def keytab(tmp_path: Path) -> Path:
    file = tmp_path / "keytab"
    file.write_bytes(b"\x05\x02")
    return file


def test_a_worker_without_the_package_names_what_to_install(keytab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kerberos", None)
    with pytest.raises(ConfigError, match=r"install ledger-reaper\[kerberos\]"):
        sasl_options(PRINCIPAL, keytab, "zookeeper")


@pytest.mark.parametrize(
    ("content", "says"), [(None, "can't be read: No such file"), (b"user:password", "is not a keytab")]
)
def test_a_file_that_is_no_keytab_is_named(
    content: bytes | None, says: str, keytab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kerberos", ModuleType("kerberos"))
    keytab.unlink()
    if content is not None:
        keytab.write_bytes(content)
    with pytest.raises(ConfigError, match=f"kerberos_keytab_file {keytab} {says}"):
        sasl_options(PRINCIPAL, keytab, "zookeeper")


def test_a_failure_names_the_principal_the_cause_and_the_remedy(keytab: Path) -> None:
    login = KerberosLogin(PRINCIPAL, keytab)
    error = Exception(("No credentials were supplied", 458752), ("Cannot contact any KDC for realm 'A'", -1765328228))
    login.fault = kerberos_login._text(error)
    assert login.advice == (
        f": no Kerberos ticket for {PRINCIPAL}: Cannot contact any KDC for realm 'A'. Check that the KDC runs, and the "
        "address that krb5.conf (or DNS) gives for this realm"
    )
    assert kerberos_login._text(Exception(("Clock skew too great", -1765328347))) == "Clock skew too great"


def test_a_ticket_that_a_server_refuses_is_not_called_missing(keytab: Path) -> None:
    advice = KerberosLogin(PRINCIPAL, keytab).advice
    assert f"refused the Kerberos ticket of {PRINCIPAL}" in advice


@pytest.mark.parametrize("user", [PRINCIPAL, "other@EXAMPLE.COM"])
def test_a_login_as_another_principal_of_the_keytab_is_refused(
    user: str, keytab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def authenticated(self: Any, challenge: bytes | None = None) -> bytes:
        self.user = user
        return b"the answer that lets us in"

    for name, replacement in (("__init__", lambda *_: None), ("process", authenticated), ("dispose", lambda *_: None)):
        monkeypatch.setattr(GSSAPIMechanism, name, replacement)
    for name in ("KRB5_CLIENT_KTNAME", "KRB5CCNAME"):  # restored at the end
        monkeypatch.setenv(name, "")
    login = KerberosLogin(PRINCIPAL, keytab)
    mechanism = kerberos_login._KeytabMechanism(None, login)

    if user == PRINCIPAL:
        assert mechanism.process() == b"the answer that lets us in"
        assert login.fault == ""
    else:
        with pytest.raises(AuthFailedError, match=f"that of {user}, not that of zookeeper.kerberos_principal"):
            mechanism.process()
