"""`audit --verify-only --before-removing` against the real removal of a bookie, with several ensembles."""

import json
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from streaming.sandbox import cluster_faults, ledger_list, shell, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import LEDGERS_ROOT, Instance, Part
from streaming.sandbox.parts import part_clients
from tests.integration.conftest import Deployment, config_text, running_cluster
from udfs.formats.ledger_placement import Placement, placement_of
from udfs.paths import managed_ledger_name

pytestmark = [pytest.mark.cluster, pytest.mark.long]

# ensemble size, write quorum, ack quorum
QUORUMS = ((1, 1, 1), (2, 1, 1), (2, 2, 2), (2, 2, 1), (3, 2, 2), (3, 3, 2))
FULL = 4  # full ledgers of a topic; with the last ledger, --json names all of its ledgers as examples
RECOVERY_SECONDS = 180
TENANT = f"public/removed-{uuid.uuid4().hex[:6]}"


@dataclass(frozen=True)
class World:
    """A cluster whose topics have several ensembles, and the bookie to remove."""

    cluster: Cluster
    service: Deployment
    victim: Instance

    @property
    def bookie(self) -> str:
        return _id(self.victim)

    def forecast(self, code: int = 4) -> tuple[dict[tuple[str, str], dict[str, Any]], dict[str, Any]]:
        """Return the rows of the test's topics, by effect and topic, and the totals."""
        text = self.service.call("audit", "--verify-only", "--before-removing", self.bookie, "--json", code=code)
        rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return {(row["effect"], row["topic"]): row for row in rows[:-1] if row["topic"] in TOPICS}, rows[-1]

    def placements(self) -> dict[int, Placement]:
        return _placements(self.cluster)

    def naming(self) -> set[int]:
        """Return the ledgers of the test's topics whose metadata name the bookie."""
        return {
            ledger_id
            for ledger_id, placement in self.placements().items()
            if _is_ours(placement) and any(self.bookie in segment.bookies for segment in placement.segments)
        }


def _id(bookie: Instance) -> str:
    return f"bookie-{bookie.number - 1}"


def _namespace(quorums: tuple[int, int, int]) -> str:
    return f"{TENANT}-{'-'.join(map(str, quorums))}"


def _topic(quorums: tuple[int, int, int]) -> str:
    return f"persistent://{_namespace(quorums)}/t"


TOPICS = frozenset(map(_topic, QUORUMS))  # not those of brokers
OWNERS = frozenset(managed_ledger_name(topic).encode() for topic in TOPICS)


def _is_ours(placement: Placement) -> bool:
    return placement.metadata.custom_metadata.get("pulsar/managed-ledger") in OWNERS


def _placements(cluster: Cluster) -> dict[int, Placement]:
    paths = {ledger_list.path_of(ledger_id): ledger_id for ledger_id in ledger_list.every_ledger(cluster)}
    znodes = part_clients.read_znodes(cluster.addresses.zookeeper, [*paths])
    return {paths[path]: placement_of(data) for path, data in znodes.items()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("removed"), counts={Part.BOOKIE: 3}) as running:
        yield running


@pytest.fixture(scope="module")
def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> World:
    for quorums in QUORUMS:
        _create_topics(cluster, quorums)
    only_copies = [
        segment.bookies[0]
        for placement in _placements(cluster).values()
        if placement.write_quorum == 1 and _is_ours(placement)
        for segment in placement.segments
    ]
    # the bookie without which the most is lost; the first bookie answers the test's questions
    victim = max(cluster.spec.all_of(Part.BOOKIE)[1:], key=lambda bookie: only_copies.count(_id(bookie)))
    here = tmp_path_factory.mktemp("service")
    config = here / "local.toml"
    texts = {"name": "removed", "chunk_rows": 1000, "home": cluster.home.root, "here": here}
    config.write_text(config_text(cluster, limits="", classes="", **texts))
    return World(cluster, Deployment(config), victim)


def _create_topics(cluster: Cluster, quorums: tuple[int, int, int]) -> None:
    namespace = _namespace(quorums)
    topics.admin(cluster, "PUT", f"namespaces/{namespace}")
    ensemble, write, ack = quorums
    policy = {
        "bookkeeperEnsemble": ensemble,
        "bookkeeperWriteQuorum": write,
        "bookkeeperAckQuorum": ack,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    }
    topics.admin(cluster, "POST", f"namespaces/{namespace}/persistence", policy)
    topic = _topic(quorums)
    topics.fill(cluster, topic, FULL, ["s"])
    topics.publish(cluster, topic, 3)
    topics.unload(cluster, topic)  # closes the last ledger


def _unreadable(cluster: Cluster, ledgers: Iterable[int], before: Mapping[int, Placement]) -> dict[int, str]:
    """Return the closed ledgers of which a client of BookKeeper can't read all entries, with its answer."""
    answers = {each: _read(cluster, each, before[each].metadata.last_entry_id) for each in ledgers}
    return {each: answer for each, answer in answers.items() if answer}


def _read(cluster: Cluster, ledger_id: int, last: int) -> str:
    """Read all entries of a closed ledger, over HTTP or else with BookKeeper's shell; return its output if it can't."""
    path = f"api/v1/ledger/read?ledger_id={ledger_id}&start_entry_id=0&end_entry_id={last}"
    reply = part_clients.http_any("GET", cluster.serving.bookie_http, path)
    if reply.ok and len(json.loads(reply.text)) == last + 1:
        return ""
    # a running bookie may have forgotten the address of the read-only one (BookKeeper issue 4172); the shell asks anew
    printed = shell.run(cluster, ["readledger", "-l", str(ledger_id), "-fe", "0", "-le", str(last)], check=False)
    return "" if all(f"Lid={ledger_id}, Eid={each}, " in printed for each in range(last + 1)) else printed[-500:]


def _set_read_only(cluster: Cluster, bookie: Instance, *, read_only: bool) -> None:
    """Let a bookie refuse or accept new entries, with the command that `--before-removing` prints."""
    url = f"http://{cluster.spec.listen}:{cluster.spec.port(bookie, 'bookie_http')}/api/v1/bookie/state/readonly"
    assert part_clients.http("PUT", url, body={"readOnly": read_only}).ok
    path = f"{LEDGERS_ROOT}/available/readonly/{_id(bookie)}"
    topics.wait_for(
        lambda: part_clients.znode_exists(cluster.addresses.zookeeper, path) is read_only, f"read-only {read_only}"
    )


def _remove_for_good(world: World) -> None:
    """Kill the bookie, destroy its disks and delete its cookie."""
    cluster_faults.kill(world.cluster, world.victim)
    shutil.rmtree(world.cluster.home.data(world.victim))
    hosts, path = world.cluster.addresses.zookeeper, f"{LEDGERS_ROOT}/available/{world.bookie}"
    topics.wait_for(lambda: not part_clients.znode_exists(hosts, path), "the bookie's registration to end")
    # `bookkeeper shell cookie_delete` accepts only HOST:PORT
    part_clients.delete_znode(hosts, f"{LEDGERS_ROOT}/cookies/{world.bookie}")


def _split(world: World, rows: dict[tuple[str, str], dict[str, Any]]) -> tuple[set[int], set[int]]:
    """Return the ledgers that the forecast calls lost, and those that have fewer copies."""
    assert all(row["ledgers"] == len(row["examples"]) for row in rows.values())  # so it names each of them
    lost = {each for (effect, _), row in rows.items() if effect == "LOST" for each in row["examples"]}
    assert {effect for effect, _ in rows} <= {"LOST", "BELOW_ACK_QUORUM", "UNDER_REPLICATED"}  # all are closed
    fewer = {each for (effect, _), row in rows.items() if effect != "LOST" for each in row["examples"]}
    assert not lost & fewer
    assert lost | fewer == world.naming()
    return lost, fewer


def test_exactly_the_ledgers_that_are_called_lost_are_lost(world: World) -> None:
    cluster = world.cluster
    read_only = next(each for each in cluster.spec.all_of(Part.BOOKIE)[1:] if each != world.victim)
    _set_read_only(cluster, read_only, read_only=True)
    before = world.placements()
    rows, totals = world.forecast()
    lost, fewer = _split(world, rows)
    assert lost
    assert (totals["read_only_bookies"], totals["autorecovery"]) == ([_id(read_only)], "runs")
    # a copy needs a writable bookie outside the ensemble: only the first is left
    copied = {
        each for each in fewer if all(_id(Part.BOOKIE) not in segment.bookies for segment in before[each].segments)
    }
    not_copied = sum(row["not_copied"] for row in rows.values())
    assert not_copied == len(lost) + len(fewer - copied)
    assert copied
    assert fewer - copied
    assert totals["missing_bookies"] == 1

    _remove_for_good(world)

    topics.wait_for(lambda: not copied & world.naming(), "autorecovery", seconds=RECOVERY_SECONDS)
    assert world.naming() == lost | (fewer - copied)  # a read-only bookie took none
    assert _unreadable(cluster, fewer, before) == {}
    assert _unreadable(cluster, lost, before).keys() == lost
    others = {each for each, placement in before.items() if each not in lost | fewer and _is_ours(placement)}
    assert others
    assert _unreadable(cluster, others, before) == {}

    _set_read_only(cluster, read_only, read_only=False)
    rows, totals = world.forecast()
    still_lost, left = _split(world, rows)
    assert still_lost == lost
    assert (totals["registered"], totals["read_only_bookies"]) == (False, [])
    full = {each for each in left if len(before[each].segments[0].bookies) == 3}
    assert sum(row["not_copied"] for row in rows.values()) == len(lost | full)
    topics.wait_for(lambda: world.naming() == lost | full, "autorecovery", seconds=RECOVERY_SECONDS)
    assert full
    assert _unreadable(cluster, fewer, before) == {}
    # a broker can write new ledgers of these topics again, so it loads them
    for topic in (_topic((2, 2, 2)), _topic((2, 2, 1))):
        assert len(topics.read_all(cluster, topic)) == FULL * topics.ENTRIES_PER_LEDGER + 3
    # and none for ensembles of three bookies
    assert (totals["largest_ensemble"], totals["writable_bookies"]) == (3, 2)
    path = f"admin/v2/{topics.resource(_topic((3, 3, 2)))}/internalStats"
    assert not part_clients.http_any("GET", cluster.serving.admin, path).ok
