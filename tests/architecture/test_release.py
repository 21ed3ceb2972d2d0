"""What a release contains beside the program: man pages, the list of packages, the changelog; and one version for all.

tests/integration/test_release.py builds a whole release.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from deploy.man_pages import man_pages
from deploy.sbom import with_java_archives
from streaming.cli.main import COMMANDS, Listed
from streaming.spark.ivy import Artifact
from streaming.spark.jars import CONNECTOR, S3A_OF_SPARK_3, S3A_OF_SPARK_4

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PAGES = man_pages()


def test_every_command_has_a_man_page_with_its_options() -> None:
    visible = [name for name in COMMANDS if not Listed(name).hidden]
    assert PAGES.keys() == {"ledger-reaper.1", *(f"ledger-reaper-{name}.1" for name in visible)}
    for name in visible:
        assert f"ledger\\-reaper\\-{name}".replace("submit-args", "submit\\-args") in PAGES["ledger-reaper.1"]
    assert "\\fB\\-\\-older\\-than <str>\\fR" in PAGES["ledger-reaper-audit.1"]
    assert '.SH "DLQ REPLAY"' in PAGES["ledger-reaper-dlq.1"]
    assert "`" not in "".join(PAGES.values())


def test_the_wheel_has_every_file_that_the_packages_read() -> None:
    data = PYPROJECT["tool"]["setuptools"]["package-data"]
    left_out = [
        path
        for package in ("conf", "streaming", "udfs")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyi", ".pyc", ".java")  # a jar contains its sources
        if not any(path.relative_to(ROOT / package).match(pattern) for pattern in data[package])
    ]
    assert left_out == []


@pytest.mark.skipif(shutil.which("groff") is None, reason="this machine has no groff")
@pytest.mark.parametrize("name", PAGES)
def test_groff_finds_nothing_in_a_man_page(name: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-k", "-ww"], input=PAGES[name], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("spark", "archives"), [("3.5.9", (CONNECTOR, *S3A_OF_SPARK_3)), ("4.3.0", S3A_OF_SPARK_4)], ids=("3.5", "4.3")
)
def test_the_list_of_packages_gets_the_java_archives_below_the_program(
    spark: str, archives: tuple[Artifact, ...]
) -> None:
    bom = {
        "metadata": {"component": {"bom-ref": "root"}},
        "components": [{"name": "pyspark", "version": spark}],
        "dependencies": [{"ref": "root", "dependsOn": ["pyspark==1"]}, {"ref": "pyspark==1"}],
    }
    found = with_java_archives(bom)
    assert {each.name for each in archives} | {"pyspark"} == {each["name"] for each in found["components"]}
    root, *others = found["dependencies"]
    assert set(root["dependsOn"]) == {each["ref"] for each in others}
    assert all(each["hashes"][0]["content"] for each in found["components"] if "purl" in each)


def test_an_extra_or_a_file_of_constraints_pins_each_pyspark() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert extras["spark35"] == ["pyspark==3.5.9"]
    assert "\npyspark==" not in (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {}
    for path in ROOT.glob("constraints-*.txt"):
        included, spark = path.read_text(encoding="utf-8").splitlines()
        assert included == "-c constraints.txt"
        pinned[path.name] = spark
    assert pinned == {"constraints-spark4.txt": "pyspark==4.3.0", "constraints-spark4.2.txt": "pyspark==4.2.1"}
    assert extras["spark4"] == ["pyspark>=4.2.1,<4.4"]


def test_one_version_is_named_everywhere() -> None:
    version = PYPROJECT["project"]["version"]
    chart = yaml.safe_load((ROOT / "deploy/helm/ledger-reaper/Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (version, version)
    for path in ("deploy/Dockerfile", "deploy/kubernetes/base/statefulset.yaml", "docs/deploying.md"):
        tags = re.findall(r"\bledger-reaper:(\d[\w.]*)", (ROOT / path).read_text(encoding="utf-8"))
        assert set(tags) == {version}, path


def test_every_news_fragment_reaches_the_changelog(tmp_path: Path) -> None:
    """towncrier ignores a file of an unknown type, and the news in it would be lost."""
    types = [each["directory"] for each in PYPROJECT["tool"]["towncrier"]["type"]]
    fragments = [path for path in (ROOT / "changes").iterdir() if path.name not in ("README.md", ".gitignore")]
    assert [path.name for path in fragments if path.suffixes[-2:-1] not in [[f".{each}"] for each in types]] == []
    shutil.copytree(ROOT / "changes", tmp_path / "changes")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    for each in types:
        (tmp_path / "changes" / f"+try.{each}.md").write_text(f"News of {each}.\n")
    build = [
        str(Path(sys.executable).parent / "towncrier"),
        "build",
        "--yes",
        "--version",
        "9.9.9",
        "--date",
        "2030-01-02",
    ]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    before, after = ((folder / "CHANGELOG.md").read_text(encoding="utf-8") for folder in (ROOT, tmp_path))
    _, new, old = after.split("\n## ", 2)
    assert new.startswith("9.9.9 (2030-01-02)\n")
    assert [each for each in types if f"- News of {each}.\n" not in new] == []
    assert before.endswith(f"\n## {old}")
