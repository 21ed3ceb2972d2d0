"""The Spark source "pulsar-frames", for PySpark 4.2 and later: `spark.dataSource.register(PulsarDataSource)`.

Only this module and streaming/queries/delivery/request_source.py import PySpark's interfaces of Python data sources,
which older versions do not have.
"""

import os
import sys
from collections.abc import Iterator
from functools import cached_property
from traceback import walk_tb
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from streaming.adapters.pulsar.http import require_safe_secret
from streaming.adapters.pulsar.source.batch_read import read_batch
from streaming.adapters.pulsar.source.broker import PulsarSourceBroker
from streaming.adapters.pulsar.source.options import SourceOptions, parse_options
from streaming.adapters.pulsar.source.schema import DDL
from streaming.adapters.pulsar.source.stream import PartitionBatch, PulsarStream
from udfs.pulsar_source.admission import Limits

NAME = "pulsar-frames"


class PulsarDataSource(DataSource):  # type: ignore[misc]  # PySpark 3.5 has no such class
    """Reads topics entry by entry, and passes on every message, whatever it is. options.py lists the options."""

    def __init__(self, options: dict[str, str]) -> None:
        """Create the source for load(), which shows errors. Raises ConfigError for options that can't work."""
        super().__init__(options)
        self._check()

    def _check(self) -> None:
        parse_options(self.options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.readStream.format`."""
        return NAME

    def schema(self) -> str:
        """Return the columns."""
        return DDL

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802  PySpark's names
        """Return the reader of a query. Raises ConfigError for options that can't work."""
        return _StreamReader(parse_options(self.options))


class _Partition(InputPartition):  # type: ignore[misc]
    def __init__(self, batch: PartitionBatch) -> None:
        super().__init__(batch)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}  # for tasks, which need no connections

    @cached_property
    def _stream(self) -> PulsarStream:
        require_safe_secret(self._options.pulsar)
        return PulsarStream(self._options, PulsarSourceBroker(self._options.pulsar, self._options.subscription))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_messages)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._stream.initial()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stream.set_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if isinstance(limit, ReadAllAvailable):
            return self._stream.latest_offset(start, Limits())
        return self._stream.latest_offset(start, Limits(self._options.max_messages, self._options.max_bytes))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [_Partition(batch) for batch in self._stream.partitions(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_batch(self._options, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        self._stream.commit(end)

    def stop(self) -> None:
        error = sys.exc_info()[1]
        self._stream.close()
        if _has_spark_closed(error):
            # the query has stopped: PySpark would print tracebacks, because it can't report the end to Spark
            os._exit(0)


def _has_spark_closed(error: BaseException | None) -> bool:
    """Whether PySpark's own code found that Spark has closed the connection; the same errors of ours are faults."""
    return isinstance(error, EOFError | BrokenPipeError | ConnectionResetError) and not any(
        frame.f_globals["__name__"].startswith("streaming.") for frame, _line in walk_tb(error.__traceback__)
    )
