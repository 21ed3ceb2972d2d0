"""One door to the terminal: nothing but streaming/terminal.py prints, so that no text of others acts there."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOOR = ROOT / "streaming" / "terminal.py"
# The demonstration shows what it made itself.
DEMO = ROOT / "streaming" / "sandbox" / "demo"
MODULES = sorted(
    path
    for top in ("streaming", "udfs")
    for path in (ROOT / top).rglob("*.py")
    if path != DOOR and DEMO not in path.parents and not path.stem.endswith("_pb2")
)


def _ways_around(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "rich.console":
            yield from (f"import of {alias.name}" for alias in node.names if alias.name != "RenderableType")
        if isinstance(node, ast.ImportFrom) and node.module == "rich":
            yield from (f"rich.{alias.name}" for alias in node.names if alias.name in ("print", "get_console"))
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("print", "typer.echo", "typer.secho", "click.echo", "sys.stdout.write", "sys.stderr.write"):
                yield called


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_door_prints(path: Path) -> None:
    assert list(_ways_around(ast.parse(path.read_text()))) == []
