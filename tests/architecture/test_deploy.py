"""What deploy/ has for containers, Kubernetes and systemd: the formats' own tools take it, and it fits the program.

No image is built and no cluster asked; tests/integration/test_dist.py and test_image.py run the steps of the image.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from streaming.cli.main import app
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.spark import jars as artifacts
from streaming.spark.submission import IMAGE_HOME, secret_files

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCS = DEPLOY.parent / "docs"
BASE, EXECUTORS = DEPLOY / "kubernetes" / "base", DEPLOY / "kubernetes" / "executors"
# kinds that Kubernetes knows only where somebody has added them, and files that are parts of others
_NOT_KUBERNETES = {"PodMonitor", "PrometheusRule", "Kustomization", "Component"}
BIN = Path(sys.executable).parent


def manifest(path: Path) -> dict[str, Any]:
    (document,) = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


MANIFESTS = sorted(DEPLOY.glob("kubernetes/*/*.yaml"))
WHOLE = [path for path in MANIFESTS if manifest(path)["kind"] not in _NOT_KUBERNETES and path.name != "driver.yaml"]


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.name)
@pytest.mark.parametrize("version", ["1.29", "1.34"])
def test_kubernetes_knows_every_field(path: Path, version: str) -> None:
    kubernetes_validate.validate(manifest(path), version, strict=True)


def test_a_kustomization_names_every_file_beside_it() -> None:
    for folder in (BASE, EXECUTORS):
        whole = manifest(folder / "kustomization.yaml")
        named = {*whole["resources"], *(each["path"] for each in whole.get("patches", ()) if "path" in each)}
        named |= {name for each in whole.get("configMapGenerator", ()) for name in each["files"]}
        here = {path.name for path in folder.iterdir()} - {"kustomization.yaml"}
        assert {each for each in named if (folder / each).is_file()} == here
        assert all((folder / each).exists() for each in named)


def test_the_policy_opens_the_ports_of_the_configuration_to_all_pods(settings: Settings) -> None:
    policy = manifest(BASE / "networkpolicy.yaml")["spec"]
    driver = manifest(BASE / "statefulset.yaml")["spec"]["template"]["metadata"]["labels"]
    executor = manifest(EXECUTORS / "executor.yaml")["metadata"]["labels"]
    everyone = {"podSelector": policy["podSelector"]}
    assert policy["podSelector"]["matchLabels"].items() <= driver.items() & executor.items()
    assert {"from": [everyone]} in policy["ingress"]
    assert {"to": [everyone]} in policy["egress"]
    services = {each["port"] for rule in policy["egress"] for each in rule.get("ports", ())}
    addresses = (settings.pulsar.service_url, settings.pulsar.admin_url, *settings.zookeeper.hosts.split(","))
    assert {int(address.rpartition(":")[2]) for address in addresses} <= services


def test_kubernetes_replaces_a_pod_that_is_not_ready() -> None:
    """With the default, OrderedReady, a pod that is not ready (a paused service) is never updated."""
    assert manifest(BASE / "statefulset.yaml")["spec"]["podManagementPolicy"] == "Parallel"


@pytest.fixture
def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifest(BASE / "statefulset.yaml")["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def settings() -> Settings:
    return load(BASE / "config.toml")


def mounts(pod: dict[str, Any]) -> dict[str, str]:
    return {each["mountPath"]: each["name"] for each in pod["containers"][0]["volumeMounts"]}


def test_the_pod_may_do_nothing_that_it_does_not_need(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod["automountServiceAccountToken"]
    assert f"--uid {pod['securityContext']['runAsUser']} " in (DEPLOY / "Dockerfile").read_text()


def test_all_that_the_service_writes_and_reads_is_mounted(pod: dict[str, Any], settings: Settings) -> None:
    mounted, volumes = mounts(pod), {each["name"]: each for each in pod["volumes"]}
    claims = {each["metadata"]["name"] for each in manifest(BASE / "statefulset.yaml")["spec"]["volumeClaimTemplates"]}
    assert set(mounted.values()) == {*volumes, *claims}
    for location in (settings.state.dir, settings.checkpoints.dir):
        (name,) = [name for path, name in mounted.items() if Path(location).is_relative_to(path)]
        assert name in claims
    assert {str(Path(each).parent) for each in secret_files(settings)} <= set(mounted)
    assert "secret" in volumes[mounted["/etc/ledger-reaper/secrets"]]
    assert "emptyDir" in volumes[mounted["/tmp"]]
    named = "LEDGER_REAPER_CONFIG=/etc/ledger-reaper/config.toml"
    assert named in (DEPLOY / "Dockerfile").read_text()
    assert mounted["/etc/ledger-reaper/config.toml"] == "config"


def test_probes_and_prometheus_ask_where_the_service_answers(pod: dict[str, Any], settings: Settings) -> None:
    (container,) = pod["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == settings.metrics.port
    assert settings.metrics.address == "0.0.0.0"
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    # a pod that is not ready, of a paused service, is replaced, and leaves a node that is drained
    assert manifest(BASE / "statefulset.yaml")["spec"]["podManagementPolicy"] == "Parallel"
    assert manifest(BASE / "poddisruptionbudget.yaml")["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    (endpoint,) = manifest(BASE / "podmonitor.yaml")["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == (port["name"], "/metrics")
    labels = manifest(BASE / "statefulset.yaml")["spec"]["template"]["metadata"]["labels"]
    for name in ("podmonitor", "poddisruptionbudget", "service"):
        selector = manifest(BASE / f"{name}.yaml")["spec"]["selector"]
        assert selector.get("matchLabels", selector).items() <= labels.items()


def test_the_pod_has_the_memory_that_its_java_needs(pod: dict[str, Any], settings: Settings) -> None:
    assert settings.spark.driver_memory == "2g"
    assert pod["containers"][0]["resources"]["limits"]["memory"] == "4Gi"


def test_the_driver_with_executors_asks_for_a_line_that_can_be_had(
    pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "jars", lambda **_: [Path("/cache/connector.jar")])
    driver = manifest(EXECUTORS / "driver.yaml")["spec"]["template"]["spec"]
    (container,) = driver["containers"]
    first, *arguments = container["args"]
    assert first == "start"
    assert f"--image={pod['containers'][0]['image']}" in arguments
    result = CliRunner().invoke(app, ["submit-args", "--config", str(BASE / "config.toml"), *arguments])
    assert result.exit_code == 0, result.output
    volumes = {each["name"]: each for each in driver["volumes"]}
    claim = volumes["state"]["persistentVolumeClaim"]["claimName"]
    assert claim == manifest(EXECUTORS / "state.yaml")["metadata"]["name"]
    assert f"options.claimName={claim}" in result.output
    assert f"local://{IMAGE_HOME}/jars/" in result.output
    (generated,) = manifest(EXECUTORS / "kustomization.yaml")["configMapGenerator"]
    assert volumes["executor"]["configMap"]["name"] == generated["name"]
    at = next(each["mountPath"] for each in container["volumeMounts"] if each["name"] == "executor")
    assert f"podTemplateFile={at}/{generated['files'][0]} " in result.output
    assert f"mount.path={load(BASE / 'config.toml').state.dir}" in result.output


def test_an_executor_may_do_no_more_than_the_driver(pod: dict[str, Any]) -> None:
    executor = manifest(EXECUTORS / "executor.yaml")
    assert executor["spec"]["securityContext"] == pod["securityContext"]
    assert executor["spec"]["containers"][0]["securityContext"] == pod["containers"][0]["securityContext"]
    assert not executor["spec"]["automountServiceAccountToken"]


def test_a_budget_of_disruptions_counts_the_driver_only() -> None:
    """Kubernetes counts pods by the scale of their controller. An executor's is the driver's pod, which has none.

    Of a budget that selects such a pod it allows no disruption at all, and no node could be emptied.
    """
    budget = manifest(BASE / "poddisruptionbudget.yaml")["spec"]
    selected = budget["selector"]["matchLabels"].items()
    driver = manifest(BASE / "statefulset.yaml")["spec"]["template"]["metadata"]["labels"]
    executor = manifest(EXECUTORS / "executor.yaml")["metadata"]["labels"]
    assert selected <= driver.items()
    assert not selected <= executor.items()
    assert budget["maxUnavailable"] == 1


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([BIN / "hadolint", DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_is_made_of_what_the_tested_steps_install_and_runs_as_nobody() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    runs = re.findall(r"^RUN (.+)", text, re.MULTILINE)
    assert [each for each in runs if not each.startswith("apt-get ")] == [f"/source/deploy/install.sh {IMAGE_HOME}"]
    assert f"COPY --from=build {IMAGE_HOME} {IMAGE_HOME}" in text
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    for name in re.findall(rf"{IMAGE_HOME}/bin/(\w+)", text):
        assert os.access(DEPLOY / name, os.X_OK)


def _volumes() -> list[str]:
    said = re.search(r"^VOLUME (.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert said is not None
    return [str(each) for each in json.loads(said[1])]


def test_what_the_image_has_as_volumes_its_user_can_write_to() -> None:
    """A new volume has the owner of the folder that the image has there; without one it is root's."""
    before, declared, _after = (DEPLOY / "Dockerfile").read_text().partition("\nVOLUME ")
    assert declared
    made = re.findall(r"install -d -o 10001 -g 10001 (?:-m \d+ )?(\S+)", before)
    assert set(_volumes()) - {"/tmp"} == set(made)  # anybody can write to /tmp


def _docker_run() -> list[str]:
    (line,) = re.findall(r"^docker run (?:.*\\\n)*.*$", (DOCS / "deploying.md").read_text(), re.MULTILINE)
    return shlex.split(line)


def test_the_line_for_docker_mounts_where_the_image_writes_and_java_can_load_libraries_there() -> None:
    said = _docker_run()
    assert "--read-only" in said
    mounted = [value.split(":") for option, value in pairwise(said) if option == "--volume"]
    in_memory = [value.partition(":") for option, value in pairwise(said) if option == "--tmpfs"]
    folders = {parts[min(1, len(parts) - 1)] for parts in mounted} | {where for where, _, _ in in_memory}
    assert {*_volumes(), "/etc/ledger-reaper"} == folders
    # Docker mounts a tmpfs with noexec unless it is told otherwise, and Java maps libraries from /tmp
    assert all("exec" in options.split(",") for _where, _, options in in_memory)


@pytest.mark.parametrize(("spark", "pythons"), [("3.5", "3.11"), ("4.2", "3.11"), ("4.3", "3.11 or 3.12 or 3.13")])
def test_each_python_that_fits_is_named_if_there_is_none(tmp_path: Path, spark: str, pythons: str) -> None:
    variables = {"SPARK": spark, "PYTHON": "false"}
    made = [f"{name}={value}" for name, value in variables.items()]
    for command in (["make", "--directory", str(DEPLOY.parent), "machine", *made], [DEPLOY / "install.sh", tmp_path]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)
        assert done.returncode != 0
        assert re.findall(r"^missing: Python ([\d. or]+\d)", done.stdout + done.stderr, re.MULTILINE) == [pythons]


def test_shellcheck_finds_nothing_in_the_scripts() -> None:
    scripts = [path for path in DEPLOY.iterdir() if path.is_file() and path.read_bytes().startswith(b"#!")]
    assert len(scripts) == 7
    done = subprocess.run([BIN / "shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "ledger-reaper.service").read_text()
    assert f"ExecStart={IMAGE_HOME}/bin/start\n" in text
    unit = tmp_path / "ledger-reaper.service"
    unit.write_text(text.replace(f"ExecStart={IMAGE_HOME}/bin/start", f"ExecStart={DEPLOY}/start"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def _shell_for_systemd() -> str:
    """What docs/deploying.md has one type into a shell to install the service on one machine."""
    text = (DOCS / "deploying.md").read_text().partition("\n## One machine\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return "".join(code for language, code in blocks if not language).replace("\\\n", "")


def _settings_of_the_unit() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / "ledger-reaper.service").read_text().splitlines():
        key, is_setting, value = line.partition("=")
        if is_setting and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def test_systemd_gives_up_a_service_that_fails_at_each_start_even_a_slow_one() -> None:
    unit = _settings_of_the_unit()
    (interval,), (burst,), (pause,) = (unit[key] for key in ("StartLimitIntervalSec", "StartLimitBurst", "RestartSec"))
    slowest_start = 90  # seconds; brokers keep the subscription of a killed run for so long
    assert int(burst) * (int(pause) + slowest_start) <= int(interval.removesuffix("h")) * 3600
    assert int(burst) * int(pause) >= 1800  # an outage of half an hour must not end the service


def test_the_lines_for_systemd_make_what_the_unit_asks_for(tmp_path: Path) -> None:
    typed, unit = _shell_for_systemd(), _settings_of_the_unit()
    script = tmp_path / "typed.sh"
    script.write_text(f"#!/bin/bash\n{typed}")
    done = subprocess.run([BIN / "shellcheck", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    (user,), environment = unit["User"], dict(each.split("=", 1) for each in unit["Environment"])
    assert re.search(rf"^useradd .*--home-dir {environment['HOME']} +{user}$", typed, re.MULTILINE)
    folders = f"/var/lib/{unit['StateDirectory'][0]} /var/cache/{unit['CacheDirectory'][0]}"
    assert f"install -d -o {user} -g {user} -m 0700 {folders}\n" in typed
    assert f"-m 0640 my.toml {environment['LEDGER_REAPER_CONFIG']}\n" in typed
    as_the_unit = next(line for line in typed.splitlines() if "runuser" in line)
    assert f"runuser -u {user} -- env " in as_the_unit
    assert environment.items() <= dict(re.findall(r"(\w+)=(\S+)", as_the_unit)).items()
    assert f" {IMAGE_HOME}/venv/bin/ledger-reaper " in as_the_unit
    assert typed.index("\nreaper check\n") < typed.index("systemctl enable --now ledger-reaper\n")


JAVA = """#!/bin/sh
for each in "$@"; do echo "$each"; done
"""


def test_the_entrypoint_starts_the_executor_that_spark_asks_for(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text(JAVA)
    java.chmod(0o755)
    asked = {
        "SPARK_DRIVER_URL": "spark://driver@10.0.0.7:1",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "2g",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod",
        "SPARK_JAVA_OPT_0": "-Da=b c",
        "SPARK_JAVA_OPT_1": "",
        "SPARK_JAVA_OPT_2": "-Dd=e",
    }
    done = subprocess.run(
        [DEPLOY / "entrypoint", "executor"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"} | asked,
    )
    said = done.stdout.splitlines()
    assert said[:4] == ["-Da=b c", "-Dd=e", "-Xms2g", "-Xmx2g"]
    assert said[said.index("--driver-url") :] == [
        *("--driver-url", "spark://driver@10.0.0.7:1", "--executor-id", "3", "--cores", "2", "--app-id", "app"),
        *("--hostname", "10.0.0.8", "--resourceProfileId", "0", "--podName", "pod"),
    ]
    assert "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend" in said


# What Spark 3.5.9 gives the pod of a driver in deploy mode cluster, for a line of `ledger-reaper submit-args`.
OF_A_DRIVERS_POD = [
    "driver",
    "--properties-file",
    "/opt/spark/conf/spark.properties",
    "--class",
    "org.apache.spark.deploy.PythonRunner",
    f"local://{IMAGE_HOME}/venv/lib/python3.11/site-packages/streaming/__main__.py",
    "run",
    "--config",
    "config.toml",
]


def test_the_entrypoint_starts_the_driver_that_spark_asks_for(tmp_path: Path) -> None:
    submit = tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / "pyspark" / "bin" / "spark-submit"
    (tmp_path / "bin").mkdir()
    submit.parent.mkdir(parents=True)
    submit.write_text(JAVA)
    submit.chmod(0o755)
    entrypoint = shutil.copy(DEPLOY / "entrypoint", tmp_path / "bin")
    done = subprocess.run(
        [entrypoint, *OF_A_DRIVERS_POD],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.8"},
    )
    own = ["--conf", "spark.driver.bindAddress=10.0.0.8", "--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.8"]
    assert done.stdout.splitlines() == ["--deploy-mode", "client", *own, *OF_A_DRIVERS_POD[1:]]


@pytest.mark.parametrize(("answer", "code"), [("HTTP/1.0 200 OK", 0), ("HTTP/1.0 503 Service Unavailable", 1)])
def test_healthy_is_who_answers_well(answer: str, code: int) -> None:
    server = (
        "import socket\ns = socket.create_server(('127.0.0.1', 0))\nprint(s.getsockname()[1], flush=True)\n"
        f"c, _ = s.accept()\nc.recv(100)\nc.sendall(b'{answer}\\r\\n\\r\\n')\n"
    )
    with subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        port = serving.stdout.readline().strip()
        environment = os.environ | {"LEDGER_REAPER__METRICS__PORT": port}
        done = subprocess.run([DEPLOY / "healthy"], env=environment, capture_output=True, check=False)
    assert done.returncode == code


def test_nobody_is_healthy_where_nobody_answers() -> None:
    done = subprocess.run(
        [DEPLOY / "healthy"], env=os.environ | {"LEDGER_REAPER__METRICS__PORT": "1"}, capture_output=True, check=False
    )
    assert done.returncode != 0
