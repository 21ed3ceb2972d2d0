"""The Spark source of the service's queries (PySpark 4.2 and later): "pulsar-frames" with rows of schemas.MESSAGE."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from streaming import schemas
from streaming.adapters.pulsar.source.data_source import PulsarDataSource, _StreamReader
from streaming.adapters.pulsar.source.stream import PulsarStream
from streaming.logs import continue_log
from streaming.queries.delivery.request_reads import RequestOptions, parse_request_options, read_requests

NAME = "ledger-deletion-requests"


class RequestSource(PulsarDataSource):
    """Reads the request topics and RETRY. request_reads.options_for returns its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.readStream.format`."""
        return NAME

    def _check(self) -> None:
        parse_request_options(self.options)

    def schema(self) -> StructType:  # type: ignore[override]
        """Return the columns."""
        return from_arrow_schema(schemas.MESSAGE)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the reader of a query. Raises ConfigError for options that can't work."""
        return _RequestReader(parse_request_options(self.options))


class _RequestReader(_StreamReader):
    def __init__(self, options: RequestOptions) -> None:
        super().__init__(options.source)
        self._requests = options
        self._first: tuple[dict[str, Any], dict[str, Any]] | None = None  # start and end of the first batch

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_requests": self._requests}

    @cached_property
    def _stream(self) -> PulsarStream:
        continue_log()  # this is the driver's process for the query
        stream = super()._stream
        stream.requires_topics = False  # no query fails because one of its topics was deleted
        return stream

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._first = self._first or (start, end)
        # Only the batch whose entries were not returned for long: any later batch has its own time. A query that starts
        # again repeats that batch first.
        gives_up = self._requests.gives_up and self._first == (start, end)
        return [InputPartition((batch, gives_up)) for batch in self._stream.partitions(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch, gives_up = partition.value
        return read_requests(self._requests, batch, gives_up=gives_up)
