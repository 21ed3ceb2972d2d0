"""The classes of PySpark 4 that our data sources use, for tests in an environment with PySpark 3.5."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest


class DataSource:
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options


class InputPartition:
    def __init__(self, value: Any) -> None:
        self.value = value


class ReadAllAvailable:
    pass


@dataclass
class ReadMaxRows:
    max_rows: int


@contextmanager
def spark4_classes(monkeypatch: pytest.MonkeyPatch, *modules: str) -> Iterator[None]:
    """Let the block import our modules of these names over the classes; the modules are forgotten at the end."""
    nothing = type("Nothing", (), {})
    for name, classes in (
        (
            "pyspark.sql.datasource",
            {"DataSource": DataSource, "DataSourceStreamReader": nothing, "InputPartition": InputPartition},
        ),
        (
            "pyspark.sql.streaming.datasource",
            {
                "ReadAllAvailable": ReadAllAvailable,
                "ReadLimit": nothing,
                "ReadMaxRows": ReadMaxRows,
                "SupportsTriggerAvailableNow": type("Mixin", (), {}),
            },
        ),
    ):
        module = ModuleType(name)
        vars(module).update(classes)
        monkeypatch.setitem(sys.modules, name, module)
    yield
    # later imports must not get the modules over these classes
    for name in modules:
        package, _, short = name.rpartition(".")
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(sys.modules[package], short)
