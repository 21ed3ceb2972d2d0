"""The part of Spark's RDDs that the jobs of streaming/rocketmq use, in this process and without a JVM.

A shuffle pickles its rows, as in Spark, and changes their order.
"""

import pickle
from collections.abc import Callable, Iterable
from typing import Any


class LocalRdd:
    def __init__(self, parts: list[list[Any]]) -> None:
        self._parts = parts

    def mapPartitions(self, function: Callable[[Iterable[Any]], Iterable[Any]]) -> "LocalRdd":  # noqa: N802
        return LocalRdd([list(function(iter(part))) for part in self._parts])

    def map(self, function: Callable[[Any], Any]) -> "LocalRdd":
        return LocalRdd([[function(row) for row in part] for part in self._parts])

    def union(self, other: "LocalRdd") -> "LocalRdd":
        return LocalRdd(self._parts + other._parts)

    def partitionBy(self, count: int, function: Callable[[Any], int]) -> "LocalRdd":  # noqa: N802
        parts: list[list[Any]] = [[] for _ in range(count)]
        for part in reversed(self._parts):
            for key, value in reversed(part):
                parts[function(key) % count].append(pickle.loads(pickle.dumps((key, value))))
        return LocalRdd(parts)

    def collect(self) -> list[Any]:
        return [row for part in self._parts for row in part]


class LocalAccumulator:
    def __init__(self, value: int) -> None:
        self.value = value

    def add(self, count: int) -> None:
        self.value += count


class LocalContext:
    """A stand-in for a SparkContext."""

    defaultParallelism = 2  # noqa: N815

    def parallelize(self, values: Iterable[Any], count: int) -> LocalRdd:
        listed = list(values)
        return LocalRdd([listed[number::count] for number in range(count)])

    def accumulator(self, value: int) -> LocalAccumulator:
        return LocalAccumulator(value)
