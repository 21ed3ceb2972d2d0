"""Runs commands exactly as Ledger Reaper prints them, as an operator who pastes them into bash in Pulsar's folder."""

import os
import pty
import subprocess
from collections.abc import Sequence
from pathlib import Path

from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts.launch import java_environment

SECONDS = 180
_MEMORY = "-Xms32m -Xmx256m"


def run_printed(cluster: Cluster, command: str) -> str:
    """Run a command, which must succeed; return its output."""
    scratch = cluster.home.root / "tmp" / "printed"
    scratch.mkdir(parents=True, exist_ok=True)
    # an operator's client.conf names the operator's cluster
    conf = scratch / "client.conf"
    conf.write_text(f"webServiceUrl={cluster.serving.admin}\nbrokerServiceUrl={cluster.serving.pulsar}\n")
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=cluster.pulsar,
        env={
            **java_environment(cluster.home, scratch, _MEMORY, cluster.pulsar),
            "PATH": f"{cluster.pulsar / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PULSAR_CLIENT_CONF": str(conf),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS,
        check=False,
    )
    text = done.stdout.decode(errors="replace")
    assert done.returncode == 0, f"{command}\n{text[-3000:]}"
    return text


def run_own(command: Sequence[str], folder: Path) -> None:
    """Run a command of Ledger Reaper in a folder, and answer its questions on a terminal with yes; it must succeed."""
    ours, terminal = pty.openpty()
    try:
        os.write(ours, b"y\n" * 3)
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(terminal)
    assert done.returncode == 0, f"{command}\n{done.stdout.decode(errors='replace')[-3000:]}"
