"""A small server with the part of Kubernetes that Spark uses; each pod is a host with processes.

It creates, lists and removes pods, config maps and services. Every image is the output of deploy/install.sh. It
refuses no request, and limits neither memory nor cores.
"""

import json
import re
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from streaming.spark.submission import IMAGE_HOME
from tests.integration.hosts import Host, Hosts
from tests.integration.spark_hosts import of_java, of_python

_NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
_OBJECT_PATH = re.compile(r"/api/v1/namespaces/[^/]+/(?P<kind>[a-z]+)(/(?P<name>[^/]+))?")


@dataclass(slots=True)
class Pod:
    """A pod as Spark specified it, and its process."""

    spec: dict[str, Any]
    host: Host
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.spec["metadata"]["name"])

    def shown(self) -> dict[str, Any]:
        """Return the pod with its status."""
        phase = {None: "Running", 0: "Succeeded"}.get(self.process.poll(), "Failed") if self.process else "Pending"
        return self.spec | {"status": {"phase": phase, "podIP": self.host.address}}


@dataclass(slots=True)
class Kubernetes:
    """The objects of the server."""

    hosts: Hosts
    installed: Path
    here: Path
    lent: Mapping[Path, str]  # folders that pods may read besides the image
    master: str = ""  # for Spark
    pods: dict[str, Pod] = field(default_factory=dict)
    removed: list[Pod] = field(default_factory=list)
    _maps: dict[str, dict[str, str]] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _starter: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def create(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create or change an object; a new pod is started."""
        # in a lasting thread: a host's processes end with the thread that started them
        return self._starter.submit(self._create, kind, body).result()

    def _create(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        meta = body.setdefault("metadata", {})
        meta |= {"uid": f"uid-{meta['name']}", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
        with self._lock:
            if kind == "configmaps":
                self._maps[meta["name"]] = body.get("data", {})
            elif kind == "services":
                self._name(f"{meta['name']}.default.svc", body["spec"]["selector"])
            elif kind == "pods":
                self.pods[meta["name"]] = self._new_pod(body)
            for pod in self.pods.values():
                self._start(pod)
        return body

    def find(self, kind: str, name: str | None, selector: str) -> dict[str, Any] | None:
        """Return a pod by name (None if there is none), or all pods with these labels."""
        with self._lock:
            if name is not None:
                return self.pods[name].shown() if kind == "pods" and name in self.pods else None
            items = [pod.shown() for pod in self._selected(selector)] if kind == "pods" else []
        return {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}

    def remove(self, kind: str, name: str | None, selector: str) -> None:
        """Remove a pod by name, or all pods with these labels."""
        with self._lock:
            named = [self.pods[name]] if name in self.pods else []
            gone = [] if kind != "pods" else self._selected(selector) if name is None else named
            for pod in gone:
                pod.host.kill()
                self.removed.append(self.pods.pop(pod.name))

    def output(self) -> str:
        """Return the logs of all pods."""
        logs = (pod.log for pod in (*self.pods.values(), *self.removed) if pod.log.exists())
        return "".join(f"{log.name}:\n{log.read_text(errors='replace')}" for log in logs)

    def _selected(self, selector: str) -> list[Pod]:
        terms = [term for term in selector.split(",") if term]
        without = dict(term.split("!=", 1) for term in terms if "!=" in term)
        pods = self._with(dict(term.split("=", 1) for term in terms if "!=" not in term))
        return [pod for pod in pods if not without.items() & pod.spec["metadata"].get("labels", {}).items()]

    def _with(self, labels: Mapping[str, str]) -> list[Pod]:
        return [pod for pod in self.pods.values() if labels.items() <= pod.spec["metadata"].get("labels", {}).items()]

    def _name(self, service: str, labels: Mapping[str, str]) -> None:
        """Add a service's name to all hosts."""
        new = [f"{pod.host.address} {service}\n" for pod in self._with(labels)]
        self._names += new
        for pod in self.pods.values():
            _add_names(pod.host, new)

    def _new_pod(self, spec: dict[str, Any]) -> Pod:
        lent = {self.installed: IMAGE_HOME, **self.lent, **of_java(), **of_python()}
        host = self.hosts.add(f"pod{len(self.pods) + len(self.removed)}", lent)
        _add_names(host, self._names)
        return Pod(spec, host, self.here / f"{spec['metadata']['name']}.log")

    def _start(self, pod: Pod) -> None:
        """Start the pod's container once all its config maps exist."""
        (container,) = pod.spec["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in pod.spec["spec"].get("volumes", ())}
        maps = {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume}
        if pod.process is not None or not maps <= self._maps.keys():
            return
        for mount in container.get("volumeMounts", ()):
            folder = pod.host.path(mount["mountPath"])
            folder.mkdir(parents=True, exist_ok=True)
            named = volumes[mount["name"]].get("configMap", {}).get("name")
            for item, text in self._maps.get(named, {}).items():
                (folder / item).write_text(text)
        variables = {variable["name"]: _value(variable, pod) for variable in container.get("env", ())}
        environment = {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", **variables}  # as in deploy/Dockerfile
        pod.process = pod.host.start([f"{IMAGE_HOME}/bin/entrypoint", *container["args"]], pod.log, environment)


def _add_names(host: Host, names: Iterable[str]) -> None:
    """Add lines to a host's /etc/hosts, whose file is beside the host's root directory (hosts.py)."""
    with Path(f"{host.path('/')}.names").open("a") as out:
        out.writelines(names)


def _value(variable: Mapping[str, Any], pod: Pod) -> str:
    if "valueFrom" not in variable:
        return str(variable.get("value", ""))
    path = variable["valueFrom"]["fieldRef"]["fieldPath"]
    return {"status.podIP": pod.host.address, "metadata.name": pod.name}[path]


class _Server(ThreadingHTTPServer):
    def __init__(self, objects: Kubernetes) -> None:
        super().__init__((objects.hosts.address, 0), _Answers)
        self.objects = objects


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        answer = self.server.objects.find(*self._target())
        self._answer(200 if answer else 404, answer or _NOT_FOUND)

    def do_POST(self) -> None:
        self._answer(201, self.server.objects.create(self._target()[0], json.loads(self._body())))

    do_PUT = do_PATCH = do_POST  # noqa: N815  the library's names

    def do_DELETE(self) -> None:
        self._body()
        self.server.objects.remove(*self._target())
        self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _target(self) -> tuple[str, str | None, str]:
        url = urlsplit(self.path)
        match = _OBJECT_PATH.fullmatch(url.path)
        if match is None:
            return "", "", ""
        return match["kind"], match["name"], parse_qs(url.query).get("labelSelector", [""])[0]

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, code: int, answer: Mapping[str, Any]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def kubernetes(hosts: Hosts, installed: Path, here: Path, lent: Mapping[Path, str]) -> Iterator[Kubernetes]:
    """Run the server on the address at which hosts reach this machine."""
    objects = Kubernetes(hosts, installed, here, lent)
    server = _Server(objects)
    objects.master = f"k8s://http://{hosts.address}:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield objects
    finally:
        server.shutdown()
