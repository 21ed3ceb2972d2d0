"""The generated protobuf modules match their .proto files."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
def test_generated_modules_are_up_to_date(tmp_path: Path) -> None:
    protos = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "udfs/proto").glob("*.proto"))
    protoc = import_module("grpc_tools.protoc")

    status = protoc.main(["protoc", f"-I{ROOT}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *protos])

    assert status == 0
    generated = {path.name: path.read_text() for path in (tmp_path / "udfs/proto").iterdir()}
    assert len(generated) == 2 * len(protos)
    committed = {path.name: path.read_text() for path in (ROOT / "udfs/proto").glob("*_pb2.py*")}
    assert generated == committed, "generate them again as udfs/proto/__init__.py describes"
