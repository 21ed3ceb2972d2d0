"""Fixtures of the tests of Pulsar's adapters."""

import pytest

from streaming.adapters.pulsar.readers import admin_entries


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake brokers have no cache, whose time a read would wait for."""
    monkeypatch.setattr(admin_entries, "_CACHE_SECONDS", 0.0)
