"""Every module has a test of its own name, or stands on a list that names the test which covers it.

The test of streaming/sweep/pace.py is tests/unit/sweep/test_pace.py; that of udfs/verdicts/judge.py is
tests/unit/udfs/verdicts/test_judge.py. A module that gets such a test leaves the list.
"""

import re
from functools import cache
from pathlib import Path

from streaming.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
# by a regular expression, because parsing all modules takes seconds
_IMPORT = re.compile(r"^ *(?:from ([\w.]+) import (?:\(([^)]*)\)|(.+))|import (.+))$", re.MULTILINE)
_COMMENT = re.compile(r" *#.*")

# Module -> the test that covers it. The test (or its conftest.py) imports the module, or it imports a neighbour, in
# the same folder, that imports the module.
COVERED = {
    "streaming.adapters.bookkeeper.bookies": "tests/contract/test_bookies.py",
    "streaming.adapters.bookkeeper.bookie_http": "tests/contract/test_bookies.py",
    "streaming.adapters.bookkeeper.bookie_rpc": "tests/contract/test_bookies.py",
    "streaming.adapters.memory.bookies": "tests/contract/test_bookies.py",
    "streaming.space.reading.topic_division": "tests/unit/space/reading/test_measure.py",
    "udfs.space.causes": "tests/unit/udfs/space/test_topic_split.py",
    "udfs.space.space_report": "tests/unit/udfs/space/test_topic_split.py",
    "streaming.adapters.memory.changes": "tests/contract/test_change_hints.py",
    "streaming.adapters.memory.faults": "tests/unit/sweep/tiered_storage/test_offloads.py",
    "streaming.adapters.memory.objects": "tests/contract/test_object_store.py",
    "streaming.adapters.memory.pulsar": "tests/contract/test_topic_admin.py",
    "streaming.adapters.memory.properties": "tests/contract/test_topic_properties.py",
    "streaming.adapters.memory.trims": "tests/contract/test_trim_facts.py",
    "streaming.adapters.memory.segments": "tests/contract/test_segment_removal.py",
    "streaming.adapters.memory.sender": "tests/contract/test_request_sender.py",
    "streaming.adapters.memory.source_broker": "tests/contract/test_source_broker.py",
    "streaming.adapters.pulsar.source.broker": "tests/contract/test_source_broker.py",
    "streaming.adapters.pulsar.source.counting": "tests/unit/adapters/pulsar/source/test_stream.py",
    "streaming.adapters.pulsar.source.sharing": "tests/unit/adapters/pulsar/source/test_stream.py",
    "streaming.adapters.pulsar.source.schema": "tests/unit/adapters/pulsar/source/test_batch_read.py",
    "streaming.adapters.memory.store": "tests/unit/adapters/test_memory.py",
    "streaming.adapters.memory.tree": "tests/unit/adapters/test_memory.py",
    "streaming.adapters.pulsar.admin_api.admin": "tests/contract/test_topic_admin.py",
    "streaming.adapters.pulsar.admin_api.broker": "tests/contract/test_broker.py",
    "streaming.adapters.pulsar.doorbell.doorbell": "tests/contract/test_doorbell.py",
    "streaming.adapters.pulsar.doorbell.line": "tests/contract/test_doorbell.py",
    "streaming.deletion.lanes.progress": "tests/unit/deletion/lanes/test_reader.py",
    "streaming.deletion.lanes.slow": "tests/unit/deletion/lanes/test_reader.py",
    "streaming.adapters.pulsar.readers.frames": "tests/unit/adapters/pulsar/readers/test_entries.py",
    "streaming.adapters.pulsar.http": "tests/contract/test_pulsar_http.py",
    "streaming.adapters.pulsar.admin_api.offload_policies": "tests/contract/test_offload_configuration.py",
    "streaming.adapters.pulsar.many_producers": "tests/contract/test_many_producers.py",
    "streaming.adapters.pulsar.producer": "tests/contract/test_request_sender.py",
    "streaming.adapters.pulsar.admin_api.properties": "tests/contract/test_topic_properties.py",
    "streaming.adapters.pulsar.admin_api.segment_removal": "tests/contract/test_segment_removal.py",
    "streaming.adapters.pulsar.admin_api.segments": "tests/contract/test_pulsar_http.py",
    "streaming.adapters.pulsar.admin_api.retention": "tests/contract/test_trim_facts.py",
    "streaming.adapters.pulsar.admin_api.trims": "tests/contract/test_trim_facts.py",
    "streaming.adapters.pulsar.readers.read": "tests/contract/test_topic_admin.py",
    "streaming.adapters.s3.calls": "tests/contract/test_s3_faults.py",
    "streaming.adapters.s3.etags": "tests/contract/test_object_store.py",
    "streaming.adapters.s3.objects": "tests/contract/test_object_store.py",
    "streaming.adapters.s3.adaptive_pace": "tests/unit/adapters/test_s3_pace.py",
    "streaming.adapters.zookeeper.add_watch": "tests/contract/test_change_hints.py",
    "streaming.adapters.zookeeper.changes": "tests/contract/test_change_hints.py",
    "streaming.adapters.zookeeper.deletes": "tests/contract/test_zookeeper_faults.py",
    "streaming.adapters.zookeeper.multi_read": "tests/contract/test_zookeeper_faults.py",
    "streaming.adapters.zookeeper.zookeeper_session": "tests/contract/test_zookeeper_faults.py",
    "streaming.adapters.zookeeper.store": "tests/contract/test_metadata_store.py",
    "streaming.assembly": "tests/unit/test_app.py",
    "streaming.audit.audit_columns": "tests/unit/audit/test_reference_join.py",
    "streaming.audit.checks.suspect_objects": "tests/unit/audit/checks/test_suspect_ledgers.py",
    "streaming.audit.phase_progress": "tests/unit/audit/test_ledger_audit.py",
    "streaming.audit.publication.send": "tests/unit/audit/publication/test_orphan_requests.py",
    "streaming.audit.walk.suspects": "tests/unit/audit/checks/test_suspect_ledgers.py",
    "streaming.cli.accept": "tests/unit/cli/test_confirmation.py",
    "streaming.check.first_configuration": "tests/unit/cli/test_init.py",
    "streaming.clock": "tests/contract/test_coordination.py",
    "streaming.config.combinations": "tests/unit/config/test_load.py",
    "streaming.config.sections": "tests/contract/test_publish.py",
    "streaming.config.toml_text": "tests/unit/cli/test_config.py",
    "streaming.config.settings": "tests/unit/queries/test_checkpoints.py",
    "streaming.coordination.epoch": "tests/contract/test_coordination.py",
    "streaming.coordination.live_store": "tests/contract/test_live_store.py",
    "streaming.coordination.lock": "tests/contract/test_coordination.py",
    "streaming.coordination.operator_log": "tests/contract/test_operator_log.py",
    "streaming.coordination.ownership": "tests/contract/test_ownership.py",
    "streaming.coordination.own_znodes": "tests/contract/test_own_znodes.py",
    "streaming.coordination.pause": "tests/contract/test_coordination.py",
    "streaming.deletion.service": "tests/spark/test_service.py",
    "streaming.errors": "tests/contract/test_zookeeper_faults.py",
    "streaming.in_use.baseline": "tests/unit/in_use/test_source_watch.py",
    "streaming.limits.breaker": "tests/unit/limits/test_enforcement.py",
    "streaming.ports": "tests/contract/test_metadata_store.py",
    "streaming.phase_one.services": "tests/unit/phase_one/test_lines.py",
    "streaming.phase_one.watcher.scan": "tests/unit/phase_one/watcher/test_watcher.py",
    "streaming.phase_one.watcher.watch_metrics": "tests/unit/phase_one/watcher/test_watcher.py",
    "streaming.queries.delivery.fallback_reads": "tests/spark/test_completion.py",
    "streaming.queries.delivery.completion": "tests/spark/test_completion.py",
    "streaming.queries.delivery.source_batches": "tests/spark/test_source_batches.py",
    "streaming.queries.names": "tests/unit/queries/test_running.py",
    "streaming.queries.stored_checkpoint": "tests/unit/queries/test_conversion.py",
    "streaming.sandbox.parts.part_clients": "tests/integration/test_cluster.py",
    "streaming.sandbox.cluster": "tests/integration/test_cluster.py",
    "streaming.sandbox.disk_usage": "tests/integration/test_cluster.py",
    "streaming.sandbox.cluster_faults": "tests/integration/test_cluster.py",
    "streaming.sandbox.home": "tests/unit/sandbox/test_start.py",
    "streaming.sandbox.parts.launch": "tests/unit/sandbox/test_start.py",
    "streaming.sandbox.ledger_list": "tests/integration/test_cluster.py",
    "streaming.sandbox.local_config": "tests/unit/sandbox/parts/test_part_settings.py",
    "streaming.sandbox.offloaded_ledgers": "tests/integration/test_cluster.py",
    "streaming.sandbox.orphans": "tests/integration/test_cluster.py",
    "streaming.sandbox.reckoning": "tests/integration/test_faults.py",
    "streaming.sandbox.rocketmq.broker_home": "tests/unit/sandbox/rocketmq/test_broker_settings.py",
    "streaming.sandbox.rocketmq.network": "tests/integration/test_rocketmq.py",
    "streaming.sandbox.rocketmq.server": "tests/integration/test_rocketmq.py",
    "streaming.sandbox.shell": "tests/integration/test_cluster.py",
    "streaming.sandbox.topics": "tests/integration/test_cluster.py",
    "streaming.rocketmq.follow.base": "tests/unit/rocketmq/convert/test_index_database.py",
    "streaming.rocketmq.convert.ranges": "tests/unit/rocketmq/convert/test_index_database.py",
    "streaming.rocketmq.follow.run": "tests/spark/rocketmq/test_follow.py",
    "streaming.rocketmq.convert.join": "tests/unit/rocketmq/convert/test_backfill.py",
    "streaming.rocketmq.inspect.check_bounds": "tests/unit/rocketmq/inspect/test_check.py",
    "streaming.rocketmq.inspect.check_notes": "tests/unit/rocketmq/inspect/test_check.py",
    "streaming.rocketmq.inspect.check_queues": "tests/unit/rocketmq/inspect/test_check.py",
    "streaming.rocketmq.inspect.unit_job": "tests/unit/rocketmq/inspect/test_check.py",
    "streaming.rocketmq.convert.job": "tests/unit/rocketmq/convert/test_backfill.py",
    "streaming.rocketmq.inspect.sample": "tests/unit/rocketmq/inspect/test_plan.py",
    "streaming.schemas": "tests/unit/state/test_receipts.py",
    "streaming.adapters.s3.throttling": "tests/contract/test_s3_faults.py",
    "streaming.adapters.s3.if_none_match": "tests/contract/test_overwriting.py",
    "streaming.config.stores": "tests/unit/spark/test_s3a.py",
    "streaming.coordination.overwriting": "tests/contract/test_overwriting.py",
    "streaming.space.removal_search": "tests/unit/space/test_bookie_removal.py",
    "streaming.spark.connector_lz4": "tests/spark/test_session.py",
    "streaming.undo.undo_report": "tests/unit/undo/test_restore_ledgers.py",
    "streaming.snapshots.audit.snapshot_columns": "tests/unit/snapshots/audit/test_snapshot_joins.py",
    "streaming.snapshots.audit.snapshot_audit": "tests/unit/snapshots/audit/test_snapshot_joins.py",
    "streaming.snapshots.audit.publication": "tests/unit/snapshots/audit/test_snapshot_joins.py",
    "streaming.adapters.pulsar.snapshots.snapshot_topics": "tests/unit/snapshots/audit/test_snapshot_messages.py",
    "streaming.sweep.snapshots.snapshot_jobs": "tests/unit/sweep/snapshots/test_snapshot_sweep.py",
    "streaming.sweep.snapshots.snapshot_scan": "tests/unit/sweep/snapshots/test_snapshot_sweep.py",
    "streaming.sweep.snapshots.snapshot_stores": "tests/unit/sweep/snapshots/test_snapshot_sweep.py",
    "streaming.snapshots.guard.check_line": "tests/unit/snapshots/audit/test_facts.py",
    "streaming.snapshots.audit.advice": "tests/unit/snapshots/audit/test_snapshot_report.py",
    "streaming.audit.report.certificate_table": "tests/unit/audit/report/test_html.py",
    "streaming.phase_one.watcher.marks.due_topics": "tests/unit/phase_one/watcher/marks/test_marking.py",
    "streaming.phase_one.watcher.marks.mark_removal": "tests/unit/phase_one/watcher/marks/test_marking.py",
    "streaming.phase_one.watcher.marks.marking_thread": "tests/unit/phase_one/watcher/marks/test_marking.py",
    "streaming.reconcile.confirmation": "tests/unit/reconcile/test_accounting.py",
    "streaming.state.delta.spark_files": "tests/spark/test_waiting.py",
    "streaming.state.outcomes": "tests/integration/test_service.py",
    "streaming.state.notes.watcher_note": "tests/unit/check/test_questions.py",
    "streaming.state.waiting": "tests/spark/test_waiting.py",
    "streaming.sweep.tiered_storage.buckets": "tests/unit/sweep/tiered_storage/test_offloads.py",
    "streaming.sweep.jobs": "tests/unit/sweep/test_deletes.py",
    "streaming.sweep.ledgers": "tests/unit/sweep/test_deletes.py",
    "streaming.sweep.tiered_storage.offload_jobs": "tests/unit/sweep/tiered_storage/test_offloads.py",
    "streaming.sweep.tiered_storage.offload_steps": "tests/unit/sweep/tiered_storage/test_offloads.py",
    "streaming.topics.requests": "tests/integration/test_ops.py",
    "streaming.topics.setup": "tests/contract/test_topics.py",
    "streaming.topics.sizes": "tests/contract/test_publish.py",
    "streaming.space.explain.explain_missing": "tests/unit/space/explain/test_explain_topic.py",
    "streaming.space.explain.outlook": "tests/unit/space/explain/test_explain_topic.py",
    "streaming.undo.restore_objects": "tests/contract/test_undo_objects.py",
    "udfs.columns": "tests/spark/test_streams.py",
    "udfs.formats.acl": "tests/unit/adapters/test_memory.py",
    "udfs.formats.compression": "tests/unit/udfs/formats/test_managed_ledger.py",
    "udfs.formats.errors": "tests/unit/udfs/formats/test_ledger_metadata.py",
    "udfs.formats.java_uuid": "tests/unit/udfs/formats/test_managed_ledger.py",
    "udfs.records": "tests/unit/udfs/requests/test_request_format.py",
    "udfs.units": "tests/unit/udfs/test_blast_radius.py",
}

# Module -> a test that starts the program, and words in that test which name what it then does.
RUN = {
    "streaming.arrow": ("tests/unit/test_arrow.py", '{"numpy", "pandas", "pyspark"}'),
    "streaming.__main__": ("tests/integration/test_service.py", '"run", "--until-idle"'),
    "streaming.adapters.pulsar.named_producer": ("tests/integration/test_ops.py", '"dlq", "replay"'),
    "streaming.audit.explain": ("tests/integration/test_audit.py", '"explain"'),
    "streaming.audit.worker_process": ("tests/unit/audit/test_workers.py", "runs_in_processes"),
    "streaming.audit.walk.bucket_listing": ("tests/integration/test_audit.py", "scanOffloadedLedgers"),
    "streaming.audit.walk.phases": ("tests/integration/test_audit.py", "report_and_findings_are_written"),
    "streaming.cli.backlog": ("tests/integration/test_s3_checkpoints.py", '"backlog"'),
    "streaming.cli.check": ("tests/integration/test_ops.py", '"check"'),
    "streaming.cli.dlq": ("tests/integration/test_ops.py", '"dlq", "list"'),
    "streaming.cli.explain": ("tests/integration/test_audit.py", '"explain"'),
    "streaming.cli.pause": ("tests/integration/test_ops.py", '"pause"'),
    "streaming.cli.release": ("tests/integration/test_ownership.py", '"release", "--topic"'),
    "streaming.cli.step_progress": ("tests/integration/test_cluster.py", '"cluster", "up"'),
    "streaming.cli.sandbox": ("tests/integration/test_cluster.py", '"cluster"'),
    "streaming.rocketmq.local_spark": ("tests/integration/test_rocketmq.py", '"backfill", "--yes"'),
    "streaming.cli.request": ("tests/integration/test_service.py", '"request"'),
    "streaming.cli.run_service": ("tests/integration/test_s3_checkpoints.py", '"jars"'),
    "streaming.limits.census": ("tests/integration/test_service.py", "LIMIT REACHED"),
    "streaming.cli.watch": ("tests/integration/test_watch.py", '"watch"'),
    "streaming.topics.stored": ("tests/integration/test_audit_repeated.py", "publish"),
    "streaming.adapters.pulsar.snapshots.snapshot_admin": ("tests/contract/test_snapshot_admin.py", "SnapshotAdmin"),
    "streaming.spark.connector_clients": ("tests/integration/test_hostile.py", 'name.startswith("reader-")'),
    "streaming.spark.jvm_signals": ("tests/integration/test_shutdown.py", "signal.SIGTERM"),
}

# The demonstration is its own check: it ends with an error unless each step came out as it says. Nothing imports it.
NOT_TESTED = "streaming.sandbox.demo."


def _name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def _file(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def _modules() -> list[str]:
    files = [each for package in ("streaming", "udfs") for each in (ROOT / package).rglob("*.py")]
    return sorted(_name(each) for each in files if each.name != "__init__.py" and not each.stem.endswith("_pb2"))


def _own_test(module: str) -> Path:
    folders, name = module.removeprefix("streaming.").split(".")[:-1], module.rpartition(".")[2]
    return ROOT.joinpath("tests", "unit", *folders, f"test_{name}.py")


@cache
def _imports(module: str) -> frozenset[str]:
    """Names that a module imports, with those of the modules it takes them from."""
    file = _file(module)
    if not file.exists():
        return frozenset()
    found: set[str] = set()
    for source, several, single, plain in _IMPORT.findall(_COMMENT.sub("", file.read_text())):
        names = [name.split()[0] for name in (several or single or plain).split(",") if name.strip()]
        found.update((source, *(f"{source}.{name}" for name in names)) if source else names)
    if module == "streaming.cli.main":  # it imports a command's module when the command is called
        found.update(f"streaming.cli.{each.partition('.')[0]}" for each in COMMANDS.values())
    return frozenset(found)


@cache
def _reached(test: Path) -> frozenset[str]:
    """What a test imports: through the tests' own helpers, and from a product's module on to its folder's others."""
    waiting, seen = [_name(test), _name(test.with_name("conftest.py"))], set[str]()
    while waiting:
        module = waiting.pop()
        for found in _imports(module) - seen:
            if module.startswith("tests.") or found.rpartition(".")[0] == module.rpartition(".")[0]:
                seen.add(found)
                waiting.append(found)
    return frozenset(seen)


MODULES = _modules()


def _problem(module: str) -> str:
    """Return why a module has no test, an empty text if it has a test."""
    if module in RUN:
        test, words = RUN[module]
        return "" if words in (ROOT / test).read_text() else f"{test} does not say {words}"
    test = COVERED.get(module, "")
    file = ROOT / test if test else _own_test(module)
    name = file.relative_to(ROOT)
    if not file.is_file():
        return f"{module}: make {name}, or list the test that covers it in {__file__}"
    return "" if module in _reached(file) else f"{name} does not import {module}"


def test_every_module_has_its_test() -> None:
    problems = [_problem(module) for module in MODULES if not module.startswith(NOT_TESTED)]
    assert len(problems) > 400
    assert [problem for problem in problems if problem] == []


def test_the_lists_hold_nothing_that_needs_no_mention() -> None:
    assert [module for module in (*COVERED, *RUN) if module not in MODULES] == []
    assert COVERED.keys() & RUN.keys() == set()
    own = {module: _own_test(module) for module in (*COVERED, *RUN)}
    # such a module leaves the list
    assert [module for module, test in own.items() if test.is_file() and module in _reached(test)] == []
