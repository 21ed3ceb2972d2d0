"""Has the connector decompress LZ4 in Java: the native library reads where a sender's wrong bytes lead it.

The fuzzer found it: one message, and the JVM ended with SIGSEGV in LZ4_decompress_fast, and the service with it. That
function of the library is not told where its input ends. The Pulsar client takes the fastest implementation that
lz4-java has, once, when its class is loaded. So we load the class while the implementation that checks every access
stands in the native one's place. Spark takes the native one afterwards. Executors of their own are not reached: one
that ends so costs its task, and the batch is read another way.
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
    """To be called before the connector has read anything; the log warns where that did not do."""
    try:
        _load_with_safe_one(spark)
        found = decompressor_of(spark)
    except Py4JError as error:
        found = str(error).splitlines()[0]
    if found != SAFE:
        log.warning("an LZ4 message with wrong bytes may end this JVM: the connector decompresses with %s", found)


def decompressor_of(spark: SparkSession) -> str:
    """Return the class by which the connector decompresses LZ4."""
    field = _class(spark, _CODEC).getDeclaredField("decompressor")
    field.setAccessible(True)
    return str(field.get(None).getClass().getName())


def _load_with_safe_one(spark: SparkSession) -> None:
    factory = _class(spark, _FACTORY)
    native = factory.getDeclaredField("NATIVE_INSTANCE")
    native.setAccessible(True)
    former = native.get(None)
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
