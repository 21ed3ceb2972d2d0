"""One door to the terminal: nothing but streaming/terminal.py prints, so that no text of others acts there."""

import ast
from collections.abc import Iterator
from pathlib import Path

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


PRINTERS = ("print", "typer.echo", "typer.secho", "click.echo", "sys.stdout.write", "sys.stderr.write")
# a module without these words needs no parsing
WORDS = ("rich", "print", "echo", "stdout", "stderr")


def _ways_around(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "rich.console":
            yield from (f"import of {alias.name}" for alias in node.names if alias.name != "RenderableType")
        if isinstance(node, ast.ImportFrom) and node.module == "rich":
            yield from (f"rich.{alias.name}" for alias in node.names if alias.name in ("print", "get_console"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = ast.unparse(node.func)
            if called in PRINTERS:
                yield called


def test_only_the_door_prints() -> None:
    texts = {path: path.read_text() for path in MODULES}
    assert len(texts) > 400
    around = {
        str(path.relative_to(ROOT)): list(_ways_around(ast.parse(text)))
        for path, text in texts.items()
        if any(word in text for word in WORDS)
    }
    assert {name: ways for name, ways in around.items() if ways} == {}
