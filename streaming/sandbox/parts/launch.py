"""Starts the parts with their commands and environments, and checks whether they serve."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from streaming.errors import ReaperError
from streaming.sandbox.home import ACCESS_KEY, BUCKET, CLUSTER_NAME, Home, Instance, Part, Spec, addresses
from streaming.sandbox.parts import part_clients, process
from streaming.sandbox.parts.part_settings import render, settings

# C1 only and one GC thread: on two cores the JIT's second tier costs more start-up time than it saves.
# Classes are not verified, because they come from an archive whose checksum was compared.
_JVM = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Xss512k"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
_MEMORY = {
    Part.ZOOKEEPER: "-Xms64m -Xmx384m",
    Part.BOOKIE: "-Xms128m -Xmx384m -XX:MaxDirectMemorySize=256m",
    Part.BROKER: "-Xms256m -Xmx640m -XX:MaxDirectMemorySize=384m",
}
TOOL_SECONDS = 120
_TOOL_MEMORY = "-Xms64m -Xmx384m -XX:MaxDirectMemorySize=128m"
_COMMAND = {Part.ZOOKEEPER: "zookeeper", Part.BOOKIE: "bookie", Part.BROKER: "broker"}
_CONF_VARIABLE = {
    Part.ZOOKEEPER: "PULSAR_ZK_CONF",
    Part.BOOKIE: "PULSAR_BOOKKEEPER_CONF",
    Part.BROKER: "PULSAR_BROKER_CONF",
}


def start(home: Home, part: Instance, spec: Spec, pulsar: Path) -> None:
    """Write the part's configuration and start it, without waiting until it serves."""
    scratch = home.scratch(part)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    if part == Part.S3:
        command, env = _s3_command(home, spec), {**os.environ, "TMPDIR": str(scratch)}
    else:
        if part.kind is Part.ZOOKEEPER and spec.is_ensemble:
            (home.data(part) / "myid").write_text(f"{part.number}\n", encoding="utf-8")
        home.conf(part).write_text(render(settings(home, part, spec, pulsar)), encoding="utf-8")
        command = [str(pulsar / "bin" / "pulsar"), _COMMAND[part.kind]]
        java = java_environment(home, scratch, _MEMORY[part.kind], pulsar)
        env = {**java, _CONF_VARIABLE[part.kind]: str(home.conf(part))}
    process.start(command, env=env, log=home.log(part), record=home.record(part), cwd=home.root)


def java_environment(home: Home, scratch: Path, memory: str, pulsar: Path) -> dict[str, str]:
    """Return an environment for Pulsar's scripts in which all files they write are inside the home."""
    own_java = pulsar / "java"
    options = f"{_JVM} -Djava.io.tmpdir={scratch} -XX:ErrorFile={home.logs}/hs_err_%p.log"
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PULSAR_", "BOOKIE_", "BK_"))},
        "PULSAR_LOG_DIR": str(home.logs),
        "BOOKIE_LOG_DIR": str(home.logs),
        "PULSAR_MEM": memory,
        "BOOKIE_MEM": memory,
        "PULSAR_GC": options,
        "BOOKIE_GC": options,
        "PULSAR_GC_LOG": "-Xlog:disable -Xlog:all=warning:stdout",
        "BOOKIE_GC_LOG": "-Xlog:disable -Xlog:all=warning:stdout",
        "PULSAR_EXTRA_OPTS": "-Dpulsar.allocator.exit_on_oom=true -Dio.netty.recycler.maxCapacityPerThread=0",
        "ACCESS_KEY_ID": ACCESS_KEY,
        "ACCESS_KEY_SECRET": ACCESS_KEY,
        **({"JAVA_HOME": str(own_java)} if own_java.is_dir() else {}),
    }


def is_ready(part: Instance, spec: Spec) -> bool:
    """Whether the part serves requests now."""
    where = addresses(spec, [part])
    match part.kind:
        case Part.S3:
            return part_clients.http("HEAD", f"{where.s3}/{BUCKET}", timeout_seconds=2).status in (200, 404)
        case Part.ZOOKEEPER:
            return part_clients.zookeeper_mode(where.zookeeper) is not None
        case Part.BOOKIE:
            return part_clients.http("GET", f"{where.bookie_http}/api/v1/bookie/is_ready", timeout_seconds=2).ok
        case Part.BROKER:
            url = f"{where.admin}/admin/v2/brokers/health?topicVersion=V2"
            return part_clients.http("GET", url, timeout_seconds=10).ok


def initialize_metadata(home: Home, spec: Spec, pulsar: Path) -> None:
    """Create the cluster, tenants, BookKeeper's root and transaction coordinators with Pulsar's own tool."""
    where = addresses(spec)
    store = f"zk:{where.zookeeper}"
    arguments = ["--cluster", CLUSTER_NAME, "--metadata-store", store, "--configuration-store", store]
    arguments += ["--web-service-url", where.admin, "--broker-service-url", where.pulsar]
    _run_tool(home, pulsar, "initialize-cluster-metadata", arguments)


def _run_tool(home: Home, pulsar: Path, tool: str, arguments: list[str]) -> None:
    scratch = home.root / "tmp" / "tool"
    scratch.mkdir(parents=True, exist_ok=True)
    log = home.logs / f"{tool}.log"
    with log.open("ab") as output:
        done = subprocess.run(
            [str(pulsar / "bin" / "pulsar"), tool, *arguments],
            env=java_environment(home, scratch, _TOOL_MEMORY, pulsar),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=TOOL_SECONDS,
            check=False,
        )
    if done.returncode != 0:
        raise ReaperError(f"Pulsar's metadata could not be written; read {log}\n{tail(log)}")


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log, truncated to a readable width."""
    if not log.is_file():
        return "(no log was written)"
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(f"  {line[:240]}" for line in text.splitlines()[-lines:])


def _s3_command(home: Home, spec: Spec) -> list[str]:
    state = home.data(Part.S3) / "buckets.pickle"
    return [sys.executable, "-m", "streaming.sandbox.parts.s3_server", spec.listen, str(spec.ports["s3"]), str(state)]


def s3_environment() -> Mapping[str, str]:
    """Return the variables with which boto3's standard chain can use the S3 part, which accepts any key."""
    return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": ACCESS_KEY}
