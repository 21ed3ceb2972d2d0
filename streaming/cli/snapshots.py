"""`ledger-reaper snapshots`: audits, guards and repairs the snapshots of transaction buffers."""

import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.arrow import load_datasets
from streaming.cli.history import Unchanged, record
from streaming.cli.options import (
    Config,
    Json,
    Yes,
    confirm,
    refuse_ignored,
    require_namespace,
    require_terminal,
    settings_of,
)
from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.terminal import say, say_json, some_of

if TYPE_CHECKING:
    from streaming.config.settings import Settings

app = typer.Typer(no_args_is_help=True)
_NAMED = 5
Tenant = Annotated[str, typer.Option("--tenant", help="Only this tenant")]
Namespace = Annotated[str, typer.Option("--namespace", help="Only this namespace (tenant/ns)")]


@app.callback()
def snapshots() -> None:
    """Snapshots of aborted transactions: find lost, doubled and orphaned snapshots, and guard the others."""


@app.command()
def audit(  # noqa: PLR0913  typer reads each option from a parameter
    context: typer.Context,
    config: Config,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of report.html and findings", show_default="<state.dir>/snapshots"),
    ] = None,
    json_lines: Json = False,
    verify_only: Annotated[bool, typer.Option("--verify-only", help="Show only MISSING and DANGER")] = False,
    tenant: Tenant = "",
    namespace: Namespace = "",
    recheck_seconds: Annotated[
        int | None,
        typer.Option(
            "--recheck-seconds", min=0, help="Seconds between the two checks", show_default="safety.min_age_seconds"
        ),
    ] = None,
    publish: Annotated[
        bool,
        typer.Option("--publish", help="Request the removal of orphans, which the service checks again first"),
    ] = False,
    yes: Yes = False,
) -> None:
    """Find topics that will not load again, aborted messages that may be read, and snapshots of deleted topics.

    Nothing is changed. The exit code is 4 if a finding is MISSING or DANGER, or the audit is incomplete.

    With --publish, the audit sends a request for each orphan to the request topic; the service checks each orphan twice
    more, records its bytes in the journal, and then publishes a tombstone for its key.
    """
    why = "--verify-only shows no orphans. Leave out --verify-only"
    refuse_ignored(context, (verify_only, ("--publish",), why))
    require_namespace(namespace, tenant)
    settings = settings_of(config)
    if publish:
        require_terminal(yes=yes)

    def confirm_count(orphans: str) -> None:
        confirm(f"Request the removal of {orphans}, in {settings.topics.destination}?", yes=yes)

    load_datasets(with_numpy=True)
    from streaming.audit.audit_options import AuditOptions, FindingFilters
    from streaming.snapshots.audit.snapshot_command import SnapshotRequest
    from streaming.snapshots.audit.snapshot_command import audit as run_audit

    options = AuditOptions(
        recheck_seconds=settings.safety.min_age_seconds if recheck_seconds is None else recheck_seconds,
        verify_only=verify_only,
        filters=FindingFilters(tenant=tenant, namespace=namespace),
    )
    run_audit(
        settings, SnapshotRequest(options=options, out=out, as_json=json_lines, publish=publish, confirm=confirm_count)
    )


@app.command()
def guard(
    config: Config,
    *,
    tenant: Tenant = "",
    namespace: Namespace = "",
    json_lines: Json = False,
    yes: Yes = False,
) -> None:
    """Protect the segments that topics need to load from trimming: create a guard, or move it forward.

    The guard is the subscription ledger-reaper-guard on the segments topic of each namespace with such a topic. The
    broker may trim all messages before the first segment that may be needed. Run this command regularly, or let `run`
    do so (snapshots.guard_every_seconds).
    """
    require_namespace(namespace, tenant)
    settings = settings_of(config)
    from streaming.audit.audit_options import FindingFilters
    from streaming.snapshots.guard.guards import guard_all

    if sys.stdin.isatty():  # a guard deletes nothing, so a script that runs this regularly needs no --yes
        confirm("Create or move the guard of each namespace with segments?", yes=yes)
    count = failed = 0
    for guarded in guard_all(settings, FindingFilters(tenant=tenant, namespace=namespace)):
        say_json(guarded.as_json()) if json_lines else say(guarded.describe())
        count += 1
        failed += bool(guarded.error)
    if not count and not json_lines:
        say(f"nothing to guard: there are no segments in {namespace or tenant or 'any namespace'}")
    if failed:
        raise UnavailableError(f"{failed} namespaces could not be guarded; their guards did not move")


class Form(StrEnum):
    """A form of a topic's snapshot."""

    PARTS = "parts"
    SEGMENTS = "segments"
    SINGLE = "single"


TopicOption = Annotated[str, typer.Option("--topic", help="Full name: persistent://tenant/ns/name", show_default=False)]
BlockedOption = Annotated[
    str,
    typer.Option(
        "--namespace",
        help="Instead of a topic: the messages of this namespace (tenant/ns) that no broker can decode",
        show_default=False,
    ),
]


def _one_of(context: typer.Context, topic: str, namespace: str, *of_topics: str) -> None:
    """Require either --topic or --namespace, and refuse a topic's options together with --namespace."""
    if bool(topic) == bool(namespace):
        raise ConfigError("give either --topic or --namespace")
    require_namespace(namespace)
    refuse_ignored(context, (bool(namespace), of_topics, "it belongs to --topic. Leave it out"))


@app.command()
def repair(  # noqa: PLR0913  typer reads each option from a parameter
    context: typer.Context,
    config: Config,
    *,
    topic: TopicOption = "",
    namespace: BlockedOption = "",
    republish: Annotated[
        bool,
        typer.Option(
            "--republish/--replay",
            help="Publish the lost segments again, instead of having the broker read the whole topic: for topics that "
            "are too large for that",
        ),
    ] = False,
    unknown_schemas: Annotated[
        bool,
        typer.Option(
            "--unknown-schemas",
            help="With --namespace: remove also messages whose schema may be another Pulsar version's. Only if no "
            "broker of another version ever used the namespace: `snapshots undo` publishes them without that schema",
        ),
    ] = False,
    json_lines: Json = False,
    yes: Yes = False,
) -> None:
    """Repair a topic that lost segments of its snapshot and can't load, or a working topic with doubled ids.

    Disconnect the topic's clients first. Any other working topic is refused. Each message goes to the journal before it
    is replaced; `snapshots undo` restores it. Afterwards the command reads the topic once, to verify that it returns no
    message of an aborted transaction. The exit code is 4 if it does, or if that can't be verified.

    Standard error shows what the command waits for. Run it again to resume an interrupted or unverified repair.

    With --namespace, the command removes messages that no broker can decode (LOAD_BLOCKED) from the topics of indexes
    and single snapshots: no topic of the namespace loads while such a message exists. It names each message and asks
    first; their bytes go to the journal, and `snapshots undo --namespace` publishes them again. If such a message has a
    topic's own key, the broker of that topic replays it. The exit code is 4 if messages stay that brokers may be unable
    to decode (LOAD_IN_DOUBT): values of their topics with a foreign schema, and messages whose schema may be another
    Pulsar version's (see --unknown-schemas).
    """
    _one_of(context, topic, namespace, "--republish")
    refuse_ignored(context, (not namespace, ("--unknown-schemas",), "it goes with --namespace. Leave it out"))
    settings = settings_of(config)
    if namespace:
        _repair_namespace(settings, namespace, unknown_schemas=unknown_schemas, yes=yes, json_lines=json_lines)
        return
    from streaming.snapshots.repair.wiring import full_name, repairs_for
    from udfs.snapshots.repair_rules import Remedy

    topic = full_name(topic)

    question = (
        f"Publish the lost segments of {topic} again, and an index that names them?"
        if republish
        else f"Replace the snapshot of {topic} by an empty snapshot, so that its broker replays the topic?"
    )
    confirm(question, yes=yes)
    with repairs_for(settings, lambda text: say(text, err=True)) as repairs:
        done = repairs.repair(topic, Remedy.REPUBLISH if republish else Remedy.REPLAY)
    record(settings, "snapshots repair", done.describe())
    if json_lines:
        say_json({**asdict(done), "is_verified": not done.not_verified})
    else:
        say(done.describe())
    if done.not_verified:
        raise SafetyError(
            f"{topic} is not verified: {done.not_verified}. Keep consumers away until you have seen that a reader gets "
            f"no message of an aborted transaction; `ledger-reaper snapshots undo --topic {topic}` restores the "
            "replaced index, with which the topic is as broken as before (an index that a broker wrote during a replay "
            "is never restored)"
        )


def _repair_namespace(
    settings: "Settings", namespace: str, *, unknown_schemas: bool, yes: bool, json_lines: bool
) -> None:
    from streaming.snapshots.repair.blocking import describe, in_doubt
    from streaming.snapshots.repair.wiring import blocking_for

    which = "which brokers of this version can't decode" if unknown_schemas else "which no broker can decode"
    with blocking_for(settings, is_unknown_foreign=unknown_schemas) as blocking:
        messages = blocking.messages(namespace)
        for message in messages:
            say(describe(message), err=json_lines)
        if messages:
            confirm(f"Remove these {len(messages)} messages of {namespace}, {which}?", yes=yes)
            blocking.remove(namespace, messages)
            record(settings, "snapshots repair", f"{namespace}: {len(messages)} messages removed")
        kept = blocking.doubtful(namespace)
    if json_lines:
        say_json({"namespace": namespace, "removed": len(messages), "in_doubt": len(kept)})
    elif messages:
        say(f"{namespace}: {len(messages)} messages removed")
    elif not kept:
        say(f"{namespace}: brokers can decode all")
    if kept:
        raise SafetyError(in_doubt(namespace, kept))


@app.command()
def trim(
    config: Config,
    *,
    topic: Annotated[
        str, typer.Option("--topic", help="Only this topic: persistent://tenant/ns/name", show_default=False)
    ] = "",
    yes: Yes = False,
) -> None:
    """Let brokers drop ids of aborted transactions whose messages are gone: commit an empty transaction on a topic.

    A broker drops them only while a transaction ends on the topic. The transaction adds an entry to the topic, and the
    command refuses topics without ids to drop, or with ids in several segments. Without --topic, it runs on each topic
    in snapshots.trim_namespaces from which the service has deleted data ledgers; if a topic can't be trimmed now, the
    others are trimmed, and the exit code is 3.
    """
    settings = settings_of(config)
    from streaming.adapters.pulsar.snapshots.empty_transaction import commit_nothing
    from streaming.snapshots.removal.candidates import topics_with_deleted_ledgers
    from streaming.snapshots.removal.trim import Left, Trims, trim_each
    from streaming.snapshots.repair.wiring import full_name, repairs_for

    chosen = [full_name(topic)] if topic else topics_with_deleted_ledgers(settings)
    if not chosen:
        say("nothing to do: the service deleted no data ledger of a topic in snapshots.trim_namespaces")
        return
    confirm(f"Commit an empty transaction on {topic or f'each of {len(chosen)} topics'}?", yes=yes)
    with repairs_for(settings) as repairs:
        trims = Trims(repairs, lambda name: commit_nothing(settings.pulsar, name))
        left: list[Left] = []
        for done in trim_each(trims.trim, chosen):
            if isinstance(done, Left):
                if topic:
                    raise done.error
                say(str(done.error) if done.is_refused else f"{done.topic} was not trimmed: {done.error}")
                left += [] if done.is_refused else [done]
            else:
                say(done.describe())
                record(settings, "snapshots trim", done.describe())
    if left:
        names = some_of([unfinished.topic for unfinished in left], _NAMED)
        raise UnavailableError(f"{len(left)} of {len(chosen)} topics were not trimmed, run the command again: {names}")


@app.command()
def compact(
    config: Config,
    *,
    namespace: Annotated[str, typer.Option("--namespace", help="The namespace (tenant/ns)")],
    yes: Yes = False,
) -> None:
    """Remove the tombstones that make brokers answer 500 if a loaded topic of the namespace is deleted.

    The command creates a guard; sends, after the tombstones, a record that no broker reads; and compacts the segments
    topic.
    """
    require_namespace(namespace)
    settings = settings_of(config)
    from streaming.snapshots.repair.wiring import compact_segments

    confirm(f"Compact the segments topic of {namespace}?", yes=yes)
    taken = compact_segments(settings, namespace)
    done = f"{namespace}: {taken} tombstones are gone" if taken else f"{namespace}: no tombstone can be read"
    say(done)
    record(settings, "snapshots compact", done)


@app.command()
def migrate(  # noqa: PLR0913  typer reads each option from a parameter
    config: Config,
    *,
    topic: Annotated[str, typer.Argument(help="Full name: persistent://tenant/ns/name")],
    to: Annotated[Form, typer.Option("--to", help="The new form of the snapshot")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be sent")] = False,
    json_lines: Json = False,
    yes: Yes = False,
) -> None:
    """Convert a topic's snapshot into another form: several parts, segments with an index, or a single message.

    Disconnect the topic's clients, and unload it: the command refuses a loaded topic, and checks that again right
    before each message. No broker reads parts, and brokers read segments only if
    transactionBufferSegmentedSnapshotEnabled is on.

    The journal gets the topic's snapshots first; `snapshots undo --migrated` restores them. Afterwards the new form is
    read, and must have the same ids. Run the command again if it was interrupted.
    """
    settings = settings_of(config)
    from streaming.snapshots.repair.wiring import full_name, migrations_for

    topic = full_name(topic)
    if not dry_run:
        confirm(f"Migrate the snapshot of {topic} to {to}? The topic must have no clients", yes=yes)
    with migrations_for(settings) as migrations:
        done = migrations.migrate(topic, to, is_dry=dry_run)
    if not dry_run:
        record(settings, "snapshots migrate", done.describe())
    if json_lines:
        say_json(asdict(done))
    else:
        say(done.describe())


@app.command()
def undo(  # noqa: PLR0913  typer reads each option from a parameter
    context: typer.Context,
    config: Config,
    *,
    topic: TopicOption = "",
    namespace: BlockedOption = "",
    removed: Annotated[
        bool, typer.Option("--removed", help="Restore the snapshots of the topic that the service removed")
    ] = False,
    migrated: Annotated[
        bool, typer.Option("--migrated", help="Undo the last migration of the topic's snapshot")
    ] = False,
    yes: Yes = False,
) -> None:
    """Restore the index that the last repair of a topic replaced; the topic is then as broken as before.

    The current index goes to the journal first, and another undo restores it.

    With --removed, publish again all messages about the topic that the service replaced by tombstones. A key that has a
    value by now keeps it.

    With --migrated, publish again the messages that the topic's last migration removed, and then remove the messages
    that would take precedence over them. The topic must have no clients.

    With --namespace, publish again the messages that `repair --namespace` removed: then no topic of the namespace
    loads.
    """
    _one_of(context, topic, namespace, "--removed", "--migrated")
    if removed and migrated:
        raise ConfigError("--removed and --migrated restore different messages: run `snapshots undo` once for each")
    settings = settings_of(config)
    if namespace:
        from streaming.snapshots.repair.wiring import blocking_for

        confirm(
            f"Publish again the messages of {namespace} that no broker can decode? Then no topic of it loads", yes=yes
        )
        with blocking_for(settings) as blocking:
            count, others = blocking.undo(namespace)
        done = f"{namespace}: {count} messages published again"
        say(done)
        record(settings, "snapshots undo", done if count else Unchanged(done))
        for key in others:
            say(f"{key}: has another message by now, which was left as it is")
        return
    from streaming.snapshots.repair.wiring import full_name, repairs_for, restore_removed, undo_migration

    topic = full_name(topic)
    if migrated:
        confirm(f"Undo the last migration of the snapshot of {topic}? The topic must have no clients", yes=yes)
        for changed in undo_migration(settings, topic):
            say(changed.describe())
        record(settings, "snapshots undo", f"the last migration of {topic}")
        return
    if removed:
        confirm(f"Publish again all snapshots of {topic} that the service removed?", yes=yes)
        for put_back in restore_removed(settings, topic):
            say(put_back.describe())
        record(settings, "snapshots undo", f"the removed snapshots of {topic}")
        return
    confirm(f"Restore the index that the last repair of {topic} replaced?", yes=yes)
    with repairs_for(settings) as repairs:
        name, kept = repairs.undo(topic)
    done = f"restored the index of {name}; the journal has the previous index as {kept}, and another undo restores that"
    say(done)
    record(settings, "snapshots undo", done)
