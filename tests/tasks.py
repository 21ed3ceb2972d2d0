"""A stand-in for Spark's DataFrame: rows in several tasks, which run one after the other in this thread."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa


class Tasks:
    """A task for each table; supports only mapInArrow and collect."""

    def __init__(self, *tables: pa.Table) -> None:
        self._tasks: list[Callable[[], Iterable[pa.RecordBatch]]] = [table.to_batches for table in tables]

    def mapInArrow(self, work: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]], _schema: object) -> Any:  # noqa: N802  Spark's name
        """Map like Spark, but run the job in this thread."""
        mapped = Tasks()
        mapped._tasks = [lambda task=task: work(iter(task())) for task in self._tasks]  # type: ignore[misc]
        return mapped

    def collect(self) -> list[dict[str, Any]]:
        """Run every task."""
        return [row for task in self._tasks for batch in task() for row in batch.to_pylist()]
