"""What `undo` says to people: above all, what only they can find out."""

from datetime import UTC, datetime

from streaming.undo.ledgers import NOT_READ, Result, Undone, UndoReport

SHOWN = 100


def line(each: Result) -> str:
    """One ledger."""
    when = datetime.fromtimestamp(each.deleted_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    detail = f": {each.detail}" if each.detail else ""
    return f"{each.status:<14} ledger {each.ledger_id} of {each.owner or '?'}, deleted {when}{detail}"


def advice_on_objects(report: UndoReport) -> str:
    """The same of objects in tiered storage."""
    lines = _counted(report)
    if report.count(Undone.PUT_BACK):
        lines += [
            "The objects can be read again. No topic refers to them: a new request for them deletes them again once",
            "they are safety.min_age_seconds old, so `ledger-reaper pause` before you go on.",
        ]
    return "\n".join(lines)


def advice(report: UndoReport) -> str:
    """What only the operator can do now."""
    lines = _counted(report)
    late = [each for each in report.results if each.status is Undone.TOO_LATE]
    back = [each for each in report.results if each.status is Undone.PUT_BACK]
    unread = [each for each in back if each.detail == NOT_READ]
    for each in (late or unread or back)[:1]:
        last = f" -le {each.last_entry_id}" if each.last_entry_id >= 0 else ""
        lines += [
            "Bookies drop a ledger's entries at their first garbage collection after its delete (gcWaitTime; 15",
            "minutes by default); one that had begun before this undo may still do so. Read it then, to be sure:",
            f"  bin/bookkeeper shell readledger -ledgerid {each.ledger_id} -fe 0{last}",
            "Lost or no such entries: it is too late, and the metadata points to nothing; an audit will find it.",
        ]
    if any(each.status in (Undone.PUT_BACK, Undone.TOO_LATE) for each in report.results):
        lines += [
            "Nothing refers to these ledgers, so any new request for one (an audit's too) deletes it again once it is",
            "safety.min_age_seconds old: `ledger-reaper pause` before you go on, and keep their requests away.",
        ]
    if report.waiting:
        some = ", ".join(map(str, report.waiting[:20]))
        lines.append(f"WARNING: requests for these are waiting in the retry topic and will delete them again: {some}")
    return "\n".join(lines)


def _counted(report: UndoReport) -> list[str]:
    lines = [f"{report.count(status)} {status}" for status in Undone if report.count(status)]
    if len(report.results) > SHOWN:
        lines.append(f"(the first {SHOWN} are shown; --json lists all)")
    return lines
