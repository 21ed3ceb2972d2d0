"""Go programs that check what we ship: `python -m tests.go_tools [--required] [NAME …]` builds those that are missing.

Each is built once from its Go module, at the version below, into the user's cache folder, and stays there. Go's own
caches (a gigabyte of sources) are temporary. Without Go the command prints why nothing was built, and exits with 0
unless the tools are `--required`. Tests never build: they call `required_tool`, which skips where a tool is missing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from streaming.spark.ivy import default_cache, locked


@dataclass(frozen=True, slots=True)
class GoTool:
    """A program of a Go module."""

    package: str
    version: str
    tags: str = ""  # build tags, which leave out parts that we do not use

    @property
    def name(self) -> str:
        """The file name that `go install` gives it."""
        parts = self.package.split("/")
        return parts[-2] if parts[-1].startswith("v") and parts[-1][1:].isdigit() else parts[-1]


TOOLS = {
    tool.name: tool
    for tool in (
        # without service discovery, whose clients of all clouds take most of the build
        GoTool("github.com/prometheus/prometheus/cmd/promtool", "v0.316.0", tags="remove_all_sd"),
        GoTool("helm.sh/helm/v3/cmd/helm", "v3.22.0"),
        GoTool("sigs.k8s.io/kustomize/kustomize/v5", "v5.8.2"),
    )
}


def path_of(name: str) -> Path:
    """Return where the tool is once it has been built."""
    return default_cache() / "go-tools" / f"{name}-{TOOLS[name].version}"


def required_tool(name: str) -> Path:
    """Return the path of a built tool; skip the calling test if there is none."""
    path = path_of(name)
    if not path.is_file():
        pytest.skip(f"{name} is not built: `make tools` builds it if this machine has Go")
    return path


def build(names: Sequence[str]) -> str | None:
    """Build the tools that are missing; return why that is impossible, or None. Processes may call this at once."""
    folder = default_cache() / "go-tools"
    with locked(folder / "build.lock"):
        missing = [TOOLS[name] for name in names if not path_of(name).is_file()]
        if missing and shutil.which("go") is None:
            return "this machine has no Go"
        with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as scratch:
            for tool in missing:
                _print(f"building {tool.name} {tool.version} (a few minutes)")
                if why := _install(tool, Path(scratch)):
                    return why
    return None


def _install(tool: GoTool, scratch: Path) -> str | None:
    own = {"GOBIN": "bin", "GOMODCACHE": "modules", "GOCACHE": "cache", "GOTMPDIR": ""}
    environment = os.environ | {name: str(scratch / folder) for name, folder in own.items()}
    # The downloaded modules stay writable, so that the temporary folder can be removed.
    options = ["-modcacherw", "-trimpath", "-buildvcs=false", "-ldflags=-s", f"-tags={tool.tags}"]
    command = ["nice", "go", "install", *options, f"{tool.package}@{tool.version}"]
    done = subprocess.run(
        command, env=environment | {"GOFLAGS": ""}, cwd=scratch, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        return f"go install {tool.package}@{tool.version} failed: {done.stderr.strip()[-500:]}"
    (scratch / "bin" / tool.name).rename(path_of(tool.name))
    return None


def main(arguments: Sequence[str]) -> int:
    """Build what is named (all tools by default), and print the path of each."""
    names = [each for each in arguments if each != "--required"] or list(TOOLS)
    if unknown := sorted(set(names) - set(TOOLS)):
        _print(f"no such tool: {', '.join(unknown)}; there are {', '.join(TOOLS)}")
        return 2
    why = build(names)
    for name in names:
        if path_of(name).is_file():
            sys.stdout.write(f"{path_of(name)}\n")
        else:
            _print(f"skipped: what needs {name}, because {why}")
    return 1 if why and "--required" in arguments else 0


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
