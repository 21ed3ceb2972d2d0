"""Has the connector decompress LZ4 in Java, because the native library reads out of bounds for invalid input.

The fuzzer found it: a single message ended the JVM, and so the service, with SIGSEGV in LZ4_decompress_fast, a function
that is not told where its input ends. This module does not reach executors in JVMs of their own: there, such a crash
ends the executor with its tasks, and the fallback reads the batch.
"""

import logging
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

log = logging.getLogger("ledger-reaper")

_FACTORY = "net.jpountz.lz4.LZ4Factory"
_CODEC = "org.apache.pulsar.common.compression.CompressionCodecLZ4"
SAFE = "net.jpountz.lz4.LZ4JavaSafeFastDecompressor"


def decompress_safely(spark: SparkSession) -> None:
    """Select the safe implementation, before the connector reads its first message; log a warning if that fails."""
    try:
        _load_with_safe_implementation(spark)
        decompressor = decompressor_of(spark)
    except Py4JError as error:
        decompressor = str(error).splitlines()[0]
    if decompressor != SAFE:
        log.warning("an invalid LZ4 message may end this JVM: the connector decompresses with %s", decompressor)


def decompressor_of(spark: SparkSession) -> str:
    """Return the name of the class with which the connector decompresses LZ4."""
    field = _class(spark, _CODEC).getDeclaredField("decompressor")
    field.setAccessible(True)
    return str(field.get(None).getClass().getName())


def _load_with_safe_implementation(spark: SparkSession) -> None:
    factory = _class(spark, _FACTORY)
    native = factory.getDeclaredField("NATIVE_INSTANCE")
    native.setAccessible(True)
    former = native.get(None)
    # The Pulsar client takes lz4-java's fastest implementation, once, when CompressionCodecLZ4 is loaded. So that class
    # is loaded while the implementation that checks every access replaces the native one. Afterwards Spark uses the
    # native one again.
    native.set(None, _jvm(spark).net.jpountz.lz4.LZ4Factory.safeInstance())
    try:
        _class(spark, _CODEC)
    finally:
        native.set(None, former)


def _class(spark: SparkSession, name: str) -> Any:
    lang = _jvm(spark).java.lang
    return lang.Class.forName(name, True, lang.Thread.currentThread().getContextClassLoader())


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm
