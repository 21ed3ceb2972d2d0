"""Options of the connector."""

from typing import cast

import pytest
from pyspark.sql import SparkSession

from streaming.config.load import CONF, load
from streaming.queries import streams

VERIFIES = "pulsar.{}.tlsHostnameVerificationEnable"


class FakeSpark:
    """A session that records the options of the requested stream."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    @property
    def readStream(self) -> "FakeSpark":  # noqa: N802  Spark's name
        return self

    def format(self, _name: str) -> "FakeSpark":
        return self

    def options(self, **options: str) -> "FakeSpark":
        self.found = options
        return self

    def load(self) -> None:
        pass


def options_of(
    monkeypatch: pytest.MonkeyPatch, service_url: str, admin_url: str, *, checks: bool = True
) -> dict[str, str]:
    monkeypatch.setenv("LEDGER_REAPER__PULSAR__SERVICE_URL", service_url)
    monkeypatch.setenv("LEDGER_REAPER__PULSAR__ADMIN_URL", admin_url)
    monkeypatch.setenv("LEDGER_REAPER__PULSAR__TLS_CHECK_HOSTNAME", str(checks).lower())
    monkeypatch.setattr(streams, "answering", lambda admin: admin.admin_url)
    spark = FakeSpark()
    streams.read_stream(cast(SparkSession, spark), load(CONF / "local.toml"), ["persistent://pulsar/system/t"], {})
    return spark.found


def test_over_tls_the_connector_compares_a_brokers_name_with_its_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    found = options_of(monkeypatch, "pulsar+ssl://broker:6651", "https://broker:8443")
    assert {side: found[VERIFIES.format(side)] for side in ("client", "admin")} == {"client": "true", "admin": "true"}
    found = options_of(monkeypatch, "pulsar+ssl://broker:6651", "https://broker:8443", checks=False)
    assert {side: found[VERIFIES.format(side)] for side in ("client", "admin")} == {"client": "false", "admin": "false"}


def test_without_tls_the_connector_reads_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client of 2019 would close each connection, because it has no certificate."""
    found = options_of(monkeypatch, "pulsar://127.0.0.1:6650", "http://127.0.0.1:8080")
    assert {side: found[VERIFIES.format(side)] for side in ("client", "admin")} == {"client": "false", "admin": "false"}
