"""Gives each start of a query its own Pulsar client in this JVM, and closes that client after the query has ended.

The connector closes its readers only after a batch that it has read completely. A reader that a failed batch leaves
open reconnects, at once and for ever, to the entry that broke its connection, and breaks the connection of all readers
of its client. With that client, the connector could never again read a topic that failed a few times.
"""

import contextlib
import itertools
import logging
import threading
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

log = logging.getLogger("ledger-reaper")

TIMEOUT = "spark.pulsar.client.cache.timeout"
# executors outside of the driver's JVM close a client that nothing has used for so long
CACHED_IN_EXECUTORS = "1h"
_CACHED_IN_DRIVER = "87600h"  # the driver takes its client from the cache once, and uses it while the query runs
_OPTION = "statsIntervalSeconds"
_DAY_S = 24 * 3600
_CACHE = "org.apache.spark.sql.pulsar.CachedPulsarClient$"


def keep_in_driver(spark: SparkSession) -> None:
    """Have this JVM keep the connector's clients until they are closed; executors already have another limit."""
    _jvm(spark).org.apache.spark.SparkEnv.get().conf().set(TIMEOUT, _CACHED_IN_DRIVER)


@dataclass(slots=True)
class ConnectorClients:
    """One per service; any thread may call it. Queries are known by name."""

    spark: SparkSession
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(_DAY_S))
    _open: dict[str, int] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def new(self, query: str) -> dict[str, str]:
        """Return options that give a query its own client; its former client is closed."""
        self.close(query)
        with self._guard:
            number = self._open[query] = next(self._numbers)
        # the connector keeps a client for each set of options, and this option has no other effect
        return {f"pulsar.client.{_OPTION}": str(number)}

    def close(self, query: str) -> None:
        """Close the client of a query that has ended, in a thread, because the broker may answer slowly."""
        with self._guard:
            number = self._open.pop(query, None)
        if number is not None:
            threading.Thread(target=self._close, args=(number,), name="close-client", daemon=True).start()

    def _close(self, number: int) -> None:
        with contextlib.suppress(Py4JError, OSError):  # the JVM has ended, and its clients with it
            for key in _clients(self.spark).asMap().keySet().toArray():
                if f"({_OPTION},{number})" in key.toString():
                    _clients(self.spark).invalidate(key)


def _clients(spark: SparkSession) -> Any:
    """Return the connector's own cache, because the connector has no method that closes the client of given options."""
    jvm = _jvm(spark)
    gateway: Any = spark.sparkContext._gateway
    none = gateway.new_array(jvm.java.lang.Object, 0)
    kept = jvm.java.lang.Class.forName(_CACHE, True, jvm.java.lang.Thread.currentThread().getContextClassLoader())
    method = kept.getDeclaredMethod("guavaCache", gateway.new_array(jvm.java.lang.Class, 0))
    method.setAccessible(True)
    return method.invoke(kept.getField("MODULE$").get(None), none)


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm
