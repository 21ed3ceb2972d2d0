"""Which clients are shared, and which libraries they load."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from streaming.clients import objects_for, offload_configuration_for
from streaming.config.load import load
from streaming.config.settings import Settings
from udfs.offload_drivers import Bucket

MINE = Bucket(name="mine", endpoint="http://127.0.0.1:1", region="us-east-1")
IMPORTS = """
import json, sys
import streaming.clients
print(json.dumps(sorted(sys.modules.keys() & {"boto3", "pulsar", "pyspark"})))
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    config = tmp_path / "config.toml"
    config.write_text(f'[tiered_storage]\nallowed = [{{ endpoint = "{MINE.endpoint}", bucket = "{MINE.name}" }}]\n')
    return load(config)


def test_an_allowed_bucket_has_one_client_in_a_process(settings: Settings) -> None:
    assert objects_for(settings, MINE) is objects_for(settings, MINE)
    slower = settings.two_phase.model_copy(update={"reconsume_later_seconds": 7})
    others = settings.model_copy(update={"two_phase": slower})
    assert objects_for(others, MINE) is not objects_for(settings, MINE)


def test_a_bucket_that_is_not_allowed_has_no_client(settings: Settings) -> None:
    with pytest.raises(ValueError, match="yours is not in tiered_storage"):
        objects_for(settings, Bucket(name="yours", endpoint=MINE.endpoint, region=MINE.region))


def test_the_offload_configuration_has_one_client_for_each_cluster_name(settings: Settings) -> None:
    assert offload_configuration_for(settings) is offload_configuration_for(settings)
    storage = settings.tiered_storage.model_copy(update={"pulsar_cluster": "another"})
    others = settings.model_copy(update={"tiered_storage": storage})
    assert offload_configuration_for(others).cluster_name() == "another"


def test_a_command_that_needs_only_zookeeper_loads_neither_s3_nor_pulsars_client() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == []
