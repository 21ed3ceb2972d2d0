"""Clients of the sandbox's parts for operations that the service itself never needs: create topics, inject faults."""

import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import httpx
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, Permissions

from streaming.config.hosts import each_url

# The embedded S3 accepts any key, so these are not secrets.
_ANY_KEY = "sandbox"
_PRODUCER_QUEUE = 5_000
_PIPELINE = 1_000
_LEDGER_LEVELS = 2  # /ledgers/00/0000/L0001, as the sandbox's layout has it
_ALL_BUT_DELETE = [ACL(Permissions.ALL & ~Permissions.DELETE, Id("world", "anyone"))]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to an HTTP request."""

    status: int  # 0: no answer
    text: str

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status < 300


def http(method: str, url: str, *, body: Any = None, timeout_seconds: float = 30.0) -> Reply:
    """Send a request with a JSON body, and follow redirects. Never raises: without an answer the status is 0."""
    try:
        answer = _http_client().request(method, url, json=body, timeout=timeout_seconds)
    except httpx.HTTPError as error:
        return Reply(0, f"{type(error).__name__}: {error}")
    return Reply(answer.status_code, answer.text)


def http_any(method: str, url: str, path: str, *, body: Any = None) -> Reply:
    """Send a request to the first of the URL's hosts (`http://a:1,b:2`) that answers."""
    reply = Reply(0, f"{url} has no host")
    for host in each_url(url):
        reply = http(method, f"{host}/{path}", body=body)
        if reply.status:
            break
    return reply


@cache
def _http_client() -> httpx.Client:
    """Return a client for all requests, because each new client would read the certificates again."""
    # it keeps no connections, because tests kill the parts
    return httpx.Client(follow_redirects=True, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


def zookeeper_mode(address: str) -> str | None:
    """Return the mode of the server at host:port (standalone, leader, follower); None if it does not serve."""
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=2) as connection:
            connection.sendall(b"srvr")
            answer = b"".join(iter(partial(connection.recv, 4096), b"")).decode(errors="replace")
    except OSError:
        return None
    return next((line.removeprefix("Mode: ") for line in answer.splitlines() if line.startswith("Mode: ")), None)


@contextlib.contextmanager
def zookeeper(hosts: str) -> Iterator[KazooClient]:
    """Open a connected kazoo client that is closed at the end."""
    client = KazooClient(hosts=hosts, timeout=10.0, logger=_quiet("ledger_reaper.sandbox.kazoo"))
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def znode_exists(hosts: str, path: str) -> bool:
    """Whether the znode exists."""
    with zookeeper(hosts) as client:
        return client.exists(path) is not None


def ledger_znodes(hosts: str, root: str, is_leaf: Callable[[str], bool]) -> dict[str, bytes]:
    """Return path -> data of every ledger znode below the root, in any layout."""
    znodes: dict[str, bytes] = {}
    with zookeeper(hosts) as client:
        for parent in _ledger_parents(client, root):
            paths = [f"{parent}/{child}" for child in client.get_children(parent) if is_leaf(f"{parent}/{child}")]
            for path, answer in [(path, client.get_async(path)) for path in paths]:
                with contextlib.suppress(NoNodeError):
                    znodes[path] = answer.get()[0]
    return znodes


def read_znodes(hosts: str, paths: Sequence[str]) -> dict[str, bytes]:
    """Return path -> data of those of the znodes that exist."""
    znodes: dict[str, bytes] = {}
    with zookeeper(hosts) as client:
        for path, answer in [(path, client.get_async(path)) for path in paths]:
            with contextlib.suppress(NoNodeError):
                znodes[path] = answer.get()[0]
    return znodes


@contextlib.contextmanager
def without_delete_right(hosts: str, root: str) -> Iterator[None]:
    """Until the with block ends, no client may delete a ledger below the root; create, read and write still work.

    In ZooKeeper the parent's ACL decides who may delete a child, and new znodes don't inherit ACLs. So a watch reports
    new parents, whose ACLs are changed too.
    """
    with zookeeper(hosts) as client:
        client.ensure_path(f"{root}/00/0000")
        _deny_below(client, root, levels=_LEDGER_LEVELS)
        try:
            yield
        finally:
            for parent in _ledger_parents(client, root):
                with contextlib.suppress(NoNodeError):
                    client.set_acls(parent, OPEN_ACL_UNSAFE)


@contextlib.contextmanager
def without_write_right(hosts: str, path: str) -> Iterator[None]:
    """Until the with block ends, no client may write this znode; it can still be read."""
    with zookeeper(hosts) as client:
        client.set_acls(path, [ACL(Permissions.ALL & ~Permissions.WRITE, Id("world", "anyone"))])
        try:
            yield
        finally:
            client.set_acls(path, OPEN_ACL_UNSAFE)


def may_delete(hosts: str, path: str) -> bool:
    """Whether every client may delete this znode, by its parent's ACL."""
    with zookeeper(hosts) as client:
        acls, _stat = client.get_acls(path.rsplit("/", 1)[0])
        return any(acl.perms & Permissions.DELETE for acl in acls)


def create_znodes(hosts: str, znodes: Iterable[tuple[str, bytes]], *, per_transaction: int = 200) -> int:
    """Create znodes and their parents in transactions; return how many. Raises an error if a znode exists."""
    created = 0
    with zookeeper(hosts) as client:
        parents: set[str] = set()
        pending: list[Any] = []
        batch: list[tuple[str, bytes]] = []
        for path, data in znodes:
            parent = path.rsplit("/", 1)[0]
            if parent not in parents:
                client.ensure_path(parent)
                parents.add(parent)
            batch.append((path, data))
            if len(batch) == per_transaction:
                pending.append(_create_together(client, batch))
                batch = []
        pending.append(_create_together(client, batch))
        for answer in pending:
            for result in answer.get():
                if isinstance(result, Exception):
                    raise result
                created += 1
    return created


def delete_znodes(hosts: str, paths: Sequence[str]) -> None:
    """Delete znodes, pipelined. Znodes that do not exist are ignored."""
    with zookeeper(hosts) as client:
        for start in range(0, len(paths), _PIPELINE):
            for answer in [client.delete_async(path) for path in paths[start : start + _PIPELINE]]:
                with contextlib.suppress(NoNodeError):
                    answer.get()


def delete_znode(hosts: str, path: str) -> None:
    """Delete a znode and its subtree, as an operator might do by accident."""
    with zookeeper(hosts) as client:
        client.delete(path, recursive=True)


def s3(endpoint: str, region: str) -> Any:
    """Create a boto3 S3 client that retries a request at most once, and addresses buckets by path."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=_ANY_KEY,
        aws_secret_access_key=_ANY_KEY,
        config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}),
    )


def make_bucket(endpoint: str, bucket: str, region: str) -> None:
    """Create the bucket unless it exists."""
    client = s3(endpoint, region)
    if bucket not in {existing["Name"] for existing in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket=bucket)


def bucket_keys(endpoint: str, bucket: str, region: str) -> list[str]:
    """Return every key in the bucket."""
    pages = s3(endpoint, region).get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


@contextlib.contextmanager
def pulsar_client(service_url: str) -> Iterator[Any]:
    """Open a Pulsar client that does not log and is closed at the end."""
    import pulsar

    client = pulsar.Client(service_url, logger=_quiet("ledger_reaper.sandbox.pulsar"), operation_timeout_seconds=60)
    try:
        yield client
    finally:
        client.close()


def subscribe(service_url: str, topic: str, subscriptions: Sequence[str]) -> None:
    """Create durable subscriptions at the topic's start."""
    import pulsar

    with pulsar_client(service_url) as client:
        for name in subscriptions:
            client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest).close()


def publish(service_url: str, topic: str, payloads: Iterable[bytes]) -> int:
    """Publish each payload as an entry, pipelined; wait until all are stored, and return how many."""
    sent = 0
    failures: list[Any] = []
    with pulsar_client(service_url) as client:
        producer = client.create_producer(
            topic, batching_enabled=False, max_pending_messages=_PRODUCER_QUEUE, block_if_queue_full=True
        )
        for payload in payloads:
            producer.send_async(payload, lambda result, _id: _note(failures, result))
            sent += 1
        producer.flush()
    if failures:
        raise RuntimeError(f"{len(failures)} of {sent} messages were not stored: {failures[0]}")
    return sent


def publish_delayed(service_url: str, topic: str, entries: int, delay_seconds: int) -> None:
    """Publish messages that are due after the delay. The topic must have a shared subscription with a consumer."""
    from datetime import timedelta

    with pulsar_client(service_url) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(entries):
            due = timedelta(seconds=delay_seconds + number)
            producer.send_async(b"delayed", lambda _result, _id: None, deliver_after=due)
        producer.flush()


@contextlib.contextmanager
def shared_consumer(service_url: str, topic: str, subscription: str) -> Iterator[Any]:
    """Open a consumer of a shared subscription, which delayed delivery needs."""
    import pulsar

    with pulsar_client(service_url) as client:
        yield client.subscribe(topic, subscription, consumer_type=pulsar.ConsumerType.Shared)


def publish_keyed(service_url: str, topic: str, messages: Iterable[tuple[str, bytes]]) -> None:
    """Publish (key, payload) pairs for a compacted topic, each as an entry of its own."""
    with pulsar_client(service_url) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        for key, payload in messages:
            producer.send_async(payload, lambda _result, _id: None, partition_key=key)
        producer.flush()


def consume(service_url: str, topic: str, subscription: str, count: int) -> tuple[list[bytes], tuple[int, int]]:
    """Receive `count` messages and acknowledge them; return the payloads, and (ledger, entry) of the last message.

    On return the acknowledgement was sent, but the broker may not have stored it yet.
    """
    payloads: list[bytes] = []
    with pulsar_client(service_url) as client:
        consumer = client.subscribe(topic, subscription)
        last = None
        for _ in range(count):
            last = consumer.receive(timeout_millis=30_000)
            payloads.append(last.data())
        if last is None:
            return payloads, (-1, -1)
        consumer.acknowledge_cumulative(last)
        return payloads, (last.message_id().ledger_id(), last.message_id().entry_id())


def received(service_url: str, topic: str, subscription: str, *, quiet_ms: int) -> Iterator[bytes]:
    """Receive messages until none arrives for quiet_ms.

    A message is acknowledged when the next message is requested, or at the end.
    """
    import pulsar

    with pulsar_client(service_url) as client:
        consumer = client.subscribe(topic, subscription)
        while True:
            try:
                message = consumer.receive(timeout_millis=quiet_ms)
            except pulsar.Timeout:
                return
            try:
                yield message.data()
            finally:
                consumer.acknowledge_cumulative(message)


def read_all(service_url: str, topic: str) -> list[bytes]:
    """Return every message that the topic still has, read by a reader, which creates no durable subscription."""
    import pulsar

    payloads: list[bytes] = []
    with pulsar_client(service_url) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        while reader.has_message_available():
            payloads.append(reader.read_next(timeout_millis=30_000).data())
    return payloads


def _numeric(client: KazooClient, path: str) -> list[str]:
    return sorted(child for child in client.get_children(path) if child.isdigit())


def _ledger_parents(client: KazooClient, root: str) -> list[str]:
    """Return the parents of ledgers: znodes with a name of digits, and without a child with a name of digits."""
    parents: list[str] = []
    below = [f"{root}/{child}" for child in _numeric(client, root)]
    while below:
        path = below.pop()
        try:
            deeper = _numeric(client, path)
        except NoNodeError:  # ZooKeeper deletes empty containers
            continue
        if deeper:
            below += [f"{path}/{child}" for child in deeper]
        else:
            parents.append(path)
    return parents


def _deny_below(client: KazooClient, path: str, levels: int) -> None:
    """Deny deletes in the parents of ledgers `levels` below the path, also in parents that appear later."""
    seen: set[str] = set()

    @client.ChildrenWatch(path)  # type: ignore[untyped-decorator]
    def _watch(children: list[str]) -> None:
        fresh = {child for child in children if child.isdigit()} - seen
        seen.update(fresh)
        for child in fresh:
            with contextlib.suppress(NoNodeError):
                if levels > 1:
                    _deny_below(client, f"{path}/{child}", levels - 1)
                else:
                    client.set_acls(f"{path}/{child}", _ALL_BUT_DELETE)


def _create_together(client: KazooClient, batch: Sequence[tuple[str, bytes]]) -> Any:
    transaction = client.transaction()
    for path, data in batch:
        transaction.create(path, data)
    return transaction.commit_async()


def _note(failures: list[Any], result: Any) -> None:
    import pulsar

    if result != pulsar.Result.Ok:
        failures.append(result)


def _quiet(name: str) -> logging.Logger:
    logger = logging.getLogger(name)
    logger.setLevel(logging.CRITICAL)
    return logger
