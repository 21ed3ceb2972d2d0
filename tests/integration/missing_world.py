"""A real cluster with topics that miss ledgers, and a configuration of Ledger Reaper."""

import json
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streaming.clients import command_clients
from streaming.clock import SystemClock
from streaming.ports import Znode
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts import part_clients
from streaming.state.journal import JournalEntry, ParquetJournal
from tests.integration.conftest import Deployment, config_text, running_cluster
from udfs.formats.managed_ledger import parse_managed_ledger
from udfs.paths import managed_ledger_name, managed_ledger_path
from udfs.records import Presence, Reference

PER_LEDGER = topics.ENTRIES_PER_LEDGER
FULL = 4  # full ledgers of a topic; the broker has started the next one
QUIET_MS = 8_000


@dataclass(frozen=True)
class World:
    """The cluster, and a configuration of Ledger Reaper."""

    cluster: Cluster
    service: Deployment
    state: Path

    def explain(self, *arguments: str, code: int = 4) -> dict[str, Any]:
        """Run `explain --json`."""
        # in a process of its own: which topics are loaded may be some seconds old in this one
        text = self.service.run("explain", "--json", *arguments, code=code)
        document, _end = json.JSONDecoder().raw_decode(text[text.index("{") :])
        assert isinstance(document, dict)
        return document

    def missing(self, topic: str) -> dict[str, Any]:
        """Return the only missing ledger of a topic, and check that `explain` did not load the topic."""
        before = self.version(topic)
        fields = self.explain("--topic", topic)
        (found,) = fields["missing"]
        assert self.version(topic) == before, "explain loaded the topic"
        assert found["broker"]["text"] in self.service.call("explain", "--topic", topic, code=4)
        return dict(found)

    def version(self, topic: str) -> tuple[int, bytes]:
        """Return the version of a topic's list, which a load changes."""
        with part_clients.zookeeper(self.cluster.addresses.zookeeper) as client:
            data, stat = client.get(managed_ledger_path(managed_ledger_name(topic)))
        return stat.version, data

    def listed(self, topic: str) -> list[int]:
        """Return the ledgers of a topic's list, without loading the topic."""
        return [ledger.ledger_id for ledger in parse_managed_ledger(self.version(topic)[1]).ledgers]

    def znode(self, path: str) -> bytes:
        """Return the content of a znode."""
        return part_clients.read_znodes(self.cluster.addresses.zookeeper, [path])[path]

    def lose(self, ledger_id: int) -> None:
        """Remove a ledger's metadata."""
        part_clients.delete_znode(self.cluster.addresses.zookeeper, ledger_list.path_of(ledger_id))

    def delete_journaled(self, topic: str, lost: int) -> None:
        """Delete a data ledger as the service does, without its checks."""
        path = ledger_list.path_of(lost)
        with command_clients(self.service.settings) as clients:
            (node,), acl = clients.store.read_many([path]), clients.store.acl_of(path)
            assert isinstance(node, Znode)
            assert acl is not None
            entry = JournalEntry(
                ledger_id=lost,
                path=path,
                data=node.data,
                version=node.version,
                acl=acl,
                reference=Reference(key=f"data:{managed_ledger_name(topic)}", presence=Presence.PRESENT, read_at_ms=0),
            )
        ParquetJournal(str(self.state), "requests", 1, SystemClock()).write([entry])
        self.lose(lost)

    def received(self, topic: str, subscription: str) -> list[int]:
        """Consume until nothing arrives, and return the messages' numbers."""
        url = self.cluster.serving.pulsar
        return [int(each[:8]) for each in part_clients.received(url, topic, subscription, quiet_ms=QUIET_MS)]

    def run_as_printed(self, command: str) -> None:
        """Run a pulsar-admin command in a shell, with the address of this cluster."""
        tool = self.cluster.pulsar / "bin" / "pulsar-admin"
        address = f"{shlex.quote(str(tool))} --admin-url {self.cluster.addresses.admin}"
        assert command.startswith("pulsar-admin ")
        done = subprocess.run(
            ["bash", "-c", command.replace("pulsar-admin", address, 1)], capture_output=True, timeout=120, check=False
        )
        assert done.returncode == 0, done


@contextmanager
def running_world(home: Path, here: Path) -> Iterator[World]:
    """Run a cluster whose bookies keep the entries of deleted ledgers until a test makes them collect garbage."""
    with running_cluster(home, gc_wait_seconds=3600) as cluster:
        config = here / "local.toml"
        texts = {"name": "lost", "chunk_rows": 1000, "home": cluster.home.root, "here": here}
        config.write_text(config_text(cluster, limits="", classes="", **texts))
        service = Deployment(config)
        state = Path(service.settings.state_dir)
        state.mkdir()  # without it, it is unknown whether the journal has a ledger
        yield World(cluster, service, state)


def topic_of(name: str) -> str:
    """Return a topic's full name."""
    return f"persistent://public/default/{name}"


def filled(world: World, name: str, subscriptions: Sequence[str] = ("slow", "fast")) -> str:
    """Create a topic of four full ledgers that `fast` has consumed, unload it, and return its name."""
    topic = topic_of(name)
    topics.fill(world.cluster, topic, FULL, subscriptions)
    topics.consume(world.cluster, topic, "fast", FULL * PER_LEDGER)
    topics.unload(world.cluster, topic)
    return topic
