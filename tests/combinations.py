"""Tests for only one of the two combinations: PySpark 3.5 with the connector, and PySpark 4 with our source."""

import pytest

from streaming.spark.installed import has_connector

with_connector = pytest.mark.skipif(not has_connector(), reason="this PySpark has no connector")
with_source = pytest.mark.skipif(has_connector(), reason="with this PySpark, the connector reads Pulsar")
