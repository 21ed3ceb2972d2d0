"""`make release` into a temporary folder: it verifies what it builds; this reads what it has left there."""

import os
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from tests.go_tools import required_tool
from tests.integration.installation import CONSTRAINTS, IMAGE, ROOT, run

pytestmark = pytest.mark.long


def test_a_release_is_complete_and_its_source_archive_can_be_installed(tmp_path: Path) -> None:
    for name in ("helm", "kustomize", "promtool"):
        required_tool(name)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    run(ROOT / "deploy" / "release.sh", tmp_path, "--draft", env=environment)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    release = tmp_path / f"ledger-reaper-{version}"
    sources = f"ledger_reaper-{version}.tar.gz"
    assert {path.name for path in release.iterdir()} == {
        f"ledger_reaper_client-{version}-py3-none-any.whl",
        *(f"ledger_reaper-{version}-py3-none-any.whl", sources, f"ledger-reaper-{version}.tgz"),
        *CONSTRAINTS,
        *(
            "kubernetes.yaml",
            "kubernetes-executors.yaml",
            "alerts.yaml",
            "dashboard.json",
            "man.tar.gz",
            "sbom.cdx.json",
            "sbom-spark4.cdx.json",
            "SHA256SUMS",
        ),
    }
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=release)
    with tarfile.open(release / sources) as archive:
        archive.extractall(tmp_path, filter="data")
    # deploy/install.sh needs these, as the image does
    for name in IMAGE:
        for path in _files(ROOT / name):
            copy = tmp_path / sources.removesuffix(".tar.gz") / path.relative_to(ROOT)
            assert copy.read_bytes() == path.read_bytes()
            assert os.access(copy, os.X_OK) == os.access(path, os.X_OK), path


def _files(path: Path) -> list[Path]:
    found = [path, *path.rglob("*")]
    return [each for each in found if each.is_file() and "__pycache__" not in each.parts]
