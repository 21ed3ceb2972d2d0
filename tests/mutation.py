"""Remove each safety line once, in a copy of the tree, and show which test notices: `python -m tests.mutation [words]`.

pytest does not collect this module. The exit code is 1 if a removed line goes unnoticed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from tests.brokers_mutations import BROKERS
from tests.brokers_mutations import TESTS as BROKERS_TESTS
from tests.client_mutations import CLIENT
from tests.client_mutations import TESTS as CLIENT_TESTS
from tests.hosts_mutations import HOSTS
from tests.hosts_mutations import TESTS as HOSTS_TESTS
from tests.lane_reader_mutations import LANE_READER
from tests.lane_reader_mutations import TESTS as LANE_READER_TESTS
from tests.lanes_mutations import LANES
from tests.lanes_mutations import TESTS as LANES_TESTS
from tests.live_store_mutations import LIVE_STORE
from tests.live_store_mutations import TESTS as LIVE_STORE_TESTS
from tests.queries_mutations import QUERIES
from tests.queries_mutations import TESTS as QUERIES_TESTS
from tests.rocketmq_mutations import ROCKETMQ
from tests.rocketmq_mutations import TESTS as ROCKETMQ_TESTS
from tests.segments_mutations import SEGMENTS
from tests.segments_mutations import TESTS as SEGMENTS_TESTS
from tests.snapshots_mutations import SNAPSHOTS_LINES, SNAPSHOTS_TESTS
from tests.source_mutations import SOURCE
from tests.source_mutations import TESTS as SOURCE_TESTS

ROOT = Path(__file__).parent.parent
NOTICED = ROOT / "tests/data/mutations.json"  # the test that noticed each line last
WORKERS = os.cpu_count() or 1
COPIED = ("udfs", "streaming", "tests", "bench", "clients", "conf", "deploy", "docs", "pyproject.toml")
# Folders, so that moved and new tests count.
UNIT_TESTS = tuple(
    f"tests/unit/{name}"
    for name in (
        "udfs",
        "sweep",
        "in_use",
        "limits",
        "coordination",
        "state",
        "deletion",
        "snapshots",
        "phase_one",
        "adapters/pulsar",
    )
)
UNIT_MARKS = ("-m", "not cluster and not slow")
UNIT = (*UNIT_TESTS, "tests/contract/test_coordination.py", *UNIT_MARKS)
MODEL = "tests/model/test_safety.py"
MODEL_EXAMPLES = "250"
AUDIT_PUBLICATION_TESTS = "tests/contract/test_audit_publication.py"
JUDGE_TESTS = ("tests/unit/udfs/verdicts/test_judge.py", "tests/model/test_windows.py")
MARKING_TESTS = "tests/unit/phase_one/watcher/marks/test_marking.py"
WATCHER_TESTS = "tests/unit/phase_one/watcher/test_watcher.py"
PAUSE_TESTS = ("tests/contract/test_coordination.py", "tests/unit/cli/test_control.py", "-m", "not cluster")


@dataclass(frozen=True, slots=True)
class Mutation:
    """The removal of a safety line."""

    line: str
    where: str  # a file or a folder
    before: str  # must occur exactly once in the file, or in all files of the folder
    after: str


JUDGE, REFERENCES, OWNERSHIP, SIGHTINGS = (
    f"udfs/{name}.py" for name in ("verdicts/judge", "owners/references", "owners/named_owner", "owners/sightings")
)
BLAST_RADIUS, DELETION = "udfs/blast_radius.py", "streaming/deletion"
SWEEP, IN_USE, COORDINATION, LIMITS = (f"streaming/{name}" for name in ("sweep", "in_use", "coordination", "limits"))
FILESYSTEM = "streaming/state/filesystem.py"
JOURNAL, REPLAY_TARGET = "streaming/state/journal.py", "udfs/requests/replay_target.py"
PUT_BACK = "streaming/snapshots/repair/restore.py"
GUARDING = "udfs/snapshots/guard_rules.py"
JUDGE_SNAPSHOT, SNAPSHOTS = "udfs/verdicts/judge_snapshot.py", "streaming/sweep/snapshots/snapshot_sweep.py"
WATCHER, MARKS = "streaming/phase_one/watcher", "streaming/phase_one/deletable_ledgers.py"
AHEAD = "udfs/phase_one/trim_forecast.py"
MASS_LOSS, OFFLOADS = "udfs/owners/mass_loss.py", "udfs/verdicts/judge_offload.py"

MUTATIONS = (
    Mutation(
        "a start that finds its port in use names the instance that runs",
        "streaming/cli/run_service.py",
        "            refuse_second(clients.store, settings.zookeeper.own_root, lock)",
        "            pass",
    ),
    Mutation(
        "explain waits for its rate before it lists a namespace",
        "streaming/audit/walk/owner_listing.py",
        "            pace.wait_for(len(folders))\n",
        "            pass\n",
    ),
    Mutation(
        "a token goes over TLS or to this machine",
        "streaming/config/hosts.py",
        'return is_tls(url) or _is_this_machine(urlsplit(url).hostname or "")',
        "return True",
    ),
    Mutation(
        "a name is this machine only by its addresses",
        "streaming/config/hosts.py",
        "return bool(addresses) and all(_is_loopback(address) for address in addresses)",
        "return any(_is_loopback(address) for address in addresses)",
    ),
    Mutation(
        "a token follows no redirect in clear text",
        "streaming/adapters/pulsar/http.py",
        "        if credentials.sends_secret and not may_carry_secret(url):",
        "        if False:",
    ),
    Mutation(
        "Pulsar's clients get a token in clear text only for brokers on this machine",
        "streaming/adapters/pulsar/publish.py",
        "    require_safe_secret(settings)\n",
        "",
    ),
    Mutation(
        "our own clients compare a broker's name with its certificate",
        "streaming/adapters/pulsar/tls.py",
        "context.check_hostname = tls.check_hostname",
        "context.check_hostname = False",
    ),
    Mutation(
        "pulsar-client compares a broker's name with its certificate",
        "streaming/adapters/pulsar/publish.py",
        'options["tls_validate_hostname"] = settings.tls_check_hostname',
        'options["tls_validate_hostname"] = False',
    ),
    Mutation(
        "over TLS the connector compares a broker's name with its certificate",
        "streaming/queries/streams.py",
        "verifies = pulsar.tls_check_hostname and is_tls(url)",
        "verifies = False",
    ),
    Mutation(
        "a token over pulsar+ssl needs a named authority",
        "streaming/config/combinations.py",
        'if not is_certificate and pulsar.service_url.startswith("pulsar+ssl:") and not pulsar.tls_trust_certs_file:',
        "if False:",
    ),
    Mutation(
        "a client secret goes over TLS or to this machine",
        "streaming/adapters/pulsar/oauth2.py",
        "    if not may_carry_secret(url):",
        "    if False:",
    ),
    Mutation(
        "a webhook's secret goes over TLS or to this machine",
        "streaming/adapters/webhook.py",
        'if (self.is_secret or "@" in parts.netloc) and not may_carry_secret(url):',
        "if False:",
    ),
    Mutation(
        "the reader of frames sends a secret over TLS or to this machine",
        "streaming/adapters/pulsar/readers/frames.py",
        "        if self._credentials.sends_secret and not may_carry_secret(self._url):",
        "        if False:",
    ),
    Mutation(
        "a ledger in use is kept", JUDGE, "    if refers_to(case.reference, case.request.ledger_id):", "    if False:"
    ),
    Mutation("an unreadable owner is in use", JUDGE, "if case.reference.presence is Presence.UNREADABLE:", "if False:"),
    Mutation(
        "the ledger itself names the owner",
        JUDGE,
        "_refused(case.request, case.ledger.metadata)\n        or _kept_by_state",
        "_kept_by_state",
    ),
    Mutation("only CLOSED ledgers", JUDGE, "    elif metadata.state is not LedgerState.CLOSED:", "    elif False:"),
    Mutation("never a ledger in recovery", JUDGE, "if metadata.state is LedgerState.OPEN and policy", "if policy"),
    Mutation("an age counts from the last change", "udfs/verdicts/ledger_facts.py", "max(times_ms)", "min(times_ms)"),
    Mutation("min_age", JUDGE, "if unchanged_ms < policy.min_age_ms:", "if False:"),
    Mutation(
        "quarantine above the newest published ledger",
        JUDGE,
        "    if is_above_newest(case.request, case.reference) and",
        "    if False and",
    ),
    Mutation(
        "quarantine of ledgers that are closed before they are referred to",
        JUDGE,
        "    if may_be_unnamed or component in _CLOSED_BEFORE_REFERENCED:",
        "    if may_be_unnamed:",
    ),
    Mutation(
        "quarantine of a cursor's ledger",
        JUDGE,
        "may_be_unnamed = component is LedgerComponent.MANAGED_CURSOR or metadata",
        "may_be_unnamed = metadata",
    ),
    Mutation(
        "quarantine of a closed ledger without entries",
        JUDGE,
        " or metadata.last_entry_id < 0\n",
        "\n",
    ),
    Mutation("absence found twice", JUDGE, "    if is_gone:\n", "    if False:\n"),
    Mutation("the interval between two sightings", JUDGE, ">= policy.absence_interval_ms", ">= 0"),
    Mutation(
        "an OPEN ledger's owner names a newer ledger",
        JUDGE,
        " and case.request.ledger_id < case.reference.newest_id",
        "",
    ),
    Mutation(
        "a newer ledger proves OPEN ledgers unused only if their owner writes ledgers in order",
        JUDGE,
        "case.request.component in _WRITTEN_IN_ORDER and case",
        "case",
    ),
    Mutation(
        "the quiet period of OPEN ledgers",
        JUDGE,
        "max(policy.open_quiet_ms, policy.above_newest_quarantine_ms)",
        "policy.above_newest_quarantine_ms",
    ),
    Mutation(
        "the quarantine of OPEN ledgers, whose owner's versions may repeat",
        JUDGE,
        "max(policy.open_quiet_ms, policy.above_newest_quarantine_ms)",
        "policy.open_quiet_ms",
    ),
    Mutation(
        "waiting for an OPEN ledger's quiet period costs no try",
        "udfs/requests/retry.py",
        " or verdict.wait_ms > 0:",
        ":",
    ),
    Mutation(
        "an OPEN ledger is tried again when its quiet period is over, in a week at the latest",
        "udfs/requests/retry.py",
        "verdict.wait_ms), MAX_DELAY_MS)",
        "verdict.wait_ms), 1 << 60)",
    ),
    Mutation(
        "of two keys for OPEN ledgers the longer period counts",
        "streaming/config/sections.py",
        'f"{max(old, new)}s" if old and new else "never"',
        'f"{min(old, new)}s"',
    ),
    Mutation(
        "an owner that shrank keeps all its ledgers",
        JUDGE,
        "        or kept_by_shrinkage(case.reference, case.baseline, policy)\n",
        "",
    ),
    Mutation("a list that shrank is no new baseline", IN_USE, "and not self._is_less(key, now)", ""),
    Mutation(
        "a baseline is not read while it changes",
        IN_USE,
        "        with self._lock:\n            for key, now in named:\n",
        "        if True:\n            for key, now in named:\n",
    ),
    Mutation("the loss of most owners at once is doubted", MASS_LOSS, "if total.gone > above and", "if False and"),
    Mutation(
        "the loss of most other tenants' owners is doubted, too",
        MASS_LOSS,
        "if others.gone > min(",
        "if False and min(",
    ),
    Mutation("the tenant that lost most is always held", MASS_LOSS, "        doubted.add(worst)\n", ""),
    Mutation("a tenant that lost most of its owners is doubted", MASS_LOSS, "if lost.gone > above and", "if False and"),
    Mutation(
        "a loss that may be ours stops everything",
        f"{IN_USE}/missing.py",
        "return not self.ours and len(self.tenants) <= 1",
        "return len(self.tenants) <= 1",
    ),
    Mutation(
        "losses of several tenants stop everything",
        f"{IN_USE}/missing.py",
        "return not self.ours and len(self.tenants) <= 1",
        "return not self.ours",
    ),
    Mutation(
        "losses of one tenant after the other stop everything",
        DELETION,
        "return (held | missing.tenants.keys()) - PULSARS_TENANTS",
        "return missing.tenants.keys() - PULSARS_TENANTS",
    ),
    Mutation(
        "nothing of a held tenant is swept",
        SWEEP,
        "for at, job in jobs.items() if at not in held}",
        "for at, job in jobs.items()}",
    ),
    Mutation("a tenant that is doubted is held", DELETION, "        if doubts.tenants:\n", "        if False:\n"),
    Mutation(
        "a doubt about all tenants waits for the operator",
        DELETION,
        "        if doubts.everything:\n",
        "        if False:\n",
    ),
    Mutation(
        "nothing is read for a sender without rights",
        "streaming/sweep/messages.py",
        "if isinstance(request, PendingDelete):",
        "if row[c.REFERENCE_KEY]:",
    ),
    Mutation(
        "a tenant's topic names only the tenant's own ledgers",
        "udfs/requests/admission.py",
        "if tenant not in admission.trusted_tenants and",
        "if False and",
    ),
    Mutation(
        "a namespace's lane names only the namespace's own ledgers",
        "udfs/requests/admission.py",
        "if admission.is_lane(requester) and",
        "if False and",
    ),
    Mutation(
        "no deleted tenant is created again for a lane",
        "streaming/topics/setup.py",
        "admin.ensure_namespace(lane, with_tenant=False)",
        "admin.ensure_namespace(lane)",
    ),
    Mutation(
        "requests without a lane use the shared topic only if the operator allows it",
        "streaming/topics/routing.py",
        "if not self._topics.shared_without_lane:\n            raise error",
        "if False:\n            raise error",
    ),
    Mutation(
        "a publication is finished only if all its requests were sent",
        "streaming/audit/publication/orphan_requests.py",
        "if not unsent:\n",
        "if True:\n",
    ),
    Mutation(
        "a lane that fails stops no other tenant's publication",
        "streaming/audit/publication/send.py",
        "if not self._settings.topics.is_lane(lane) or self._failures",
        "if True or self._failures",
    ),
    Mutation(
        "requests to a lane that was deleted do not count as sent",
        "streaming/topics/routing.py",
        "            self._check(topic)\n",
        "            pass\n",
    ),
    Mutation(
        "a request topic has its own rights",
        "udfs/requests/admission.py",
        "if admission.is_request_topic(read_from):",
        "if False:",
    ),
    Mutation(
        "properties of messages in a request topic are ignored",
        "streaming/sweep/messages.py",
        "is_ours = self._query != REQUESTS and not fault",
        "is_ours = not fault",
    ),
    Mutation(
        "the sender's rights are checked",
        SWEEP,
        "answer = admit(request, topic, self._admission)",
        "answer = request",
    ),
    Mutation(
        "an answer about an owner's rights is of that owner",
        SWEEP,
        "key = request.managed_ledger, request.component, topic",
        'key = "", request.component, topic',
    ),
    Mutation(
        "an answer about a component's rights is of that component",
        SWEEP,
        "key = request.managed_ledger, request.component, topic",
        "key = request.managed_ledger, LedgerComponent.MANAGED_LEDGER, topic",
    ),
    Mutation(
        "an answer about a topic's rights is of that topic",
        SWEEP,
        "key = request.managed_ledger, request.component, topic",
        'key = request.managed_ledger, request.component, ""',
    ),
    Mutation(
        "a payload that is too large is not parsed",
        "udfs/requests/request_format.py",
        "    if len(payload) > most_bytes:",
        "    if False:",
    ),
    Mutation(
        "a cut request keeps its topic, and with it its rights",
        "udfs/requests/retry.py",
        "return name in (REAL_TOPIC, REASON) or (",
        "return name == REASON or (",
    ),
    Mutation(
        "limits of an owner",
        BLAST_RADIUS,
        "if in_all > limits.per_hour_per_owner:",
        "if False:",
    ),
    Mutation("limits of a batch", BLAST_RADIUS, "if batch + coming > limits.per_batch:", "if False:"),
    Mutation(
        "deletes of an interrupted chunk",
        BLAST_RADIUS,
        "return replace(state, is_unfinished=True)",
        "return state",
    ),
    Mutation(
        "a resume allows only what the operator has seen",
        BLAST_RADIUS,
        "if state.granted == subject else",
        "if state.granted else",
    ),
    Mutation(
        "a limit stops the work",
        DELETION,
        "        if why:\n            self._hold",
        "        if False:\n            self._hold",
    ),
    Mutation(
        "a pause that another operator set is not taken over",
        "streaming/coordination/pause.py",
        "            if present is not None and not force:",
        "            if False:",
    ),
    Mutation(
        "an operator ends only the pause that was read",
        "streaming/coordination/pause.py",
        "_ENDED, version=pause.version)",
        "_ENDED)",
    ),
    Mutation(
        "a pause lasts until its end by the agreed time",
        "streaming/coordination/pause.py",
        "or agreed_ms() < present.until_ms",
        "or False",
    ),
    Mutation(
        "a tenant that is held while another is released stays held",
        "streaming/limits/tenants.py",
        "self.store.set_data(self.path, data, version=version)",
        "self.store.set_data(self.path, data)",
    ),
    Mutation(
        "a resume releases only the tenant that it names",
        "streaming/limits/tenants.py",
        "if name != tenant}",
        "if False}",
    ),
    Mutation(
        "a mark before the first copy",
        DELETION,
        "self.coordination.mark_published(str(Mark(self.receipts.table_id, self._published, chunk)))",
        "pass",
    ),
    Mutation("receipts that are older than their mark", DELETION, "if self.started > newest_chunk:", "if False:"),
    Mutation("receipts that are older than a partition", DELETION, "if chunk_of(last) > newest_chunk:", "if False:"),
    Mutation(
        "copies that brokers forgot are searched",
        DELETION,
        "stored = self.copies.stored(forgotten, table_id, self.receipts.started_ms(chunk) - _CLOCKS_DIFFER_MS)",
        "stored: dict[str, int] = {}",
    ),
    Mutation(
        "each retry of a publication reads the stored copies",
        f"{DELETION}/chunks/outbox.py",
        "            self._started = chunk\n",
        "            pass\n",
    ),
    Mutation(
        "no copy follows a lost copy",
        "streaming/adapters/pulsar/publish.py",
        "            return self._failure is None\n",
        "            return True\n",
    ),
    Mutation(
        "a resumed publication of an audit sends each request that is not stored",
        "streaming/topics/stored.py",
        "return number in self.numbers or",
        "return number <= max(self.numbers, default=-1) or",
    ),
    Mutation(
        "a resumed publication of an audit repeats no request that may have been trimmed",
        "streaming/topics/stored.py",
        "0 if after[0] in ledgers else min(numbers, default=0)",
        "0",
    ),
    Mutation(
        "a stored copy is not sent again", DELETION, "            if number <= last:\n", "            if False:\n"
    ),
    Mutation(
        "a sequence id belongs to a single row",
        DELETION,
        " or not 0 <= index < MAX_ROWS_PER_CHUNK:",
        ":",
    ),
    Mutation("another run's chunk stops this one", DELETION, "if summary.epochs != {self.epoch}:", "if False:"),
    Mutation("a chunk that ran twice is doubted", DELETION, "is_doubtful = any(", "is_doubtful = False and any("),
    Mutation("a chunk is counted once", DELETION, "        if self._counted < chunk:\n", "        if True:\n"),
    Mutation(
        "a forged number is bounded", "udfs/requests/retry.py", 'min(int(digits or "0"), largest)', 'int(digits or "0")'
    ),
    Mutation(
        "no chunk overtakes another",
        DELETION,
        "            self._finish_interrupted()\n            started_ms",
        "            started_ms",
    ),
    Mutation(
        "an interrupted chunk is published though no chunk follows",
        DELETION,
        "                self._finish_interrupted()\n",
        "                pass\n",
    ),
    Mutation(
        "a replaced instance publishes nothing",
        DELETION,
        "            self.gate.refuse_if_outdated()  #",
        "            #",
    ),
    Mutation("deletes before a kill", LIMITS, "if not isinstance(node, Znode))", "if False)"),
    Mutation("topics of Pulsar's own", "udfs/requests/topic_pattern.py", "tenant not in PULSARS_TENANTS and ", ""),
    Mutation("the earlier of two clocks", COORDINATION, "_Reading(min(local_ms, node.mtime_ms),", "_Reading(local_ms,"),
    Mutation("the later clock names the journal's days", JOURNAL, "_day(now_ms + self._ahead_ms)", "_day(now_ms)"),
    Mutation(
        "a receipt after a young receipt stays",
        "streaming/state/receipts.py",
        "else min(first_young, _newest_chunk(table))",
        "else _newest_chunk(table)",
    ),
    Mutation(
        "a clock that goes back hides no try from the journal",
        BLAST_RADIUS,
        "since_ms = min(since_ms, state.since_ms)",
        "since_ms = state.since_ms",
    ),
    Mutation(
        "a resume by a clock that is ahead proves nothing",
        BLAST_RADIUS,
        "event.granted_ms if event.granted_ms <= event.now_ms else 0",
        "event.granted_ms",
    ),
    Mutation("a new plan ends the previous plan", f"{COORDINATION}/plans.py", "        store.delete(plan)\n", ""),
    Mutation("a sighting expires", JUDGE, "<= expires_ms", "<= 1 << 60"),
    Mutation(
        "compacted ledgers seen unreferenced twice",
        JUDGE,
        "if case.request.component is LedgerComponent.COMPACTED_LEDGER:",
        "if False:",
    ),
    Mutation("a sighting is signed", SIGHTINGS, "if hmac.compare_digest(", "if True or hmac.compare_digest("),
    Mutation(
        "a missing name is no wildcard",
        OWNERSHIP,
        "if requested is None or requested != recorded:",
        "if requested != recorded:",
    ),
    Mutation("a cursor's ledger is no data ledger", OWNERSHIP, "if CURSOR in custom and", "if False and"),
    Mutation(
        "the operator declared the owner of BookKeeper",
        COORDINATION,
        "if not settings.safety.exclusive_bookkeeper:",
        "if False:",
    ),
    Mutation(
        "the operator declared other clusters that offload", COORDINATION, "if not bucket.is_declared", "if False"
    ),
    Mutation(
        "clusters may have the same name unless the operator declared otherwise",
        "streaming/config/policies.py",
        "bool(entry.cluster_names_are_unique)",
        "True",
    ),
    Mutation("the brokers write to this ZooKeeper", COORDINATION, "_newest(view) in listed", "listed"),
    Mutation(
        "a compaction's cursor that is not open proves nothing",
        REFERENCES,
        "if cursors and COMPACTION_CURSOR not in broker.cursors:",
        "if False:",
    ),
    Mutation(
        "a broker with an older list proves nothing about compacted ledgers",
        REFERENCES,
        "if newest_id >= 0 and newest_id not in broker.ledgers:",
        "if False:",
    ),
    Mutation("an unreadable znode makes the reference unreadable", REFERENCES, "[s for s in seen if s.error]", "[]"),
    Mutation(
        "a silent broker makes the reference unreadable",
        REFERENCES,
        "if broker is not None and broker.presence is Presence.UNREADABLE:",
        "if False:",
    ),
    Mutation(
        "absence needs the broker's answer",
        REFERENCES,
        "    if broker.presence is Presence.PRESENT and not is_deleted:",
        "    if False and not is_deleted:",
    ),
    Mutation(
        "a broker without a request proves nothing",
        REFERENCES,
        "    if broker is None:\n        return _unreadable(",
        "    broker = broker or BrokerView(Presence.GONE)\n    if not key:\n        return _unreadable(",
    ),
    Mutation("both witnesses are united (data)", REFERENCES, "        if extra:", "        if False:"),
    Mutation("both witnesses are united (others)", REFERENCES, "{*written, *remembered} - {-1}", "{*written} - {-1}"),
    Mutation(
        "the newest ledger is the newest that znodes name",
        REFERENCES,
        "newest_id=listed.newest_id,",
        "newest_id=max(listed.newest_id, *(broker.ledgers if broker else ()), -1),",
    ),
    Mutation(
        "buckets have no newest ledger", REFERENCES, "return ids, set(), -1", "return ids, set(), max(ids, default=-1)"
    ),
    Mutation(
        "an offloaded ledger needs both marks (T1)",
        "udfs/formats/managed_ledger.py",
        "context.complete and context.bookkeeperDeleted",
        "context.bookkeeperDeleted",
    ),
    Mutation(
        "the delete checks the owner's version",
        SWEEP,
        "GuardedDelete((epoch, *checks), deletes)",
        "GuardedDelete((epoch,), deletes)",
    ),
    Mutation(
        "the delete checks the epoch",
        SWEEP,
        "GuardedDelete((epoch, *checks), deletes)",
        "GuardedDelete(checks, deletes)",
    ),
    Mutation("the delete checks the ledger's version", SWEEP, "read_node(nodes, job.path).version)", "-1)"),
    Mutation(
        "guards carry the versions that were judged",
        SWEEP,
        "for group in in_groups(guards_of(deletable, nodes, self._rules.epoch), limiter):",
        "for group in ([guards_of([o], nodes, self._rules.epoch)[0]] for o in deletable"
        " if [setattr(o, 'judged_on', references[o.key])]):",
    ),
    Mutation("journal before delete", SWEEP, "            self._journal.write(entries)", "            del entries"),
    Mutation(
        "DELETED means read again and absent",
        SWEEP,
        "            if node is not None:\n                job.later",
        "            if False:\n                job.later",
    ),
    Mutation(
        "after a lost answer the ledger is read again",
        SWEEP,
        "if result.status is GuardStatus.DELETED:",
        "if result.status in (GuardStatus.DELETED, GuardStatus.UNKNOWN):",
    ),
    Mutation(
        "duplicates are processed once",
        SWEEP,
        "[(job.path, job.rests_on) for job in opened]",
        "[(job.path, (*job.rests_on[:2], id(job))) for job in opened]",
    ),
    Mutation("a replaced instance stops", SWEEP, "if result.path == self._rules.epoch[0]:", "if False:"),
    Mutation(
        "another owner's request does not answer for this request",
        "streaming/sweep/jobs.py",
        "return self.key, self.request.managed_ledger, self.given.absent_since_ms",
        'return "", "", None',
    ),
    Mutation(
        "a ledger with two valid requests is deleted once",
        "streaming/sweep/jobs.py",
        "if first.setdefault(name_of(job), job) is not job:",
        "if first.setdefault(f'{name_of(job)}{id(job)}', job) is not job:",
    ),
    Mutation("only a ledger's owner reports it missing", SWEEP, " and not job.is_anothers", ""),
    Mutation(
        "a cluster's name proves nothing if another cluster may have the same name",
        OFFLOADS,
        "if not (case.exclusive or case.cluster_names_are_unique):",
        "if False:",
    ),
    Mutation(
        "parts of an upload prove their owner", OFFLOADS, "        return _unproven_parts(case)", "        return None"
    ),
    Mutation(
        "BookKeeper's metadata name the owner of an upload",
        OFFLOADS,
        "for metadata in (case.objects.metadata, case.objects.ledger):",
        "for metadata in (case.objects.metadata,):",
    ),
    Mutation(
        "the copy of an offloaded ledger is deleted only if tiered storage has the ledger",
        JUDGE,
        "(case.unconfirmed if is_given_up(case.reference, case.request.ledger_id) else None)",
        "None",
    ),
    Mutation(
        "an object that does not exist confirms nothing",
        "streaming/sweep/tiered_storage/offloaded.py",
        "    if head is None:",
        "    if False:",
    ),
    Mutation(
        "every upload of a ledger is requested",
        "streaming/sweep/tiered_storage/offloaded.py",
        "is_whole = bool(uuids) and len(located) == len(uuids)",
        "is_whole = True",
    ),
    Mutation(
        "a cursor that no request could name does not count as watched",
        "udfs/phase_one/vanished_names.py",
        "        if encode_cursor(cursor) != cursor:\n",
        "        if False:\n",
    ),
    Mutation(
        "a compacted ledger needs brokers that know its topic",
        "streaming/in_use/loader.py",
        "        existing -= compacted\n",
        "",
    ),
    Mutation(
        "only a znode that was read shows that a topic exists",
        "streaming/in_use/loader.py",
        "topics.items() if any(znodes[path].data is not None for path in paths[key])}",
        "topics.items()}",
    ),
    Mutation(
        "the policies of all namespaces share one deadline",
        "streaming/sweep/tiered_storage/buckets.py",
        "            wait(futures.values(), self.patience_seconds)\n",
        "            wait(futures.values())\n",
    ),
    Mutation(
        "hanging policies of a tenant delay no other tenant's",
        "streaming/sweep/tiered_storage/buckets.py",
        "sorted(turns, key=turns.__getitem__)",
        "list(turns)",
    ),
    Mutation(
        "the end of a task does not wait for hanging policies",
        "streaming/sweep/tiered_storage/buckets.py",
        "pool.shutdown(wait=False, cancel_futures=True)",
        "pool.shutdown(cancel_futures=True)",
    ),
    Mutation(
        "an unreadable policy of a namespace affects only its own requests",
        "streaming/sweep/tiered_storage/buckets.py",
        "        except UnavailableError as error:\n            return Verdict(Outcome.RETRY",
        "        except NotImplementedError as error:\n            return Verdict(Outcome.RETRY",
    ),
    Mutation(
        "a delete carries the ETag of the object that was judged",
        "streaming/sweep/tiered_storage/offload_steps.py",
        "if store.compares_etags() else {}",
        "if False else {}",
    ),
    Mutation(
        "an object that was stored again is not reported as deleted",
        "streaming/sweep/tiered_storage/offload_steps.py",
        "if errors.get(key) == CHANGED and key in there:",
        "if False:",
    ),
    Mutation(
        "a store is tried before its comparison of ETags is relied on",
        "streaming/adapters/s3/etags.py",
        "compares = is_kept and not",
        "compares = not",
    ),
    Mutation("our cluster's name is not guessed", OFFLOADS, "    if policy.cluster_unread:", "    if False:"),
    Mutation("a ledger that was not read proves no upload", OFFLOADS, "    if objects.ledger_unread:", "    if False:"),
    Mutation(
        "a cached reference answers only when PRESENT",
        SWEEP,
        "if reference is None or reference.presence is not Presence.PRESENT:",
        "if reference is None:",
    ),
    Mutation(
        "a cached reference does not answer for newer ledgers",
        SWEEP,
        "return not is_above_newest(job.request, reference)",
        "return True",
    ),
    Mutation(
        "a cached reference does not answer for compacted ledgers",
        SWEEP,
        "if job.request.component is LedgerComponent.COMPACTED_LEDGER:",
        "if False:",
    ),
    Mutation(
        "unlisted cursors make the reference unreadable",
        IN_USE,
        'error="" if is_absent else "its cursors could not be listed"',
        'error=""',
    ),
    Mutation(
        "a schema's broker is read",
        IN_USE,
        "_views_by_key(schemas, self._broker.schema_views)",
        "_views_by_key(schemas, lambda names: [BrokerView(Presence.GONE)] * len(names))",
    ),
    Mutation("the cache keeps only what is PRESENT", IN_USE, " or entry.presence is not Presence.PRESENT", ""),
    Mutation("ages are never understated", IN_USE, "read_at_ms=now_ms)", "read_at_ms=self._clock.now_ms())"),
    Mutation(
        "a kept ledger is checked again",
        SWEEP,
        "        self._confirm_kept([job for job in leads.values() if job.is_kept], references)\n",
        "",
    ),
    Mutation(
        "a missing ledger is reported for its owner",
        SWEEP,
        "            if refers_to(references[job.key], job.request.ledger_id):\n",
        "            if job:\n",
    ),
    Mutation(
        "an upload that is listed is in use (T2)",
        "udfs/verdicts/judge_offload.py",
        "if (case.request.ledger_id, context.uuid) in case.reference.offloads:",
        "if False:",
    ),
    Mutation(
        "owners of objects are checked again",
        SWEEP,
        "        self._judge_changed(deletable, references)\n",
        "",
    ),
    Mutation(
        "the journal precedes deletes of objects",
        SWEEP,
        "        self._journal.write_objects([_entry(job, references[job.key]) for job in deletable])\n",
        "",
    ),
    Mutation("the journal is on disk", FILESYSTEM, "            self._flush(unfinished)", "            pass"),
    Mutation("the journal's folders are on disk", FILESYSTEM, "                self._flush(folder)\n", ""),
    Mutation("the state's own folder is on disk", FILESYSTEM, "            self._flush(self.root)\n", ""),
    Mutation("a replay overwrites nothing", JOURNAL, "-{uuid4().hex}.parquet", ".parquet"),
    Mutation(
        "only a receipt proves the origin of a dead letter",
        REPLAY_TARGET,
        "    target = to or proven\n",
        "    target = to or proven or origin.said\n",
    ),
    Mutation("a dead letter gets no more rights than it had", REPLAY_TARGET, "else MORE_RIGHTS\n", 'else ""\n'),
    Mutation(
        "a refused letter that nothing proves becomes no trusted request",
        REPLAY_TARGET,
        "    if not proven and origin.is_other_tenants and trusted:\n",
        "    if False:\n",
    ),
    Mutation(
        "a snapshot's topic is gone only if both sources agree",
        "udfs/snapshots/topic_findings.py",
        "    if (facts.in_metadata, facts.at_broker) == (Presence.GONE, Presence.GONE):\n",
        "    if facts.in_metadata is Presence.GONE:\n",
    ),
    Mutation(
        "an index that can't be read makes no segment an orphan",
        "udfs/snapshots/topic_findings.py",
        "    if facts.index is IndexState.READABLE:\n        yield from _not_named(facts)\n",
        "    yield from _not_named(facts)\n",
    ),
    Mutation(
        "a message is a value only if its schema is the brokers'",
        "udfs/snapshots/values.py",
        "    if origin is not SchemaOrigin.BROKERS:\n",
        "    if False:\n",
    ),
    Mutation(
        "a value belongs to its key",
        "udfs/snapshots/values.py",
        "    if value.topic != about.topic or (",
        "    if False and (",
    ),
    Mutation(
        "an index that can't be read holds the guard", GUARDING, "        if hold.fault:\n", "        if False:\n"
    ),
    Mutation(
        "a segment whose index is not written yet holds the guard",
        GUARDING,
        "    return hold is None or segment.sequence > hold.last\n",
        "    return False\n",
    ),
    Mutation(
        "a guard may pass only messages from before the indexes were read",
        "streaming/snapshots/guard/guards.py",
        "index_bound(holds.by_topic, stats.last)",
        "index_bound(holds.by_topic, (1 << 62, 0))",
    ),
    Mutation(
        "a guard that went too far is moved back",
        "streaming/snapshots/guard/guards.py",
        "        if moved >= (bound.position[0], max(bound.position[1], 0)):",
        "        if False:",
    ),
    Mutation(
        "silence does not prove the end of a compacted topic",
        "streaming/adapters/pulsar/snapshots/compacted.py",
        "    if left.is_nothing:\n        return\n    if left.compacted > 0:\n",
        "    if True:\n        return\n    if left.compacted > 0:\n",
    ),
    Mutation(
        "a working topic is not repaired",
        "udfs/snapshots/repair_rules.py",
        "    if facts.buffer is not None and facts.buffer.state == READY:\n",
        "    if False:\n",
    ),
    Mutation(
        "an index that a broker wrote in the meantime is not replaced",
        "streaming/snapshots/repair/steps.py",
        "or old.position != state.index.position:\n",
        "or False:\n",
    ),
    Mutation(
        "an owner that could not be read keeps its snapshots",
        JUDGE_SNAPSHOT,
        "    if case.reference.presence is Presence.UNREADABLE:\n",
        "    if False:\n",
    ),
    Mutation(
        "a topic that exists keeps its index and its single snapshot",
        JUDGE_SNAPSHOT,
        '        return _later(Reason.IN_USE, "its topic exists, and may read the message whenever it is loaded")\n',
        "        return None\n",
    ),
    Mutation(
        "a segment that the index names stays",
        JUDGE_SNAPSHOT,
        "    if number in case.index.numbers or position in case.index.places:\n",
        "    if False:\n",
    ),
    Mutation(
        "a segment that the index may still name stays",
        JUDGE_SNAPSHOT,
        "    if number > max(case.index.numbers, default=-1):\n",
        "    if False:\n",
    ),
    Mutation(
        "without a readable index every segment stays",
        JUDGE_SNAPSHOT,
        "    if case.index.standing is not IndexState.READABLE:\n",
        "    if False:\n",
    ),
    Mutation(
        "only the requested value gets a tombstone",
        JUDGE_SNAPSHOT,
        "    if case.latest.position != (case.request.ledger_id, context.entry_id):\n",
        "    if False:\n",
    ),
    Mutation(
        "a value of another Pulsar version is not refused for good",
        JUDGE_SNAPSHOT,
        "    if case.latest.fault == Fault.UNKNOWN_SCHEMA:\n",
        "    if False:\n",
    ),
    Mutation("a value that no broker wrote stays", JUDGE_SNAPSHOT, "    if case.latest.fault:\n", "    if False:\n"),
    Mutation("a young snapshot stays", JUDGE_SNAPSHOT, "    if age_ms < (", "    if False and age_ms < ("),
    Mutation(
        "no segment is removed while the others are unguarded",
        JUDGE_SNAPSHOT,
        "    if needs_guard(context.kind) and not case.is_guarded:\n",
        "    if False:\n",
    ),
    Mutation(
        "an index is removed after its segments",
        JUDGE_SNAPSHOT,
        "    if context.kind == SnapshotKind.INDEX and case.segments:\n",
        "    if False:\n",
    ),
    Mutation(
        "a snapshot is removed after the second check",
        JUDGE_SNAPSHOT,
        "    if is_second_look(case.absent_since_ms, policy, now_ms=now_ms):\n",
        "    if True:\n",
    ),
    Mutation(
        "a tombstone comes after the journal",
        SNAPSHOTS,
        "        self._journal.write_snapshots([job.journal_entry(namespace.name) for job in deletable])\n",
        "",
    ),
    Mutation(
        "an instance that was replaced sends no tombstone",
        SNAPSHOTS,
        "        if self._rules.epoch not in holding:\n",
        "        if False:\n",
    ),
    Mutation(
        "the owner is read again before each tombstone",
        SNAPSHOTS,
        "        if not self._is_as_judged(job):\n",
        "        if False:\n",
    ),
    Mutation(
        "a value written before our tombstone is published again",
        SNAPSHOTS,
        "        if between or changes.name(job) or not self._is_as_judged(job):\n",
        "        if changes.name(job) or not self._is_as_judged(job):\n",
    ),
    Mutation(
        "a segment that a new index names is published again",
        SNAPSHOTS,
        "        if between or changes.name(job) or not self._is_as_judged(job):\n",
        "        if between or not self._is_as_judged(job):\n",
    ),
    Mutation(
        "the snapshot of a topic that was created again is published again",
        SNAPSHOTS,
        "        if between or changes.name(job) or not self._is_as_judged(job):\n",
        "        if between or changes.name(job):\n",
    ),
    Mutation(
        "DELETED means that the tombstone was found",
        SNAPSHOTS,
        "        elif not any(read.is_null and read.position == job.sent_at for read in written):\n",
        "        elif False:\n",
    ),
    Mutation(
        "a newer value after our tombstone is left as it is",
        SNAPSHOTS,
        "        if written and not written[-1].is_null:\n            job.later(",
        "        if False:\n            job.later(",
    ),
    Mutation(
        "a republished message replaces no value that came right before it",
        SNAPSHOTS,
        "            data = theirs[-1].data\n",
        "            break\n",
    ),
    Mutation(
        "the next scan restores the message of a tombstone that was not verified",
        SNAPSHOTS,
        "        self._restore_missing(namespace, kind, jobs, scan)\n",
        "",
    ),
    Mutation(
        "a tombstone counts as sent before it is tried",
        SNAPSHOTS,
        "        job.is_unsettled = True\n        job.sent_at = namespace.send(job.kind, job.context.key, None)\n",
        "        sent.remove(job)\n        job.sent_at = namespace.send(job.kind, job.context.key, None)\n"
        "        sent.append(job)\n        job.is_unsettled = True\n",
    ),
    Mutation(
        "nothing is compacted while a tombstone is unsettled",
        SNAPSHOTS,
        "    if any(job.is_unsettled for job in jobs):\n",
        "    if False:\n",
    ),
    Mutation(
        "a value that was written last is not replaced",
        SNAPSHOTS,
        "            if written and not written[-1].is_null:\n",
        "            if False:\n",
    ),
    Mutation(
        "a tombstone that is not ours is left as it is",
        SNAPSHOTS,
        "            if job.context.key not in journaled:\n                continue  #",
        "            journaled = {job.context.key: (BEFORE_ALL, job.data), **journaled}  #",
    ),
    Mutation(
        "a topic that can't be trimmed does not stop the others",
        "streaming/snapshots/removal/trim.py",
        "        except ReaperError as error:\n",
        "        except SafetyError as error:\n",
    ),
    Mutation(
        "a topic that was not trimmed is no success",
        "streaming/cli/snapshots.py",
        "    if left:\n",
        "    if False:\n",
    ),
    Mutation(
        "a restored index names only segments that the guard keeps",
        PUT_BACK,
        "isinstance(read.value, Segment) and read.position > guard\n",
        "isinstance(read.value, Segment)\n",
    ),
    Mutation(
        "a restored message never replaces a value",
        PUT_BACK,
        "                    if key in kept:\n",
        "                    if False:\n",
    ),
    Mutation(
        "after a repair no reader gets aborted messages",
        "streaming/snapshots/repair/finish.py",
        "                if transaction is not None and transaction in known:\n",
        "                if False:\n",
    ),
    Mutation(
        "a segment is published again only with the marker that the index names",
        "streaming/snapshots/repair/topic_session.py",
        "{(number, value.marker): value for number, value in latest.items() if (number, value.marker) in named}",
        "{name: latest[name[0]] for name in named if name[0] in latest}",
    ),
    Mutation(
        "if a number names two segments, neither is published again",
        "streaming/snapshots/repair/steps.py",
        "    if len({segment.sequence for segment in state.facts.named}) < len(state.facts.named):\n",
        "    if False:\n",
    ),
    Mutation(
        "a restored segment is guarded first",
        PUT_BACK,
        "        guard = self.guard(namespace)\n",
        "        guard = (-1, -1)\n",
    ),
    Mutation(
        "nothing is restored for a loaded topic",
        PUT_BACK,
        "        if self.is_loaded(topic):\n",
        "        if False:\n",
    ),
    Mutation(
        "an index is restored only if its topic was not loaded in the meantime",
        PUT_BACK,
        "                        self._refuse_loaded(topic)\n",
        "                        pass\n",
    ),
    Mutation(
        "an index with missing segments is refused before anything is sent",
        PUT_BACK,
        "        if lost:\n",
        "        if False:\n",
    ),
    Mutation(
        "a restored segment replaces only a segment with its own marker",
        PUT_BACK,
        "            if (number, marker) not in there and",
        "            if number not in dict(there) and",
    ),
    Mutation(
        "an index with missing segments is not restored",
        PUT_BACK,
        "in rows if not _is_at(position, number, stored)]",
        "in rows if (number, marker) in now and not _is_at(position, number, stored)]",
    ),
    Mutation(
        "an undo keeps what it replaces",
        "streaming/snapshots/repair/repair_undo.py",
        "        kept = session.record(now, old, Act.UNDO)\n",
        '        kept = ""\n',
    ),
    Mutation(
        "an undo does not replace messages written while the topic was unloaded",
        "streaming/snapshots/repair/repair_undo.py",
        "        if now.position != seen.position:\n",
        "        if False:\n",
    ),
    Mutation(
        "an undo replaces nothing that it can't journal",
        "streaming/snapshots/repair/topic_session.py",
        "        if not isinstance(index.value, Index):\n",
        "        if False:\n",
    ),
    Mutation(
        "the ids of the old tail are checked after a repair",
        "udfs/snapshots/repair_rules.py",
        "    known.update(tail.pairs())\n",
        "    known.update(())\n",
    ),
    Mutation(
        "a repair without known old ids is not verified",
        "udfs/snapshots/repair_rules.py",
        "    if not ids.known:\n",
        "    if False:\n",
    ),
    Mutation(
        "a repair without some of the old ids is not verified",
        "udfs/snapshots/repair_rules.py",
        "    if ids.unknown:\n",
        "    if False:\n",
    ),
    Mutation(
        "silence is no end of a repaired topic",
        "streaming/snapshots/repair/wiring.py",
        "        if end is not None and (at >= end or end[1] < 0):\n",
        "        if True:\n",
    ),
    Mutation(
        "a repair that is not verified exits with 4",
        "streaming/cli/snapshots.py",
        "    if done.not_verified:\n",
        "    if False:\n",
    ),
    Mutation(
        "check compares the guard's position",
        "streaming/snapshots/guard/check_line.py",
        "            if not is_guarded(topics, namespace):\n",
        "            if False:\n",
    ),
    Mutation(
        "a guard that was moved too far is moved back by the next run",
        "streaming/snapshots/guard/guards.py",
        "        if lowest is not None and guarded.position >= lowest:\n",
        "        if False:\n",
    ),
    Mutation(
        "a guard counts only before all segments that indexes name",
        "streaming/adapters/pulsar/snapshots/snapshot_store.py",
        "    return lowest is None or stats.mark_deleted(GUARD) < lowest\n",
        "    return True\n",
    ),
    Mutation(
        "if ids are in several segments, nothing is trimmed",
        "streaming/snapshots/removal/trim.py",
        "    if facts.doubled_ids:\n",
        "    if False:\n",
    ),
    Mutation(
        "a segment that no broker can read at its position is lost",
        "streaming/adapters/pulsar/snapshots/snapshot_topics.py",
        "    if message.why is not None or message.content.is_null or message.content.is_plain:\n",
        "    if True:\n",
    ),
    Mutation(
        "segments are sent as brokers read them, not compressed",
        "streaming/adapters/pulsar/snapshots/keyed.py",
        "self._values = self._producer(pulsar.CompressionType.NONE)",
        "self._values = self._producer(pulsar.CompressionType.LZ4)",
    ),
    Mutation(
        "a segments topic is compacted only after its guard exists",
        "streaming/snapshots/removal/compact.py",
        "    guard(namespace)\n",
        "",
    ),
    Mutation(
        "tombstones that are compacted are followed by a live record",
        "streaming/snapshots/removal/compact.py",
        "    topics.send(namespace, SnapshotKind.SEGMENT, *keeper_of(namespace))\n",
        "",
    ),
    Mutation(
        "an empty transaction has a minute, in milliseconds",
        "streaming/adapters/pulsar/snapshots/empty_transaction.py",
        "_TIMEOUT_MS = 60_000 ",
        "_TIMEOUT_MS = 60 ",
    ),
    *(Mutation(*each[:4]) for each in ROCKETMQ),
    *(Mutation(*each) for each in HOSTS),
    *(Mutation(*each) for each in CLIENT),
    *(Mutation(*each) for each in LANES),
    *(Mutation(*each) for each in QUERIES),
    *(Mutation(*each) for each in SOURCE),
    *(Mutation(*each) for each in BROKERS),
    *(Mutation(*each) for each in LIVE_STORE),
    *(Mutation(*each) for each in LANE_READER),
    *(Mutation(*each) for each in SEGMENTS),
    *(Mutation(*each) for each in SNAPSHOTS_LINES),
    Mutation(
        "an unreadable znode still names its ledgers",
        WATCHER,
        "        raise FormatError(node.detail)\n",
        "        return None\n",
    ),
    Mutation(
        "an unlisted znode is read before it counts as gone",
        WATCHER,
        "yield self._read(paths)",
        "yield {}.fromkeys(paths)",
    ),
    Mutation("a ledger that any list names is not requested", WATCHER, "_name_of(request) not in named:", "True:"),
    Mutation("a stored request is not sent again", WATCHER, "None if knows_all else", "None if True else"),
    Mutation(
        "a lost watch is followed by a full scan", WATCHER, "        if changes.has_gap:\n", "        if False:\n"
    ),
    Mutation("marks leave a znode small enough", MARKS, "        _refuse_too_large(topic, properties)\n", ""),
    Mutation("a V1 topic's marks are refused", MARKS, "        _refuse_v1(topic.name)\n", ""),
    Mutation("a requested ledger is no candidate", WATCHER, " and ledger_id not in requested", ""),
    Mutation("an unlisted ledger waits for a broker's end", WATCHER, "and bool(candidate.brokers - brokers)", ""),
    Mutation(
        "an unlisted ledger that its broker needs is left",
        WATCHER,
        "if not refers_to(reference, ledger_id):",
        "if True:",
    ),
    Mutation(
        "marking sends no request for an unloaded topic",
        WATCHER,
        "        if not tools.facts.is_loaded(topic):  # internalStats",
        "        if False:  # internalStats",
    ),
    Mutation(
        "marks of a topic that is not loaded wait",
        WATCHER,
        "        if not tools.facts.is_loaded(topic):  # to remove",
        "        if False:  # to remove",
    ),
    Mutation(
        "no request is sent for a topic with closed cursors",
        WATCHER,
        "sorted(signs.loaded - signs.closed)",
        "sorted(signs.loaded)",
    ),
    Mutation(
        "a change before the first scan is no sign that a topic is loaded",
        WATCHER,
        "            signs.loaded.clear()\n",
        "            pass\n",
    ),
    Mutation(
        "the newest ledger is never marked ahead",
        AHEAD,
        "_consumed(listed[:-1], cursors)",
        "_consumed(listed, cursors)",
    ),
    Mutation("a ledger that a cursor has not read is not marked ahead", AHEAD, "min(cursors)", "max(cursors)"),
    Mutation("nothing is marked without retention", AHEAD, "retention.is_none or len", "len"),
    Mutation(
        "marking that fails ends nothing",
        WATCHER,
        "except Exception as error:  # the watcher continues",
        "except KeyError as error:  # the watcher continues",
    ),
    Mutation(
        "a watcher takes the lock of its name",
        WATCHER,
        "stack.enter_context(InstanceLock(store, settings.zookeeper.own_root, name, on_lost=over.set, stop=stop))",
        "pass",
    ),
    Mutation(
        "a watcher refuses another cluster's state", WATCHER, "        _hold(settings, store, connections.admin)\n", ""
    ),
    Mutation(
        "requests that a partition has from a watcher are not sent again", WATCHER, "if send.number > last:", "if True:"
    ),
    Mutation(
        "a stored request that is missing in the watcher's state ends the publication",
        WATCHER,
        "if not knows(number, message.payload):",
        "if False:",
    ),
    Mutation("a topic that fails delays no other", WATCHER, "if streak.failed(topic):", "if True:"),
    Mutation(
        "topics that failed come after all others",
        WATCHER,
        "if not self._failing.sign(topic, now_ms + self._fresh_ms):",
        "if True:",
    ),
    Mutation(
        "no request is sent for a topic that failed and was closed",
        WATCHER,
        "            self._failing.drop(topic)\n        self._failing.forget_old",
        "        self._failing.forget_old",
    ),
    Mutation(
        "a ledger id in a client's cursor does not prevent requests for another topic's ledger",
        "udfs/phase_one/kept_names.py",
        "if component not in BY_CLIENTS else",
        "if component else",
    ),
    Mutation(
        "an unlisted ledger counts as requested only if a broker named it",
        WATCHER,
        "return request.offload_context is None and request.component not in BY_CLIENTS",
        "return request.offload_context is None",
    ),
    Mutation(
        "the waiting requests of a tenant are bounded",
        WATCHER,
        "if cost > min(self.quota_left_of(tenant) - self.taken[tenant], self.quota_left):",
        "if False:",
    ),
    Mutation(
        "names beyond the limit still count as present",
        WATCHER,
        "kept = packed({**(has or {}), **{name_of(request): request for request in left}})",
        "kept = packed(has or {})",
    ),
    Mutation(
        "unlisted ledgers of one tenant leave space for other tenants'",
        WATCHER,
        "kept += ids[: (most - len(kept)) // left]",
        "kept += ids[: most - len(kept)]",
    ),
    Mutation(
        "a scan for unlisted ledgers returns to a folder that could not be listed",
        WATCHER,
        "if behind == 0 or behind > _MOST_SCANS_BEHIND:",
        "if True:",
    ),
    Mutation(
        "an invalid bucket makes only its cursor unreadable",
        "udfs/owners/references.py",
        '    if not 0 <= ledger_id <= MAX_LEDGER_ID:\n        raise FormatError(f"a delayed',
        '    if False:\n        raise FormatError(f"a delayed',
    ),
    Mutation(
        "a request that can't be read again is not kept",
        WATCHER,
        "if isinstance(decoded := decode(payload), PendingDelete):",
        "decoded = None\n    if decoded is None:",
    ),
    Mutation(
        "a state from a backup adopts no stored request",
        WATCHER,
        "kept is not None and kept.payload == payload",
        "True",
    ),
    Mutation(
        "the watcher's topic is read only where brokers deduplicate it",
        "streaming/topics/setup.py",
        "return topic in settings.topics.deduplicated",
        "return topic in settings.topics.deduplicated[:2]",
    ),
    Mutation("a stalled watcher is refused", "streaming/state/watched.py", "or 0) + 1\n", "or 0)\n"),
)

# lines that the model test does not cover: the tests that have to notice
NARROWED = {row[0]: (*ROCKETMQ_TESTS[row[1]], "-k", row[4]) for row in ROCKETMQ}
NARROWED |= {row[0]: HOSTS_TESTS[row[1]] for row in HOSTS}
NARROWED |= {row[0]: CLIENT_TESTS[row[1]] for row in CLIENT}
NARROWED |= {row[0]: LANES_TESTS[row[1]] for row in LANES}
NARROWED |= {row[0]: QUERIES_TESTS[row[1]] for row in QUERIES}
NARROWED |= {row[0]: SOURCE_TESTS[row[1]] for row in SOURCE}
NARROWED |= {row[0]: BROKERS_TESTS[row[1]] for row in BROKERS}
NARROWED |= {row[0]: LIVE_STORE_TESTS[row[1]] for row in LIVE_STORE}
NARROWED |= {row[0]: LANE_READER_TESTS[row[1]] for row in LANE_READER}
NARROWED |= {row[0]: SEGMENTS_TESTS[row[1]] for row in SEGMENTS}
NARROWED |= {row[0]: SNAPSHOTS_TESTS[row[1]] for row in SNAPSHOTS_LINES}
NARROWED |= {
    "a start that finds its port in use names the instance that runs": ("tests/unit/config/test_listening.py",),
    "explain waits for its rate before it lists a namespace": ("tests/unit/audit/walk/test_referring.py",),
    "a cursor that no request could name does not count as watched": (WATCHER_TESTS,),
    "a compacted ledger needs brokers that know its topic": ("tests/unit/in_use/test_loader.py",),
    "only a znode that was read shows that a topic exists": ("tests/unit/in_use/test_loader.py",),
    "quarantine of a cursor's ledger": JUDGE_TESTS,
    "quarantine of a closed ledger without entries": JUDGE_TESTS,
    "the policies of all namespaces share one deadline": ("tests/unit/sweep/tiered_storage/test_offloads.py",),
    "hanging policies of a tenant delay no other tenant's": ("tests/unit/sweep/tiered_storage/test_offloads.py",),
    "the end of a task does not wait for hanging policies": ("tests/unit/sweep/tiered_storage/test_offloads.py",),
    "nothing is read for a sender without rights": ("tests/unit/sweep/test_admitted_owners.py",),
    "only CLOSED ledgers": JUDGE_TESTS,
    "never a ledger in recovery": JUDGE_TESTS,
    "an OPEN ledger's owner names a newer ledger": JUDGE_TESTS,
    "a newer ledger proves OPEN ledgers unused only if their owner writes ledgers in order": JUDGE_TESTS,
    "the quiet period of OPEN ledgers": JUDGE_TESTS,
    "waiting for an OPEN ledger's quiet period costs no try": ("tests/unit/udfs/requests/test_retry.py",),
    "an OPEN ledger is tried again when its quiet period is over, in a week at the latest": (
        "tests/unit/udfs/requests/test_retry.py",
    ),
    "of two keys for OPEN ledgers the longer period counts": ("tests/unit/config/test_policies.py",),
    "the later clock names the journal's days": ("tests/unit/state/test_journal.py",),
    "a receipt after a young receipt stays": ("tests/unit/state/test_receipts.py",),
    "a clock that goes back hides no try from the journal": ("tests/unit/udfs/test_blast_radius.py",),
    "a resume by a clock that is ahead proves nothing": ("tests/unit/udfs/test_blast_radius.py",),
    "a new plan ends the previous plan": ("tests/unit/coordination/test_plans.py",),
    "no copy follows a lost copy": ("tests/contract/test_publish.py",),
    "a resumed publication of an audit sends each request that is not stored": (AUDIT_PUBLICATION_TESTS,),
    "a resumed publication of an audit repeats no request that may have been trimmed": (AUDIT_PUBLICATION_TESTS,),
    "each retry of a publication reads the stored copies": ("tests/unit/deletion/chunks/test_outbox.py",),
    "a restored index names only segments that the guard keeps": ("tests/unit/snapshots/repair/test_restore.py",),
    "a topic that can't be trimmed does not stop the others": ("tests/unit/cli/test_snapshots.py",),
    "a topic that was not trimmed is no success": ("tests/unit/cli/test_snapshots.py",),
    "the next scan restores the message of a tombstone that was not verified": (
        "tests/unit/sweep/snapshots/test_snapshot_sweep.py",
    ),
    "a tombstone counts as sent before it is tried": ("tests/unit/sweep/snapshots/test_snapshot_sweep.py",),
    "nothing is compacted while a tombstone is unsettled": ("tests/unit/sweep/snapshots/test_snapshot_sweep.py",),
    "a value that was written last is not replaced": ("tests/unit/sweep/snapshots/test_snapshot_sweep.py",),
    "a tombstone that is not ours is left as it is": ("tests/unit/sweep/snapshots/test_snapshot_sweep.py",),
    "check compares the guard's position": ("tests/unit/snapshots/audit/test_facts.py",),
    "a guard that was moved too far is moved back by the next run": ("tests/unit/snapshots/guard/test_guards.py",),
    "a guard counts only before all segments that indexes name": (
        "tests/unit/adapters/pulsar/snapshots/test_snapshot_store.py",
    ),
    "the ids of the old tail are checked after a repair": ("tests/unit/udfs/snapshots/test_repair_rules.py",),
    "a repair without known old ids is not verified": ("tests/unit/snapshots/repair/test_steps.py",),
    "a repair without some of the old ids is not verified": ("tests/unit/snapshots/repair/test_steps.py",),
    "silence is no end of a repaired topic": ("tests/unit/snapshots/repair/test_wiring.py",),
    "a repair that is not verified exits with 4": ("tests/unit/cli/test_snapshots.py",),
    "an undo keeps what it replaces": ("tests/unit/snapshots/repair/test_steps.py",),
    "an undo does not replace messages written while the topic was unloaded": (
        "tests/unit/snapshots/repair/test_repair_undo.py",
    ),
    "an undo replaces nothing that it can't journal": ("tests/unit/snapshots/repair/test_topic_session.py",),
    "a restored segment is guarded first": ("tests/unit/snapshots/repair/test_restore.py",),
    "nothing is restored for a loaded topic": ("tests/unit/snapshots/repair/test_restore.py",),
    "an index is restored only if its topic was not loaded in the meantime": (
        "tests/unit/snapshots/repair/test_restore.py",
    ),
    "an index with missing segments is refused before anything is sent": (
        "tests/unit/snapshots/repair/test_restore.py",
    ),
    "a restored segment replaces only a segment with its own marker": ("tests/unit/snapshots/repair/test_restore.py",),
    "an index with missing segments is not restored": ("tests/unit/snapshots/repair/test_restore.py",),
    "a segment is published again only with the marker that the index names": (
        "tests/unit/snapshots/repair/test_steps.py",
    ),
    "if a number names two segments, neither is published again": ("tests/unit/snapshots/repair/test_steps.py",),
    "a segment that no broker can read at its position is lost": (
        "tests/unit/snapshots/audit/test_snapshot_messages.py",
    ),
    "segments are sent as brokers read them, not compressed": ("tests/unit/adapters/pulsar/snapshots/test_keyed.py",),
    "a segments topic is compacted only after its guard exists": ("tests/unit/snapshots/removal/test_compact.py",),
    "tombstones that are compacted are followed by a live record": ("tests/unit/snapshots/removal/test_compact.py",),
    "an empty transaction has a minute, in milliseconds": (
        "tests/unit/adapters/pulsar/snapshots/test_empty_transaction.py",
    ),
    "marking sends no request for an unloaded topic": (MARKING_TESTS,),
    "marks of a topic that is not loaded wait": (MARKING_TESTS,),
    "no request is sent for a topic with closed cursors": (MARKING_TESTS,),
    "a change before the first scan is no sign that a topic is loaded": (MARKING_TESTS,),
    "the newest ledger is never marked ahead": ("tests/unit/udfs/phase_one/test_trim_forecast.py",),
    "a ledger that a cursor has not read is not marked ahead": ("tests/unit/udfs/phase_one/test_trim_forecast.py",),
    "nothing is marked without retention": ("tests/unit/udfs/phase_one/test_trim_forecast.py",),
    "marking that fails ends nothing": (MARKING_TESTS,),
    "a watcher takes the lock of its name": ("tests/unit/phase_one/watcher/test_watch_loop.py",),
    "a watcher refuses another cluster's state": ("tests/unit/phase_one/watcher/test_watch_loop.py",),
    "requests that a partition has from a watcher are not sent again": (
        "tests/unit/phase_one/watcher/test_pulsar_publication.py",
    ),
    "a stored request that is missing in the watcher's state ends the publication": (
        "tests/unit/phase_one/watcher/test_pulsar_publication.py",
    ),
    "a topic that fails delays no other": (MARKING_TESTS,),
    "topics that failed come after all others": (MARKING_TESTS,),
    "no request is sent for a topic that failed and was closed": (MARKING_TESTS,),
    "a ledger id in a client's cursor does not prevent requests for another topic's ledger": (WATCHER_TESTS,),
    "an unlisted ledger counts as requested only if a broker named it": (
        "tests/unit/phase_one/watcher/test_unlisted.py",
    ),
    "the waiting requests of a tenant are bounded": (WATCHER_TESTS,),
    "names beyond the limit still count as present": (WATCHER_TESTS,),
    "unlisted ledgers of one tenant leave space for other tenants'": ("tests/unit/phase_one/watcher/test_unlisted.py",),
    "a scan for unlisted ledgers returns to a folder that could not be listed": (
        "tests/unit/phase_one/watcher/test_unlisted.py",
    ),
    "an invalid bucket makes only its cursor unreadable": ("tests/unit/udfs/owners/test_references.py",),
    "a request that can't be read again is not kept": (WATCHER_TESTS,),
    "a state from a backup adopts no stored request": ("tests/unit/phase_one/watcher/test_request_outbox.py",),
    "the operator declared other clusters that offload": ("tests/unit/coordination/test_exclusive.py",),
    "clusters may have the same name unless the operator declared otherwise": (
        "tests/unit/coordination/test_exclusive.py",
    ),
    "the copy of an offloaded ledger is deleted only if tiered storage has the ledger": (
        "tests/unit/sweep/tiered_storage/test_offloaded.py",
    ),
    "an object that does not exist confirms nothing": ("tests/unit/sweep/tiered_storage/test_offloaded.py",),
    "every upload of a ledger is requested": ("tests/unit/sweep/tiered_storage/test_offloaded.py",),
    "an unreadable policy of a namespace affects only its own requests": (
        "tests/unit/sweep/tiered_storage/test_offloads.py",
    ),
    "a delete carries the ETag of the object that was judged": ("tests/unit/sweep/tiered_storage/test_offloads.py",),
    "an object that was stored again is not reported as deleted": ("tests/unit/sweep/tiered_storage/test_offloads.py",),
    "a store is tried before its comparison of ETags is relied on": (
        "tests/contract/test_object_store.py",
        "-k",
        "etag",
    ),
    "our cluster's name is not guessed": ("tests/unit/sweep/tiered_storage/test_offloads.py",),
    "a cluster's name proves nothing if another cluster may have the same name": (
        "tests/unit/sweep/tiered_storage/test_offloads.py",
        "tests/unit/udfs/verdicts/test_judge_offload.py",
    ),
    "the watcher's topic is read only where brokers deduplicate it": ("tests/unit/queries/test_running.py",),
    "a token goes over TLS or to this machine": ("tests/unit/config/test_hosts.py",),
    "a name is this machine only by its addresses": ("tests/unit/config/test_hosts.py",),
    "a token follows no redirect in clear text": ("tests/contract/test_pulsar_http.py",),
    "Pulsar's clients get a token in clear text only for brokers on this machine": (
        "tests/contract/test_pulsar_http.py",
    ),
    "our own clients compare a broker's name with its certificate": ("tests/contract/test_pulsar_tls.py",),
    "pulsar-client compares a broker's name with its certificate": ("tests/contract/test_pulsar_tls.py",),
    "a token over pulsar+ssl needs a named authority": ("tests/unit/config/test_load.py",),
    "a client secret goes over TLS or to this machine": ("tests/unit/adapters/pulsar/test_oauth2.py",),
    "a webhook's secret goes over TLS or to this machine": ("tests/unit/adapters/test_webhook.py",),
    "the reader of frames sends a secret over TLS or to this machine": (
        "tests/unit/adapters/pulsar/readers/test_span_reader.py",
    ),
    "a pause that another operator set is not taken over": PAUSE_TESTS,
    "an operator ends only the pause that was read": PAUSE_TESTS,
    "a pause lasts until its end by the agreed time": PAUSE_TESTS,
    "a tenant that is held while another is released stays held": ("tests/unit/limits/test_tenants.py",),
    "a resume releases only the tenant that it names": ("tests/unit/limits/test_tenants.py",),
}


def main(words: list[str]) -> int:
    """Run the mutations whose line contains one of the words (all without words), and return 1 if a mutation survives.

    Each mutation is tried against the test that noticed it last, then against the tests that mirror its file, then
    against all unit tests, then against the model; the first failure ends it. NOTICED keeps what was found.
    """
    if any(word.startswith("-") for word in words):
        _print("usage: python -m tests.mutation [words of lines]; without words, all lines (hours)")
        return 2
    chosen = [mutation for mutation in MUTATIONS if not words or any(word in mutation.line for word in words)]
    noticed = json.loads(NOTICED.read_text())
    survivors = []
    _print("| safety line | file | noticed by |")
    _print("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        trees = Trees(Path(folder), noticed)
        trees.check(chosen)
        with ThreadPoolExecutor(WORKERS) as pool:
            for mutation, (file, test) in zip(chosen, pool.map(trees.attempt, chosen), strict=True):
                _print(f"| {mutation.line} | `{file}` | {f'`{test}`' if test else 'NO TEST'} |")
                if not test:
                    survivors.append(mutation.line)
                elif noticed.get(mutation.line) != test:
                    noticed[mutation.line] = test
                    _write(noticed)
    _print(f"{len(chosen) - len(survivors)} of {len(chosen)} lines are noticed")
    return 1 if survivors else 0


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _write(noticed: dict[str, str]) -> None:
    """Keep the tests of lines that still exist, in the order of their lines."""
    lines = sorted({mutation.line for mutation in MUTATIONS} & noticed.keys())
    NOTICED.write_text(json.dumps({line: noticed[line] for line in lines}, indent=2) + "\n")


class Trees:
    """Copies of the tree, one for each worker, in which one mutation at a time is applied."""

    def __init__(self, folder: Path, noticed: Mapping[str, str]) -> None:
        """Copy the tree; noticed has the test that noticed each line last."""
        self._noticed = noticed
        self._unchanged = folder / "unchanged"
        _copy(ROOT, self._unchanged)
        self._idle: Queue[Path] = Queue()

    def check(self, chosen: Sequence[Mutation]) -> None:
        """Raise SystemExit if a test that has to fail for a mutation also fails without the mutation."""
        first = {test for mutation in chosen for test in self._selections(mutation)[0] if test.startswith("tests/")}
        if failed := _failures(self._unchanged, (*sorted(first), *UNIT_MARKS), compiled=True):
            raise SystemExit(f"these tests fail on the unchanged tree: {', '.join(failed)}")
        for worker in range(WORKERS):  # with compiled modules, which halves the time of a short run
            copy = self._unchanged.with_name(str(worker))
            shutil.copytree(self._unchanged, copy)
            self._idle.put(copy)

    def attempt(self, mutation: Mutation) -> tuple[Path, str]:
        """Return the file that was changed, and a test that noticed (empty if none did)."""
        tree = self._idle.get()
        try:
            files = found_in(mutation, tree)
            if len(files) != 1:
                raise SystemExit(f"{mutation.line}: occurs {len(files)} times in {mutation.where}")
            with _applied(mutation, files[0]):
                for tests in self._selections(mutation):
                    if failed := _failures(tree, (*tests, "-x")):
                        return files[0].relative_to(tree), failed[0]
            return files[0].relative_to(tree), ""
        finally:
            self._idle.put(tree)

    def _selections(self, mutation: Mutation) -> list[tuple[str, ...]]:
        last = self._noticed.get(mutation.line)
        # the test may have been renamed or removed since
        known = (last,) if last and (ROOT / last.partition("::")[0]).exists() else ()
        return [tests for tests in (known, _nearest(mutation), UNIT, (MODEL,)) if tests]


@contextmanager
def _applied(mutation: Mutation, file: Path) -> Iterator[None]:
    """Change the file, and restore it with its times, by which Python knows that the compiled module fits."""
    before, times = file.read_text(), file.stat()
    file.write_text(before.replace(mutation.before, mutation.after))
    try:
        yield
    finally:
        file.write_text(before)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def _nearest(mutation: Mutation) -> tuple[str, ...]:
    """Return the tests assigned to the line, or those that mirror its file."""
    if mutation.line in NARROWED:
        return NARROWED[mutation.line]
    where = Path(mutation.where)
    inside = where.relative_to("streaming") if where.is_relative_to("streaming") else where
    name = inside.parent / f"test_{inside.name}" if inside.suffix else inside
    mirror = Path("tests/unit") / name
    return (str(mirror), *UNIT_MARKS) if (ROOT / mirror).exists() else ()


def _copy(root: Path, where: Path) -> None:
    where.mkdir()
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, where / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, where / name)


def found_in(mutation: Mutation, root: Path) -> list[Path]:
    """Return the file that contains the line, once for each occurrence."""
    path = root / mutation.where
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [file for file in files for _ in range(file.read_text().count(mutation.before))]


def _failures(where: Path, arguments: tuple[str, ...], *, compiled: bool = False) -> list[str]:
    """Return the tests that failed.

    Args:
        where: a copy of the tree.
        arguments: of pytest.
        compiled: keep the compiled modules.
    """
    keep = {} if compiled else {"PYTHONDONTWRITEBYTECODE": "1"}
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "--timeout=600", *arguments],
        cwd=where,
        env=os.environ | keep | {"LEDGER_REAPER_MODEL_EXAMPLES": MODEL_EXAMPLES, "LEDGER_REAPER_MODEL_SHRINK": "no"},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+?::\w+(?:::\w+)*)", completed.stdout, re.MULTILINE)
    renamed_or_removed = completed.returncode in (4, 5)  # and then the next selection has to notice
    if not failed and completed.returncode and not renamed_or_removed:
        raise SystemExit(f"pytest ended with {completed.returncode}: {completed.stdout[-2000:]}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
