"""The client's wheel in an empty environment of every Python that this machine has and the wheel supports."""

import os
import re
import shutil
import subprocess
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin, PulsarAdminSettings
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from tests.integration import client_environment
from tests.integration.client_environment import CLIENT
from tests.integration.conftest import create_tenant
from udfs.records import PendingDelete
from udfs.requests.request_format import decode

pytestmark = [pytest.mark.cluster, pytest.mark.long]

CLASSIFIERS = tomllib.loads((CLIENT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
SUPPORTED = [each.rpartition(" ")[2] for each in CLASSIFIERS if re.search(r":: 3\.\d+$", each)]
PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"


def _interpreters() -> Iterator[tuple[str, str]]:
    for version in SUPPORTED:
        found = [str(path) for path in sorted(PYENV.glob(f"{version}.*/bin/python"))]
        if path := next(iter(found), None) or shutil.which(f"python{version}"):
            yield version, path


PYTHONS = dict(_interpreters())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return client_environment.build_wheel(tmp_path_factory.mktemp("wheel"))


def test_this_machine_has_the_python_of_the_service() -> None:
    assert "3.11" in PYTHONS


@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_works_with_nothing_but_its_dependencies(
    cluster: Cluster, wheel: Path, tmp_path: Path, version: str
) -> None:
    tenant = f"t{uuid.uuid4().hex[:10]}"
    create_tenant(cluster, tenant, "app")
    topic = f"persistent://{tenant}/app/orders"
    subprocess.run([PYTHONS[version], "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]  # ours may not know an old Python
    subprocess.run([*pip, "install", str(wheel)], check=True)
    subprocess.run([*pip, "check"], check=True)
    sent = client_environment.send(python, cluster.addresses.pulsar, cluster.addresses.admin, topic, 7, 8)
    assert len(sent) == 2
    lane = f"persistent://{tenant}/ledger-deletion/__ledger_deletion"
    stored = [decode(data) for data in topics.read_all(cluster, lane)]
    with PulsarAdmin(PulsarAdminSettings(admin_url=cluster.addresses.admin)) as admin:
        admin.delete_topic(lane, force=True)  # the next test's service would read it, too
    assert [(each.ledger_id, each.managed_ledger) for each in stored if isinstance(each, PendingDelete)] == [
        (7, f"{tenant}/app/persistent/orders"),
        (8, f"{tenant}/app/persistent/orders"),
    ]
