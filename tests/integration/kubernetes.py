"""What Spark asks of Kubernetes, answered by a small server that starts each pod as processes of a host of its own.

Of Kubernetes it has what Spark uses: pods, config maps and services that are made, listed and removed. Every image is
what deploy/install.sh has installed. Nobody is refused anything, and no memory or core is counted.
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
_OF_A_KIND = re.compile(r"/api/v1/namespaces/[^/]+/(?P<kind>[a-z]+)(/(?P<name>[^/]+))?")


@dataclass(slots=True)
class Pod:
    """A pod: what Spark wrote, and what runs for it."""

    spec: dict[str, Any]
    host: Host
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.spec["metadata"]["name"])

    def shown(self) -> dict[str, Any]:
        """The pod with its status."""
        phase = {None: "Running", 0: "Succeeded"}.get(self.process.poll(), "Failed") if self.process else "Pending"
        return self.spec | {"status": {"phase": phase, "podIP": self.host.address}}


@dataclass(slots=True)
class Kubernetes:
    """lent: folders that pods may read, besides the image. master: what Spark takes as its master.

    ended: pods that were removed.
    """

    hosts: Hosts
    installed: Path
    here: Path
    lent: Mapping[Path, str]
    master: str = ""
    pods: dict[str, Pod] = field(default_factory=dict)
    ended: list[Pod] = field(default_factory=list)
    _maps: dict[str, dict[str, str]] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _starter: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def make(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        """Make or change something; a pod is started."""
        # a host's processes end with the thread that has started them, and that of a connection ends with it
        return self._starter.submit(self._make, kind, body).result()

    def _make(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        meta = body.setdefault("metadata", {})
        meta |= {"uid": f"uid-{meta['name']}", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
        with self._lock:
            if kind == "configmaps":
                self._maps[meta["name"]] = body.get("data", {})
            elif kind == "services":
                self._name(f"{meta['name']}.default.svc", body["spec"]["selector"])
            elif kind == "pods":
                self.pods[meta["name"]] = self._made(body)
            for pod in self.pods.values():
                self._start(pod)
        return body

    def found(self, kind: str, name: str | None, selector: str) -> dict[str, Any] | None:
        """A pod, or all that have these labels; None where there is none of that name."""
        with self._lock:
            if name is not None:
                return self.pods[name].shown() if kind == "pods" and name in self.pods else None
            items = [pod.shown() for pod in self._selected(selector)] if kind == "pods" else []
        return {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}

    def remove(self, kind: str, name: str | None, selector: str) -> None:
        """Remove a pod, or all that have these labels."""
        with self._lock:
            named = [self.pods[name]] if name in self.pods else []
            gone = [] if kind != "pods" else self._selected(selector) if name is None else named
            for pod in gone:
                pod.host.kill()
                self.ended.append(self.pods.pop(pod.name))

    def said(self) -> str:
        """What all pods have written."""
        logs = (pod.log for pod in (*self.pods.values(), *self.ended) if pod.log.exists())
        return "".join(f"{log.name}:\n{log.read_text(errors='replace')}" for log in logs)

    def _selected(self, selector: str) -> list[Pod]:
        terms = [each for each in selector.split(",") if each]
        without = dict(each.split("!=", 1) for each in terms if "!=" in each)
        found = self._with(dict(each.split("=", 1) for each in terms if "!=" not in each))
        return [pod for pod in found if not without.items() & pod.spec["metadata"].get("labels", {}).items()]

    def _with(self, labels: Mapping[str, str]) -> list[Pod]:
        return [pod for pod in self.pods.values() if labels.items() <= pod.spec["metadata"].get("labels", {}).items()]

    def _name(self, service: str, labels: Mapping[str, str]) -> None:
        """Have all hosts know a service by its name."""
        new = [f"{pod.host.address} {service}\n" for pod in self._with(labels)]
        self._names += new
        for pod in self.pods.values():
            _tell(pod.host, new)

    def _made(self, spec: dict[str, Any]) -> Pod:
        lent = {self.installed: IMAGE_HOME, **self.lent, **of_java(), **of_python()}
        host = self.hosts.add(f"pod{len(self.pods) + len(self.ended)}", lent)
        _tell(host, self._names)
        return Pod(spec, host, self.here / f"{spec['metadata']['name']}.log")

    def _start(self, pod: Pod) -> None:
        """Start its container, once all that it mounts is there."""
        (container,) = pod.spec["spec"]["containers"]
        volumes = {each["name"]: each for each in pod.spec["spec"].get("volumes", ())}
        maps = {each["configMap"]["name"] for each in volumes.values() if "configMap" in each}
        if pod.process is not None or not maps <= self._maps.keys():
            return
        for mount in container.get("volumeMounts", ()):
            folder = pod.host.path(mount["mountPath"])
            folder.mkdir(parents=True, exist_ok=True)
            named = volumes[mount["name"]].get("configMap", {}).get("name")
            for item, text in self._maps.get(named, {}).items():
                (folder / item).write_text(text)
        own = {each["name"]: _value(each, pod) for each in container.get("env", ())}
        environment = {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", **own}  # as deploy/Dockerfile sets them
        pod.process = pod.host.start([f"{IMAGE_HOME}/bin/entrypoint", *container["args"]], pod.log, environment)


def _tell(host: Host, names: Iterable[str]) -> None:
    """Add lines to a host's /etc/hosts, which lies beside its root directory (hosts.py)."""
    with Path(f"{host.path('/')}.names").open("a") as out:
        out.writelines(names)


def _value(variable: Mapping[str, Any], pod: Pod) -> str:
    if "valueFrom" not in variable:
        return str(variable.get("value", ""))
    path = variable["valueFrom"]["fieldRef"]["fieldPath"]
    return {"status.podIP": pod.host.address, "metadata.name": pod.name}[path]


class _Server(ThreadingHTTPServer):
    def __init__(self, made: Kubernetes) -> None:
        super().__init__((made.hosts.address, 0), _Answers)
        self.made = made


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        found = self.server.made.found(*self._asked())
        self._say(200 if found else 404, found or _NOT_FOUND)

    def do_POST(self) -> None:
        self._say(201, self.server.made.make(self._asked()[0], json.loads(self._body())))

    do_PUT = do_PATCH = do_POST  # noqa: N815  as the library names them

    def do_DELETE(self) -> None:
        self._body()
        self.server.made.remove(*self._asked())
        self._say(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _asked(self) -> tuple[str, str | None, str]:
        url = urlsplit(self.path)
        found = _OF_A_KIND.fullmatch(url.path)
        if found is None:
            return "", "", ""
        return found["kind"], found["name"], parse_qs(url.query).get("labelSelector", [""])[0]

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _say(self, code: int, answer: Mapping[str, Any]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def kubernetes(hosts: Hosts, installed: Path, here: Path, lent: Mapping[Path, str]) -> Iterator[Kubernetes]:
    """Start the server, on the address at which hosts reach this machine; it ends with the block."""
    made = Kubernetes(hosts, installed, here, lent)
    server = _Server(made)
    made.master = f"k8s://http://{hosts.address}:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
