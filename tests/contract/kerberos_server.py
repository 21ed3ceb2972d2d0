"""A real KDC of MIT Kerberos (Debian's krb5-kdc), with its database, ports and configuration in a folder of its own."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.contract.zookeeper_server import free_port

REALM = "REAPER.TEST"
CLIENT = f"reaper@{REALM}"
_SERVER = f"zookeeper/localhost@{REALM}"
_SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_START_SECONDS = 20.0


def missing_for_kerberos() -> str:
    """Return what these tests need and this machine has not; "" if it has all."""
    missing = [f"{name} (Debian: {package})" for name, package in _PROGRAMS.items() if _program(name) is None]
    if find_spec("kerberos") is None:
        missing.append("the Python package kerberos (pip install 'ledger-reaper[kerberos]')")
    return ", ".join(missing)


_PROGRAMS = {"krb5kdc": "krb5-kdc", "kdb5_util": "krb5-kdc", "kadmin.local": "krb5-admin-server"}


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *_SBIN)))


@dataclass
class Kdc:
    """A KDC of one realm; its database survives stop() and start()."""

    home: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def krb5_conf(self) -> Path:
        return self.home / "krb5.conf"

    @property
    def log(self) -> str:
        return (self.home / "kdc.log").read_text()

    @property
    def environment(self) -> dict[str, str]:
        return {"KRB5_CONFIG": str(self.krb5_conf), "KRB5_KDC_PROFILE": str(self.home / "kdc.conf")}

    @property
    def server_jvm_options(self) -> tuple[str, str]:
        """Options of a ZooKeeper server that authenticates clients by this KDC."""
        keytab = self.keytab("server", _SERVER)
        jaas = self.home / "jaas.conf"
        jaas.write_text(
            "Server {\n  com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true\n"
            f'  useTicketCache=false keyTab="{keytab}" principal="{_SERVER}";\n}};\n'
        )
        return f"-Djava.security.auth.login.config={jaas}", f"-Djava.security.krb5.conf={self.krb5_conf}"

    def create(self) -> None:
        """Write the configuration, and create the realm and its principals."""
        self.krb5_conf.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self.port}\n }}\n"
        )
        (self.home / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {self.home}/principal\n  key_stash_file = {self.home}/stash\n"
            f"  acl_file = {self.home}/acl\n }}\n[logging]\n kdc = FILE:{self.home}/kdc.log\n"
        )
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "the-master-key")
        for principal in (CLIENT, _SERVER):
            self.add(principal)

    def add(self, principal: str) -> None:
        """Add a principal with a random key, with which it must prove itself before it gets a ticket."""
        self.administer(f"addprinc -randkey +requires_preauth {principal}")

    def administer(self, query: str) -> None:
        self._run("kadmin.local", "-r", REALM, "-q", query)

    def keytab(self, name: str, principal: str = CLIENT) -> Path:
        """Return a keytab with a new key of the principal; from then on the KDC accepts no older key."""
        new = self.home / f"{name}.keytab.new"
        new.unlink(missing_ok=True)
        self.administer(f"ktadd -k {new} {principal}")
        return new.replace(self.home / f"{name}.keytab")

    def start(self) -> None:
        command = [str(_program("krb5kdc")), "-n", "-r", REALM]
        log = (self.home / "krb5kdc.out").open("ab")
        self.process = subprocess.Popen(
            command, env=os.environ | self.environment, stdout=log, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert self.process.poll() is None, (self.home / "krb5kdc.out").read_text()
            assert time.monotonic() < deadline, "the KDC did not start"
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def freeze(self) -> None:
        """Let it accept connections and datagrams, and answer none."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        ran = subprocess.run(
            [str(_program(program)), *arguments],
            env=os.environ | self.environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


@contextmanager
def kdc_running(home: Path) -> Iterator[Kdc]:
    kdc = Kdc(home, free_port())
    kdc.create()
    kdc.start()
    try:
        yield kdc
    finally:
        kdc.stop()
