"""Tenants with lanes of their own, on a cluster with authorization: what each role can do, and what it can't.

Two tenants share the cluster and one service. acme attacks; each attack is followed by a lone request of rival, which
must be processed and get its receipt.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

import pulsar
import pytest

from streaming.sandbox import cluster as sandbox
from streaming.sandbox import ledger_list, topics
from tests.integration.conftest import Deployment, create_tenant, killed_at_the_end, payload, stop, wait_until
from tests.integration.secured_world import Secured, with_tokens
from udfs.formats.message_id import message_id_text
from udfs.requests.lane_receipts import receipt_topic
from udfs.requests.retry import ORIGIN_MESSAGE_ID, REAL_TOPIC, RECONSUMETIMES

pytestmark = [pytest.mark.cluster, pytest.mark.long]

TENANTS = ("acme", "rival")
TOPIC = {tenant: f"persistent://{tenant}/shop/carts" for tenant in TENANTS}
LANE = {tenant: f"persistent://{tenant}/ledger-deletion/__ledger_deletion" for tenant in TENANTS}
NAMESPACE = "namespaces/acme/ledger-deletion"
ADMIN_PATH = {tenant: f"persistent/{tenant}/ledger-deletion/__ledger_deletion" for tenant in TENANTS}
PARTITION = f"{ADMIN_PATH['acme']}-partition-0"
SUBSCRIPTION = "ledger-reaper"
LEAKED = 60  # of each tenant
_REFUSED = (401, 403)


@dataclass
class World:
    """The cluster, a service that runs there, and leaked ledgers of both tenants."""

    secured: Secured
    service: Deployment
    running: "Popen[bytes]"
    log: Path
    leaked: dict[str, list[int]]
    seen: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # receipts by tenant

    def leak(self, tenant: str) -> int:
        """Return another leaked ledger of the tenant."""
        return self.leaked[tenant].pop()

    def send(self, role: str, tenant: str, body: bytes, properties: Mapping[str, str] | None = None) -> str:
        """Send a message to a tenant's lane with a plain producer; return its message id as receipts name it."""
        with self.secured.client(role) as client:
            producer = client.create_producer(LANE[tenant])
            sent = producer.send(body, properties=dict(properties or {}))
        return message_id_text(sent.ledger_id(), sent.entry_id(), sent.partition(), sent.batch_index())

    def receipt(self, tenant: str, message_id: str) -> dict[str, Any]:
        """Wait for the final receipt in the tenant's topic, read by a role that may only consume there."""
        found: dict[str, Any] = {}

        def is_there() -> bool:
            for receipt in self.published(tenant):
                if receipt["messageId"] == message_id and receipt["outcome"] != "RETRY":
                    found.update(receipt)
            return bool(found)

        wait_until(is_there, self.running, self.log)
        return found

    def published(self, tenant: str) -> list[dict[str, Any]]:
        """Return the receipts in the tenant's topic."""
        receipts: list[dict[str, Any]] = []
        with self.secured.client(f"{tenant}-reader") as client:
            try:
                reader = client.create_reader(receipt_topic(LANE[tenant]), pulsar.MessageId.earliest)
                while reader.has_message_available():
                    message = reader.read_next(10_000)
                    receipts.append(json.loads(message.data()))
                    assert message.partition_key() == receipts[-1]["messageId"]
            except pulsar.PulsarException:
                pass  # the topic does not exist yet, or an attack of its tenant is under way
        return receipts

    def outcome(self, message_id: str) -> tuple[str, str]:
        """Wait for the operator's final receipt of a request."""
        wait_until(lambda: message_id in self.service.final(), self.running, self.log)
        (row,) = self.service.final()[message_id]
        return row["outcome"], row["reason"]

    def rival_is_served(self) -> None:
        """Send a lone request of rival, and wait for its receipt."""
        sent = self.send("rival-producer", "rival", payload(TOPIC["rival"], self.leak("rival")))
        assert self.receipt("rival", sent)["outcome"] == "DELETED"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("isolation")
    running = sandbox.up(folder / "home")
    try:
        leaked = {}
        for at, tenant in enumerate(TENANTS):
            create_tenant(running, tenant, "shop")
            topics.fill(running, TOPIC[tenant], 3, ["s"])
            ids = ledger_list.make_synthetic(running, TOPIC[tenant], count=LEAKED, first_id=5_000_000 + 1_000 * at)
            leaked[tenant] = list(ids)
        secured = with_tokens(running, folder)
        for tenant in TENANTS:
            _name_administrator(secured, tenant)
            _create_lane_and_roles(secured, tenant)
        service, log = secured.deployment("reaper"), folder / "log"
        text = service.config.read_text()
        service.config.write_text(text.replace("[topics]", "[topics]\n" + _TOPICS))
        with killed_at_the_end(service.start("run", log=log)) as process:
            created = World(secured, service, process, log, leaked)
            wait_until(lambda: "reading persistent" in log.read_text(), process, log)
            yield created
            stop(process)
    finally:
        sandbox.down(folder / "home")


_TOPICS = """lanes = "tenant"
receipts = true
"""


def _name_administrator(secured: Secured, tenant: str) -> None:
    """Do all that the operator has to do for a tenant."""
    about = json.loads(secured.admin("GET", f"tenants/{tenant}"))
    secured.admin("POST", f"tenants/{tenant}", {**about, "adminRoles": [f"{tenant}-admin"]})


def _create_lane_and_roles(secured: Secured, tenant: str) -> None:
    """Do what the tenant's administrator does."""
    _create_lane(secured, tenant)
    for role, actions in (("producer", ["produce"]), ("reader", ["consume"])):
        path = f"namespaces/{tenant}/ledger-deletion/permissions/{tenant}-{role}"
        assert secured.ask(f"{tenant}-admin", "POST", path, actions).is_success


def _create_lane(secured: Secured, tenant: str) -> None:
    for method, path, body in (
        ("PUT", f"namespaces/{tenant}/ledger-deletion", None),
        ("PUT", f"{ADMIN_PATH[tenant]}/partitions", 1),
        ("PUT", f"{ADMIN_PATH[tenant]}-partition-0/subscription/{SUBSCRIPTION}", {"ledgerId": -1, "entryId": -1}),
    ):
        answer = secured.ask(f"{tenant}-admin", method, path, body)
        assert answer.is_success or answer.status_code == 409, f"{path}: {answer.status_code} {answer.text}"


@pytest.mark.parametrize("tenant", TENANTS)
def test_a_role_that_may_only_produce_requests_its_tenants_ledgers_and_its_tenant_learns_the_outcome(
    world: World, tenant: str
) -> None:
    ledger = world.leak(tenant)
    sent = world.send(f"{tenant}-producer", tenant, payload(TOPIC[tenant], ledger))
    receipt = world.receipt(tenant, sent)
    assert receipt.pop("atMs") > 0
    assert receipt == {
        "version": 1,
        "messageId": sent,
        "topic": TOPIC[tenant],
        "ledgerId": ledger,
        "component": "MANAGED_LEDGER",
        "type": "LEDGER",
        "outcome": "DELETED",
        "reason": "UNREFERENCED",
        "tries": 0,
    }
    assert ledger not in ledger_list.listed_by_bookie(world.secured.cluster)


def test_retries_carry_the_original_message_id(world: World) -> None:
    listed = topics_ledger(world, "acme")
    sent = world.send("acme-producer", "acme", payload(TOPIC["acme"], listed))
    assert world.receipt("acme", sent)["reason"] == "IN_USE"
    of_request = [receipt for receipt in world.published("acme") if receipt["messageId"] == sent]
    assert [receipt["outcome"] for receipt in of_request][-1] == "DEAD_LETTER"
    assert {"RETRY"} == {receipt["outcome"] for receipt in of_request[:-1]}


def topics_ledger(world: World, tenant: str) -> int:
    """Return a ledger that the tenant's topic uses."""
    stats = json.loads(world.secured.admin("GET", f"persistent/{tenant}/shop/carts/internalStats"))
    return int(stats["ledgers"][0]["ledgerId"])


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({}, id="as it is"),
        pytest.param({REAL_TOPIC: LANE["rival"]}, id="as if it came from rival's lane"),
        pytest.param(
            {
                REAL_TOPIC: "persistent://pulsar/system/__ledger_deletion",
                RECONSUMETIMES: "1",
                ORIGIN_MESSAGE_ID: "1:1:0",
            },
            id="as if it were a retry of the shared topic",
        ),
    ],
)
def test_a_tenant_can_not_request_anothers_ledgers(world: World, properties: dict[str, str]) -> None:
    ledger = world.leaked["rival"][0]
    sent = world.send("acme-producer", "acme", payload(TOPIC["rival"], ledger), properties)
    receipt = world.receipt("acme", sent)
    assert (receipt["outcome"], receipt["reason"]) == ("DEAD_LETTER", "OTHER_TENANT")
    assert ledger in ledger_list.listed_by_bookie(world.secured.cluster)


def test_a_tenant_does_not_learn_which_ledgers_others_have(world: World) -> None:
    ids = {
        "of rival": world.leaked["rival"][0],
        "of a topic of rival": topics_ledger(world, "rival"),
        "none": 5_900_000,
    }
    sent = {
        what: world.send("acme-producer", "acme", payload(TOPIC["acme"], ledger_id)) for what, ledger_id in ids.items()
    }
    receipts = {what: world.receipt("acme", message_id) for what, message_id in sent.items()}
    shown = [
        {name: value for name, value in receipt.items() if name not in ("messageId", "ledgerId", "atMs")}
        for receipt in receipts.values()
    ]
    assert shown[0] == shown[1] == shown[2]
    assert world.outcome(sent["of rival"]) == ("DEAD_LETTER", "OTHER_OWNER")
    assert world.outcome(sent["none"]) == ("ALREADY_GONE", "NOT_FOUND")
    assert world.leaked["rival"][0] in ledger_list.listed_by_bookie(world.secured.cluster)


def _closed_topics(world: World) -> list[str]:
    """Return the topics to which acme has no right."""
    own = world.service.settings.topics
    return [LANE["rival"], receipt_topic(LANE["rival"]), *own.owned]


@pytest.mark.parametrize("role", ["acme-admin", "acme-producer", "acme-reader"])
def test_a_tenants_role_can_neither_write_nor_read_a_topic_of_others(world: World, role: str) -> None:
    world.rival_is_served()  # so that there are receipts of rival
    for topic in _closed_topics(world):
        with world.secured.client(role) as client:
            attempts: list[Callable[[], object]] = [
                lambda name=topic: client.create_producer(name),  # type: ignore[misc]
                lambda name=topic: client.create_reader(name, pulsar.MessageId.earliest),  # type: ignore[misc]
                lambda name=topic: client.subscribe(name, SUBSCRIPTION),  # type: ignore[misc]
                lambda name=topic: client.subscribe(f"{name}-partition-0", "mine"),  # type: ignore[misc]
            ]
            for attempt in attempts:
                with pytest.raises(pulsar.PulsarException) as refused:
                    attempt()
                assert "uthoriz" in repr(refused.value), (topic, refused.value)


@pytest.mark.parametrize("role", ["acme-admin", "acme-producer", "acme-reader"])
def test_a_tenants_role_can_neither_see_nor_change_a_topic_of_others_by_the_admin_api(world: World, role: str) -> None:
    rival = ADMIN_PATH["rival"]
    partition, receipts = f"{rival}-partition-0", f"{rival}-RECEIPT"
    own = [topics.resource(topic) for topic in world.service.settings.topics.owned]
    calls: list[tuple[str, str, object]] = [
        ("GET", "namespaces/rival", None),
        ("GET", "persistent/rival/ledger-deletion", None),
        ("GET", "persistent/rival/ledger-deletion/partitioned", None),
        ("GET", "namespaces/rival/ledger-deletion", None),
        ("GET", "tenants", None),
        ("GET", "tenants/rival", None),
        ("GET", f"{partition}/subscription/{SUBSCRIPTION}/position/1", None),
        ("POST", f"{partition}/subscription/{SUBSCRIPTION}/skip_all", None),
        ("DELETE", f"{partition}/subscription/{SUBSCRIPTION}?force=true", None),
        ("DELETE", f"{rival}/partitions?force=true", None),
        ("DELETE", f"{receipts}?force=true", None),
        ("PUT", f"{partition}/unload", None),
        ("POST", f"{partition}/terminate", None),
        ("POST", f"{receipts}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
        ("POST", f"namespaces/rival/ledger-deletion/permissions/{role}", ["produce", "consume"]),
        ("PUT", "namespaces/rival/other", None),
        ("PUT", "persistent/rival/ledger-deletion/another/partitions", 1),
        *(("GET", f"{path}{what}", None) for path in (f"{rival}-partition-0", receipts) for what in _STATS),
        *(("GET", f"{path}-partition-0{what}", None) for path in own for what in _STATS),
        *(("GET", f"{path}/partitioned-stats", None) for path in (rival, *own)),
    ]
    opened = []
    for method, path, body in calls:
        answer = world.secured.ask(role, method, path, body)
        if answer.status_code not in _REFUSED:
            opened.append(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
    assert not opened


_STATS = ("/stats", "/internalStats", "/lastMessageId")


def test_what_a_tenant_sees_of_its_own_topics_names_no_other_tenant(world: World) -> None:
    sent = world.send("acme-producer", "acme", payload(TOPIC["acme"], world.leak("acme")))
    world.receipt("acme", sent)
    for path in (PARTITION, f"{ADMIN_PATH['acme']}-RECEIPT"):
        for what in ("/stats", "/internalStats"):
            answer = world.secured.ask("acme-admin", "GET", f"{path}{what}")
            assert answer.is_success
            assert "rival" not in answer.text
            assert not re.search(r"RETRY|DLQ|WATCH", answer.text)
    assert "rival" not in json.dumps([each for each in world.published("acme") if each["reason"] != "OTHER_TENANT"])


def test_the_services_role_needs_no_grant_in_a_tenants_namespace(world: World) -> None:
    permissions = json.loads(world.secured.ask("acme-admin", "GET", f"{NAMESPACE}/permissions").text)
    assert permissions == {"acme-producer": ["produce"], "acme-reader": ["consume"]}


def test_a_backlog_of_odd_messages_and_requests_of_one_tenant_leaves_the_other_its_turn(world: World) -> None:
    with world.secured.client("acme-producer") as client:
        producer = client.create_producer(LANE["acme"], block_if_queue_full=True)
        for number in range(3_000):
            body = payload(TOPIC["acme"], 6_000_000 + number) if number % 2 else b"\xff" * (number % 700)
            producer.send_async(body, lambda _result, _id: None)
        producer.flush()
        last = producer.send(payload(TOPIC["acme"], world.leak("acme")))
    world.rival_is_served()
    at = message_id_text(last.ledger_id(), last.entry_id(), last.partition(), last.batch_index())
    assert world.receipt("acme", at)["outcome"] == "DELETED"


@contextmanager
def _holding(world: World) -> Iterator[int]:
    """Add partitions to acme's lane, and hold the service's subscription on one before the service does."""
    with world.secured.client("acme-admin") as client:
        for number in (1, 2, 3):
            path = f"{ADMIN_PATH['acme']}/partitions"
            assert world.secured.ask("acme-admin", "POST", path, number + 1).is_success
            with suppress(pulsar.ConsumerBusy):
                client.subscribe(f"{LANE['acme']}-partition-{number}", SUBSCRIPTION)  # exclusive by default
                yield number
                return
    raise AssertionError("the service was faster three times")


def test_a_tenant_that_holds_the_services_subscription_stops_only_itself(world: World) -> None:
    with _holding(world) as number, world.secured.client("acme-producer") as client:
        producer = client.create_producer(f"{LANE['acme']}-partition-{number}")
        sent = producer.send(payload(TOPIC["acme"], world.leak("acme")))
        world.rival_is_served()
    at = message_id_text(sent.ledger_id(), sent.entry_id(), number, sent.batch_index())
    assert world.receipt("acme", at)["outcome"] == "DELETED"


def test_a_tenant_that_unloads_its_namespace_again_and_again_stops_only_itself(world: World) -> None:
    world.send("acme-producer", "acme", payload(TOPIC["acme"], world.leak("acme")))
    sent = world.send("rival-producer", "rival", payload(TOPIC["rival"], world.leak("rival")))

    def is_served() -> bool:
        world.secured.ask("acme-admin", "PUT", f"{NAMESPACE}/unload")
        return any(each["messageId"] == sent for each in world.published("rival"))

    wait_until(is_served, world.running, world.log)


def test_receipts_that_a_tenant_forges_are_its_own_problem(world: World) -> None:
    """A role that may produce in the namespace of the lane can write receipts there; nothing of ours reads them."""
    sent = world.send("acme-producer", "acme", payload(TOPIC["acme"], world.leak("acme")))
    world.receipt("acme", sent)
    with world.secured.client("acme-producer") as client:
        forged = {"messageId": "9:9:0", "outcome": "DELETED", "reason": "UNREFERENCED", "topic": TOPIC["rival"]}
        client.create_producer(receipt_topic(LANE["acme"])).send(json.dumps(forged).encode(), partition_key="9:9:0")
    assert any(each["messageId"] == "9:9:0" for each in world.published("acme"))
    assert all(each["messageId"] != "9:9:0" for each in world.published("rival"))
    assert "9:9:0" not in world.service.final()
    world.rival_is_served()


def test_a_sender_with_a_right_to_the_lane_only_can_not_forge_receipts(world: World) -> None:
    secured, role = world.secured, "acme-lane-sender"
    path = f"{ADMIN_PATH['acme']}/permissions/{role}"
    assert secured.ask("acme-admin", "POST", path, ["produce"]).is_success
    sent = world.send(role, "acme", payload(TOPIC["acme"], world.leak("acme")))
    assert world.receipt("acme", sent)["outcome"] == "DELETED"
    with secured.client(role) as client, pytest.raises(pulsar.PulsarException) as refused:
        client.create_producer(receipt_topic(LANE["acme"]))
    assert "uthoriz" in repr(refused.value)


Attack = tuple[str, str, object]


def _policies(of: str, **bodies: object) -> list[Attack]:
    return [("POST", f"{of}/{name}", body) for name, body in bodies.items()]


RECEIPTS = f"{ADMIN_PATH['acme']}-RECEIPT"
_NEVER = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
_TINY_QUOTA = {"limitSize": 1, "limitTime": 1, "policy": "consumer_backlog_eviction"}
_SLOW = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": 10}
_SLOW_DISPATCH = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": 1, "ratePeriodInSecond": 60}
_PARTITIONED = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 50}
_SCHEMA = {
    "type": "AVRO",
    "schema": json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}),
    "properties": {},
}

# what acme's administrator does to its own namespace, one after the other, and nothing is repaired in between
ATTACKS: dict[str, list[Attack]] = {
    "slows down the topic of receipts, and has its messages trimmed": [
        *_policies(RECEIPTS, retention=_NEVER, publishRate=_SLOW, maxProducers=1)
    ],
    "lets the topic of receipts refuse messages": _policies(RECEIPTS, maxMessageSize=10),
    "terminates the topic of receipts": [("POST", f"{RECEIPTS}/terminate", None)],
    "replaces the topic of receipts by one with partitions": [
        ("DELETE", f"{RECEIPTS}?force=true", None),
        ("PUT", f"{RECEIPTS}/partitions", 50),
    ],
    "replaces the topic of receipts by one with a schema": [
        ("DELETE", f"{RECEIPTS}/partitions?force=true", None),
        ("POST", f"{NAMESPACE}/schemaValidationEnforced", True),
        ("PUT", RECEIPTS, None),
        ("POST", "schemas/acme/ledger-deletion/__ledger_deletion-RECEIPT/schema", _SCHEMA),
    ],
    "lets rival do what it wants in the namespace": [
        ("POST", f"{NAMESPACE}/permissions/rival-producer", ["produce", "consume"])
    ],
    "sets policies of the lane that slow down, refuse and expire messages": [
        *_policies(ADMIN_PATH["acme"], retention=_NEVER, maxMessageSize=300, publishRate=_SLOW),
        *_policies(ADMIN_PATH["acme"], dispatchRate=_SLOW_DISPATCH, subscriptionDispatchRate=_SLOW_DISPATCH),
        *_policies(ADMIN_PATH["acme"], maxConsumers=1, maxSubscriptionsPerTopic=1),
        ("POST", f"{ADMIN_PATH['acme']}/messageTTL?messageTTL=1", None),
        ("POST", f"{ADMIN_PATH['acme']}/backlogQuota?backlogQuotaType=message_age", _TINY_QUOTA),
    ],
    "sets such policies of the namespace": [
        *_policies(NAMESPACE, retention=_NEVER, messageTTL=1, maxConsumersPerTopic=1),
        *_policies(NAMESPACE, autoTopicCreation=_PARTITIONED, subscriptionAuthMode="Prefix", deduplication=True),
        ("POST", f"{NAMESPACE}/backlogQuota?backlogQuotaType=message_age", _TINY_QUOTA),
    ],
    "moves the service's subscription to the end": [
        ("POST", f"{PARTITION}/subscription/{SUBSCRIPTION}/skip_all", None)
    ],
    "deletes the service's subscription": [("DELETE", f"{PARTITION}/subscription/{SUBSCRIPTION}?force=true", None)],
    "revokes all permissions": [
        ("DELETE", f"{NAMESPACE}/permissions/{role}", None) for role in ("reaper", "acme-producer", "acme-reader")
    ],
    "terminates the lane": [("POST", f"{PARTITION}/terminate", None)],
    "requires encryption": [("POST", f"{NAMESPACE}/encryptionRequired", True)],
    "deletes the lane and creates it with other partitions": [
        ("DELETE", f"{ADMIN_PATH['acme']}/partitions?force=true", None),
        ("PUT", f"{ADMIN_PATH['acme']}/partitions", 3),
    ],
    "replaces the lane by a topic without partitions": [
        ("DELETE", f"{ADMIN_PATH['acme']}/partitions?force=true", None),
        ("PUT", ADMIN_PATH["acme"], None),
    ],
    "deletes the namespace": [("DELETE", f"{NAMESPACE}?force=true", None)],
}
ON_RECEIPTS = list(ATTACKS)[:5]  # while the lane works


@pytest.mark.parametrize("attack", ATTACKS)
def test_whatever_a_tenant_does_to_its_own_lane_the_other_tenant_is_served(world: World, attack: str) -> None:
    answers = [(path, world.secured.ask("acme-admin", method, path, body)) for method, path, body in ATTACKS[attack]]
    refused = [f"{path}: {answer.status_code} {answer.text[:200]}" for path, answer in answers if answer.is_error]
    assert not refused
    if attack in ON_RECEIPTS:
        sent = world.send("acme-producer", "acme", payload(TOPIC["acme"], world.leak("acme")))
        assert world.outcome(sent) == ("DELETED", "UNREFERENCED")
    else:
        _try_to_send(world)
    world.rival_is_served()


def _try_to_send(world: World) -> None:
    """Send a request of acme, if its lane takes one now."""
    with world.secured.client("acme-admin") as client, suppress(pulsar.PulsarException):
        producer = client.create_producer(LANE["acme"], send_timeout_millis=3_000)
        producer.send(payload(TOPIC["acme"], 6_900_000))


def test_after_its_attacks_a_tenant_is_served_again(world: World) -> None:
    def is_gone() -> bool:
        world.secured.ask("acme-admin", "DELETE", f"{NAMESPACE}?force=true")
        return world.secured.ask("acme-admin", "GET", NAMESPACE).status_code == 404

    wait_until(is_gone, world.running, world.log)
    _create_lane_and_roles(world.secured, "acme")
    sent = world.send("acme-producer", "acme", payload(TOPIC["acme"], world.leak("acme")))
    assert world.outcome(sent) == ("DELETED", "UNREFERENCED")
    assert world.running.poll() is None
