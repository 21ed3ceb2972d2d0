"""The commands that would free bytes name the largest consumer, and can be pasted into a shell."""

import shlex
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from streaming.space.output.fixes import Fix, fixes
from tests.unit.space.reports import CARTS_0, CLICKS, LOGS, MIB, POLICIES, REPORT, SUBSCRIPTIONS, share
from udfs.space.causes import Cause
from udfs.space.space_report import Share, SpaceReport, Subscription

OF_SHARES = [cause for cause in Cause if cause is not Cause.NOT_COLLECTED]  # which has no bytes


def fix_of(report: SpaceReport, cause: Cause) -> Fix:
    (found,) = [fix for fix in fixes(report) if fix.cause is cause]
    return found


def of(*shares: Share, **fields: Any) -> SpaceReport:
    return replace(REPORT, shares=shares, **fields)


def test_every_cause_in_the_report_has_one_fix_and_lost_data_is_first() -> None:
    everything = of(*(share(cause, CARTS_0, subscription="s") for cause in OF_SHARES))
    found = [fix.cause for fix in fixes(everything)]
    assert set(found) >= set(OF_SHARES)
    assert len(found) == len(set(found))
    assert found[0] is Cause.MISSING
    assert all(fix.text for fix in fixes(everything))
    assert fixes(of(bookies=())) == []


def test_the_subscription_that_frees_the_most_is_named() -> None:
    fix = fix_of(REPORT, Cause.BACKLOG)
    assert fix.commands == (
        f"pulsar-admin topics clear-backlog --subscription=billing {CARTS_0}",
        f"pulsar-admin topics unsubscribe --subscription=billing {CARTS_0}",
    )
    assert (fix.frees_one_copy, fix.frees) == (40 * MIB, 80 * MIB)


def test_a_subscription_that_frees_nothing_alone_is_not_promised_to() -> None:
    shared = of(
        share(Cause.BACKLOG, CARTS_0, subscription="a"),
        subscriptions=(Subscription(topic=CARTS_0, name="a", backlog=MIB),),
    )
    fix = fix_of(shared, Cause.BACKLOG)
    assert fix.frees is None
    assert (fix.commands, "alone frees nothing" in fix.text, "retention keeps" in fix.text) == ((), True, True)
    not_alone = replace(shared.subscriptions[0], is_alone=False)
    assert "other subscriptions" in fix_of(replace(shared, subscriptions=(not_alone,)), Cause.BACKLOG).text
    unlisted = fix_of(of(share(Cause.BACKLOG, CARTS_0, subscription="a"), subscriptions=()), Cause.BACKLOG)
    assert (unlisted.commands, unlisted.frees) == ((), None)
    assert CARTS_0 in unlisted.text
    assert "not known" in unlisted.text


def test_no_command_is_named_where_a_topic_without_a_subscription_would_lose_what_was_not_read() -> None:
    fix = fix_of(of(share(Cause.RETENTION, CLICKS), subscriptions=()), Cause.RETENTION)
    assert fix.commands == ()
    assert CLICKS in fix.text


def test_a_topic_that_misses_a_ledger_is_not_to_be_loaded() -> None:
    fix = fix_of(of(share(Cause.TRIMMABLE, CLICKS), share(Cause.MISSING, CLICKS)), Cause.TRIMMABLE)
    assert fix.commands == ("ledger-reaper audit --verify-only",)


def test_retention_is_changed_where_it_is_set() -> None:
    at_topic = fix_of(REPORT, Cause.RETENTION)
    assert at_topic.commands == (f"pulsar-admin topicPolicies set-retention --time 0 --size 0 {LOGS}",)
    assert "10,080 min and any size" in at_topic.text
    clicks = [share(Cause.RETENTION, CLICKS, 3 * MIB), share(Cause.RETENTION, f"{CLICKS}-2", 2 * MIB)]
    read = tuple(Subscription(topic=each.topic, name="s", backlog=0) for each in clicks)
    at_namespace = fix_of(of(*clicks, subscriptions=read), Cause.RETENTION)
    assert at_namespace.commands == ("pulsar-admin namespaces set-retention --time 0 --size 0 shop/test",)
    assert (at_namespace.frees, at_namespace.frees_one_copy) == (10 * MIB, 5 * MIB)


def test_the_retention_of_a_partition_is_changed_at_its_partitioned_topic() -> None:
    policies = {CARTS_0: replace(POLICIES[LOGS], level="topic")}
    fix = fix_of(of(share(Cause.RETENTION, CARTS_0), policies=policies), Cause.RETENTION)
    assert fix.commands[0].endswith(" persistent://shop/prod/carts")


def test_what_a_loaded_topic_will_drop_needs_no_command() -> None:
    assert fix_of(of(share(Cause.TRIMMABLE, LOGS)), Cause.TRIMMABLE).commands == ()
    assert fix_of(of(share(Cause.TRIMMABLE, CLICKS)), Cause.TRIMMABLE).commands == (
        f"pulsar-admin topics trim-topic {CLICKS}",
    )


def test_no_command_is_named_that_brokers_refuse_for_v1_names() -> None:
    old = "persistent://shop/west/prod/old"
    trim = fix_of(of(share(Cause.TRIMMABLE, old)), Cause.TRIMMABLE)
    assert trim.commands == (f"pulsar-admin topics stats-internal {old}",)
    lag = fix_of(of(share(Cause.OFFLOADED_AND_KEPT, old)), Cause.OFFLOADED_AND_KEPT)
    assert lag.commands == ("ledger-reaper audit --verify-only",)
    assert "command" not in lag.text


def test_no_command_is_named_that_pulsar_admin_does_not_have_for_segments() -> None:
    segment = "segment://shop/prod/orders/0000-ffff-0"
    trim = fix_of(of(share(Cause.TRIMMABLE, segment)), Cause.TRIMMABLE)
    assert trim.commands == ()
    assert trim.text.endswith("pulsar-admin has no such command")
    lost = fix_of(of(share(Cause.MISSING, segment)), Cause.MISSING)
    assert lost.commands == (f"ledger-reaper explain --topic={segment}",)


@pytest.mark.parametrize(
    ("cursor", "command"),
    [
        ("__compaction", f"pulsar-admin topics compact {LOGS}"),
        ("pulsar.repl.west", f"pulsar-admin topics clear-backlog --subscription=pulsar.repl.west {LOGS}"),
        ("pulsar.dedup", ""),
    ],
)
def test_each_cursor_of_brokers_has_its_own_advice(cursor: str, command: str) -> None:
    fix = fix_of(of(share(Cause.BROKER_CURSOR, LOGS, subscription=cursor)), Cause.BROKER_CURSOR)
    assert "".join(fix.commands) == command
    assert (fix.frees is None) == (not command)


@pytest.mark.parametrize(
    "name", ["a b", "$(reboot)", "it's", "-f", "zeile\n--force", "\x1b[2J\u202e", "späß", "`id`;#"]
)
def test_hostile_names_stay_one_word_of_the_command(name: str) -> None:
    hostile = SUBSCRIPTIONS[0].__class__(topic=f"{CARTS_0}{name}", name=name, backlog=MIB, frees=MIB)
    report = of(share(Cause.BACKLOG, hostile.topic, subscription=name), subscriptions=(hostile,))
    command = fix_of(report, Cause.BACKLOG).commands[0]
    assert command.isprintable()
    arguments = command.removeprefix("pulsar-admin ")
    words = subprocess.run(["bash", "-c", f"printf '%s\\0' {arguments}"], capture_output=True, check=True).stdout
    assert words.decode().split("\0")[:-1] == ["topics", "clear-backlog", f"--subscription={name}", hostile.topic]
    if name.isprintable():
        assert shlex.split(arguments)[-1] == hostile.topic
