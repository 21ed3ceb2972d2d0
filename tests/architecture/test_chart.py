"""The Helm chart and the kustomization, rendered by their own tools (`make tools` builds these).

Kubernetes' schemas take what they render, both render the same objects, and the program takes the chart's values.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from streaming.cli.main import app
from streaming.config.load import load
from streaming.spark import jars as artifacts
from tests.go_tools import required_tool

ROOT = Path(__file__).parents[2]
KUSTOMIZATIONS = ROOT / "deploy" / "kubernetes"
CHART = ROOT / "deploy" / "helm" / "ledger-reaper"
VALUES = (None, *sorted(CHART.glob("ci/*.yaml")))
FOR_EXECUTORS = CHART / "ci" / "executors.yaml"
WITH_EXECUTORS = ("executors", "executors-s3", "full")
# resources of Prometheus' operator, which Kubernetes' own schemas do not contain
_OF_OTHERS = {"PodMonitor", "PrometheusRule"}


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=60)


def _helm(*command: str | Path, values: Path | None = None) -> subprocess.CompletedProcess[str]:
    chosen = [] if values is None else ["--values", str(values)]
    return _run(required_tool("helm"), *command, *chosen, "--namespace", "storage")


@cache
def rendered(values: Path | None) -> Sequence[dict[str, Any]]:
    """What the chart renders as the release "ledger-reaper"."""
    return _template("ledger-reaper", CHART, values)


def _template(release: str, chart: Path, values: Path | None) -> list[dict[str, Any]]:
    done = _helm("template", release, chart, "--kube-version", "1.29.0", values=values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@cache
def built(folder: str) -> Sequence[dict[str, Any]]:
    """What kustomize builds."""
    done = _run(required_tool("kustomize"), "build", KUSTOMIZATIONS / folder)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(re.sub(r"(ledger-reaper(?:-executor)?)-[0-9a-z]{10}\b", r"\1", done.stdout)))


def of_kind(documents: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in documents if each["kind"] == kind]
    return found


def name_of(values: Path | None) -> str:
    return values.stem if values else "default"


@pytest.mark.parametrize("values", VALUES, ids=name_of)
def test_helm_finds_nothing_in_the_chart(values: Path | None) -> None:
    done = _helm("lint", "--strict", CHART, values=values)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", ["1.29", "1.34"])
@pytest.mark.parametrize("values", VALUES, ids=name_of)
def test_kubernetes_knows_every_field_that_the_chart_renders(values: Path | None, version: str) -> None:
    for document in _with_templates(rendered(values)):
        if document["kind"] not in _OF_OTHERS:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", ["1.29", "1.34"])
@pytest.mark.parametrize("folder", ["base", "executors"])
def test_kubernetes_knows_every_field_that_kustomize_builds(folder: str, version: str) -> None:
    for document in _with_templates(built(folder)):
        if document["kind"] not in _OF_OTHERS:
            kubernetes_validate.validate(document, version, strict=True)


def _with_templates(documents: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the documents, and the pod template that a config map contains."""
    for document in documents:
        yield document
        if document["kind"] == "ConfigMap" and "executor.yaml" in document["data"]:
            yield yaml.safe_load(document["data"]["executor.yaml"])


@pytest.mark.parametrize(("folder", "values"), [("base", None), ("executors", FOR_EXECUTORS)])
def test_the_chart_and_the_kustomization_create_the_same_objects(folder: str, values: Path | None) -> None:
    of_chart = {(each["kind"], each["metadata"]["name"]): _comparable(each) for each in rendered(values)}
    of_base = {(each["kind"], each["metadata"]["name"]): _comparable(each) for each in built(folder)}
    if values is None:  # the chart creates the monitor and the alerts if it is asked to
        for kind in _OF_OTHERS:
            del of_base[kind, "ledger-reaper"]
    assert of_chart.keys() == of_base.keys()
    for key, expected in of_base.items():
        assert of_chart[key] == expected, key


def _comparable(value: Any) -> Any:
    """Leave out what only a release has, and the order of lists."""
    if isinstance(value, dict):
        if {"kind", "metadata"} <= value.keys():
            value = value | {"metadata": {"name": value["metadata"].get("name")}}
        if "executor.yaml" in value:
            value = {"executor.yaml": _comparable(yaml.safe_load(value["executor.yaml"])["spec"])}
        omitted = ("app.kubernetes.io/instance", "annotations", "imagePullPolicy")
        return {key: _comparable(inner) for key, inner in sorted(value.items()) if key not in omitted}
    if isinstance(value, list):
        kept = [
            each for each in value if not str(each).startswith("--conf=spark.kubernetes.container.image.pullPolicy")
        ]
        return sorted((_comparable(each) for each in kept), key=repr)
    return value


def test_the_policy_lets_only_a_driver_with_executors_reach_kubernetes() -> None:
    for values, folder in ((None, "base"), (FOR_EXECUTORS, "executors")):
        for documents in (rendered(values), built(folder)):
            *_, services = of_kind(documents, "NetworkPolicy")["spec"]["egress"]
            assert ({"port": 6443} in services["ports"]) == (folder == "executors")


def test_the_policy_lets_the_pods_reach_alertmanager_and_a_collector_only_if_asked(tmp_path: Path) -> None:
    """tmp_path is below the checkout (TMPDIR), because kustomize takes relative paths only."""
    alertmanager, collector = {"ports": [{"port": 9093}]}, {"ports": [{"port": 4318}]}
    for folder in ("base", "executors"):
        asked = _overlay(tmp_path / folder, folder, "webhook", "collector")
        assert of_kind(asked, "NetworkPolicy")["spec"]["egress"] == [*_egress(built(folder)), alertmanager, collector]
        for version in ("1.29", "1.34"):
            kubernetes_validate.validate(of_kind(asked, "NetworkPolicy"), version, strict=True)
        assert {9093, 4317, 4318}.isdisjoint(_open_ports(built(folder)))
    assert {9093, 4317, 4318}.isdisjoint(_open_ports(rendered(None)))
    *_, to_alertmanager, to_collector = _egress(rendered(CHART / "ci" / "full.yaml"))
    in_namespace = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert (to_alertmanager, to_collector) == (alertmanager | {"to": [in_namespace]}, collector)


def _overlay(folder: Path, base: str, *components: str) -> list[dict[str, Any]]:
    """What kustomize builds from a folder of ours with these components."""
    folder.mkdir()
    ours = [os.path.relpath(KUSTOMIZATIONS / each, folder.resolve()) for each in (base, *components)]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ours[:1], "components": ours[1:]}))
    done = _run(required_tool("kustomize"), "build", folder)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def _egress(documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = of_kind(documents, "NetworkPolicy")["spec"]["egress"]
    return rules


def _open_ports(documents: Sequence[dict[str, Any]]) -> set[int]:
    return {each["port"] for rule in _egress(documents) for each in rule.get("ports", ())}


@pytest.mark.parametrize(
    "values", [FOR_EXECUTORS, *CHART.glob("ci/*-s3.yaml"), CHART / "ci" / "full.yaml"], ids=name_of
)
def test_the_program_takes_the_line_of_the_charts_driver(
    values: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(artifacts, "jars", lambda **_: [Path("/cache/connector.jar")])
    pod = of_kind(rendered(values), "StatefulSet")["spec"]["template"]["spec"]
    first, *arguments = pod["containers"][0]["args"]
    assert first == "start"
    config = tmp_path / "config.toml"
    config.write_text(next(each for each in rendered(values) if each["kind"] == "ConfigMap")["data"]["config.toml"])
    result = CliRunner().invoke(app, ["submit-args", "--config", str(config), *arguments])
    assert result.exit_code == 0, result.output
    secret = next(each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == "secrets")
    assert f"secrets.{secret}=/etc/ledger-reaper/secrets" in result.output


@pytest.mark.parametrize("values", VALUES, ids=name_of)
def test_the_program_takes_the_configuration_as_the_pod_reads_it(values: Path | None, tmp_path: Path) -> None:
    text = next(each for each in rendered(values) if each["kind"] == "ConfigMap")["data"]["config.toml"]
    (tmp_path / "config.toml").write_text(text)
    pod = of_kind(rendered(values), "StatefulSet")["spec"]["template"]["spec"]
    settings = load(tmp_path / "config.toml")
    assert settings.metrics.port == pod["containers"][0]["ports"][0]["containerPort"]
    assert settings.state.dir.startswith("/var/lib/ledger-reaper/")


@pytest.mark.parametrize(
    "wrong",
    ["executor.enabled=true", "networkPolicy.ports={70000}", "persistence.size=large", "config=", "podMonitor.on=true"],
)
def test_helm_refuses_a_value_that_the_chart_does_not_have(wrong: str) -> None:
    done = _helm("template", "ledger-reaper", CHART, "--kube-version", "1.29.0", "--set", wrong)
    assert done.returncode != 0
    assert "schema" in done.stderr, done.stderr


def test_alerts_lead_to_the_runbook_that_the_values_name() -> None:
    spec = of_kind(rendered(CHART / "ci" / "full.yaml"), "PrometheusRule")["spec"]
    urls = [rule["annotations"]["runbook_url"] for group in spec["groups"] for rule in group["rules"]]
    assert urls
    assert [url for url in urls if not url.startswith("https://example.com/runbook.html#ledgerreaper")] == []


# `helm template` shows no notes
_NOTES = """
kind: Notes
text: {{ tpl (.Files.Get "NOTES.txt") . | quote }}
"""


def test_the_notes_name_a_pod_that_exists_and_remind_of_the_example(tmp_path: Path) -> None:
    chart = tmp_path / CHART.name
    shutil.copytree(CHART, chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "NOTES.txt")
    (chart / "templates" / "notes.yaml").write_text(_NOTES)
    for values, is_example in ((None, True), (CHART / "ci" / "minimal.yaml", False)):
        documents = _template("production", chart, values)
        notes = of_kind(documents, "Notes")["text"]
        assert f"exec {of_kind(documents, 'StatefulSet')['metadata']['name']}-0 -- " in notes
        assert ("example.com" in notes) == is_example


def test_the_chart_has_the_example_of_the_kustomization() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert values["config"] == (KUSTOMIZATIONS / "base" / "config.toml").read_text(encoding="utf-8")
