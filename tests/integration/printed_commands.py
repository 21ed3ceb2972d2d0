"""Runs commands exactly as Ledger Reaper prints them, as an operator who pastes them into bash in Pulsar's folder."""

import os
import subprocess

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
