"""What the client's package promises: old Pythons, no dependency but pulsar-client, types, and its documents."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

import ledger_reaper_client

ROOT = Path(__file__).parents[3]
CLIENT = ROOT / "clients" / "python"
MODULES = sorted((CLIENT / "src" / "ledger_reaper_client").glob("*.py"))
PROJECT = tomllib.loads((CLIENT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_a_module_has_the_syntax_of_python_3_9_and_needs_only_pulsar_client(module: Path) -> None:
    tree = ast.parse(module.read_text(encoding="utf-8"), feature_version=(3, 9))
    others = _imports(tree) - sys.stdlib_module_names - {"ledger_reaper_client"}
    assert others <= {"pulsar"}
    at_import = {name for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) for name in _imports(node)}
    assert "pulsar" not in at_import, "importing the client would load the library"


@pytest.mark.parametrize("package", ["streaming", "udfs"])
def test_the_service_does_not_import_the_client(package: str) -> None:
    using = re.compile(r"^\s*(from|import) ledger_reaper_client", re.MULTILINE)
    assert [path for path in (ROOT / package).rglob("*.py") if using.search(path.read_text(encoding="utf-8"))] == []


def test_it_has_the_version_and_the_license_of_the_service() -> None:
    service = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert PROJECT["version"] == service["version"]
    assert (CLIENT / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_everything_that_is_exported_exists_and_is_in_the_readme() -> None:
    readme = (CLIENT / "README.md").read_text(encoding="utf-8")
    for name in ledger_reaper_client.__all__:
        assert getattr(ledger_reaper_client, name) is not None
        assert name in readme, name
    with pytest.raises(AttributeError, match="has no attribute"):
        _ = ledger_reaper_client.nothing


def test_it_is_typed() -> None:
    assert (CLIENT / "src" / "ledger_reaper_client" / "py.typed").is_file()
