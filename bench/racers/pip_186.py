"""A consumer that deletes ledgers as the pseudocode of PIP-186 does, on a shared subscription.

    python pip_186.py SERVICE_URL ADMIN ZOOKEEPER TOPIC REQUESTS

No broker has PIP-186's call to delete a ledger, so the consumer does what the call would do: it keeps a ledger that is
in the topic's ledger list, as the broker's internalStats have it. A topic exists unless the broker answers 404. A
request that fails is tried again after RETRY_SECONDS (PIP-186: 600) and becomes a dead letter after RETRIES (10). The
process ends when all requests are acknowledged.
"""

import json
import sys
import threading
from collections import Counter
from typing import Any
from urllib.parse import quote, quote_plus

import httpx
import pulsar
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

CONSUMERS = 4
RETRY_SECONDS = 5
RETRIES = 3


class Consumers:
    """Counts the requests that are done."""

    def __init__(self, zk: KazooClient, http: httpx.Client, requests: int) -> None:
        self._zk = zk
        self._http = http
        self._left = requests
        self._lock = threading.Lock()
        self.done: Counter[str] = Counter()

    def consume(self, client: Any, topic: str) -> None:
        """Process requests until none is left."""
        consumer = client.subscribe(
            topic,
            "ledger-deletion",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=RETRY_SECONDS * 1000,
            receiver_queue_size=10,
        )
        dead_letters = client.create_producer(f"{topic}-DLQ")
        while self._left > 0:
            try:
                message = consumer.receive(timeout_millis=500)
            except pulsar.Timeout:
                continue
            if (what := self.process(json.loads(message.data()))) == "failed":
                if message.redelivery_count() < RETRIES:
                    consumer.negative_acknowledge(message)
                    continue
                dead_letters.send(message.data())
                what = "dead letter"
            consumer.acknowledge(message)
            with self._lock:
                self.done[what] += 1
                self._left -= 1

    def process(self, info: dict[str, Any]) -> str:
        """Delete the ledger unless it is in use, and return what was done."""
        try:
            stats = self.stats(info["topicName"])
        except httpx.HTTPError:
            return "failed"
        if stats is not None and info["ledgerId"] in {ledger["ledgerId"] for ledger in stats["ledgers"]}:
            return "in use"
        return self.delete(info)

    def stats(self, topic: str) -> Any:
        """Return the broker's statistics of the topic; None if it does not exist."""
        tenant, namespace, name = topic.removeprefix("persistent://").split("/", 2)
        answer = self._http.get(f"admin/v2/persistent/{tenant}/{namespace}/{quote(name, safe='')}/internalStats")
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return answer.json()

    def delete(self, info: dict[str, Any]) -> str:
        """Delete the ledger if its metadata match the request."""
        number = f"{info['ledgerId']:010d}"
        path = f"/ledgers/{number[:2]}/{number[2:6]}/L{number[6:]}"
        tenant, namespace, name = info["topicName"].removeprefix("persistent://").split("/", 2)
        owner = info.get("schemaId") or f"{tenant}/{namespace}/persistent/{quote_plus(name, safe='*')}"
        try:
            metadata = self._zk.get(path)[0]
            if owner.encode() not in metadata or info.get("cursorName", "").encode() not in metadata:
                return "no match"
            self._zk.delete(path)
        except NoNodeError:
            return "gone"
        return "deleted"


def main() -> None:
    service_url, admin, hosts, topic, requests = sys.argv[1:]
    zk = KazooClient(hosts=hosts)
    zk.start()
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with httpx.Client(base_url=admin, follow_redirects=True, timeout=30) as http:
        consumers = Consumers(zk, http, int(requests))
        threads = [threading.Thread(target=consumers.consume, args=(client, topic)) for _ in range(CONSUMERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    client.close()
    zk.stop()
    print(json.dumps(consumers.done))


if __name__ == "__main__":
    main()
