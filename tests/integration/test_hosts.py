"""Hosts are cut off, die and join while the service runs on them with all its state on S3.

The hosts are namespaces of this machine's kernel, or folders if it can't create namespaces (hosts.py).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from streaming.config.load import CONF
from streaming.sandbox.cluster import down, up
from tests.integration.host_scenes import Field, a_host_dies_while_a_bounded_chunk_is_swept, hosts_come_and_go
from tests.integration.hosts import Hosts, folders, separate, why_not_separate
from tests.integration.spark_hosts import SparkHosts

pytestmark = [pytest.mark.cluster, pytest.mark.long]

MakeField = Callable[[Hosts], Field]


@pytest.fixture
def field_on(installed: Path, dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeField]:
    """Return a function that creates a field of hosts."""
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    for key, value in keys.items():
        monkeypatch.setenv(key, value)
    with ExitStack() as stack:

        def make(hosts: Hosts) -> Field:
            home = tmp_path / "pulsar"
            stack.callback(down, home)
            cluster = up(home, listen=hosts.address)
            return Field(
                cluster,
                SparkHosts(
                    hosts=hosts, here=tmp_path, installed=installed, dist=dist, environment=keys, stack=stack, cores=2
                ),
                tmp_path,
            )

        yield make


@pytest.fixture(scope="session")
def _separable() -> None:
    """Skip the test on a machine without separate hosts, before anything is built."""
    if why := why_not_separate():
        pytest.skip(why)


@pytest.mark.usefixtures("_separable")
def test_hosts_are_cut_off_die_and_join_and_every_promise_holds(field_on: MakeField, tmp_path: Path) -> None:
    with separate(tmp_path) as hosts:
        field = field_on(hosts)
        hosts_come_and_go(field, 50_000, chunk_rows=20_000)
        for path in (CONF.parent, field.here / "etc", Path.home() / ".cache"):
            assert not field.spark.workers["three"].path(str(path)).exists(), "a worker has files of this machine"


def test_a_stage_that_is_repeated_gets_no_second_plan(field_on: MakeField, tmp_path: Path) -> None:
    with separate(tmp_path) if not why_not_separate() else folders(tmp_path) as hosts:
        a_host_dies_while_a_bounded_chunk_is_swept(field_on(hosts))


def test_every_promise_holds_with_folders_in_place_of_hosts(field_on: MakeField, tmp_path: Path) -> None:
    with folders(tmp_path) as hosts:
        hosts_come_and_go(field_on(hosts), 12_000, chunk_rows=3_000)
