"""Formats the result of `plan` or `check` as a self-contained HTML page."""

from collections.abc import Iterable, Sequence
from html import escape

from streaming.rocketmq.inspect.check import CheckResult
from streaming.rocketmq.inspect.plan import Plan, lines
from streaming.rocketmq.inspect.printing import check_lines

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222;background:#fff}"
    "table{border-collapse:collapse}td,th{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:left}"
    "td.n{text-align:right}.bad{color:#a00}.good{color:#070}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td,th{border-color:#444}}"
)
_MOST_QUEUES = 2_000


def plan_page(plan: Plan) -> str:
    """Format the plan as a page."""
    verdict = (
        "This store can be converted." if not plan.refusals else f"{len(plan.refusals)} reasons against a conversion."
    )
    rows = [line.split(None, 1) for line in lines(plan)]
    return _page("RocketMQ: plan for the upgrade to RocksDB", verdict, not plan.refusals, _table((), rows))


def check_page(result: CheckResult) -> str:
    """Format the result of a check as a page; of very many queues the first."""
    verdict = list(check_lines(result))[-1]
    findings = [
        (finding.kind, finding.topic_text, finding.queue_id, finding.offset, finding.count, finding.text)
        for finding in result.findings
    ]
    body = _table(("finding", "topic", "queue", "from offset", "units", "what"), findings) if findings else ""
    body += "".join(f"<p>{escape(note)}</p>" for note in result.notes)
    body += _table(("topic", "queue", "first", "next", "next of the file queue", "units"), result.queues[:_MOST_QUEUES])
    return _page("RocketMQ: check of the queues in RocksDB", verdict, result.is_sound, body)


def _page(title: str, verdict: str, is_sound: bool, body: str) -> str:
    kind = "good" if is_sound else "bad"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f'<h1>{escape(title)}</h1><p class="{kind}">{escape(verdict)}</p>{body}</html>\n'
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    cells = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{cells}</table>"


def _cell(value: object) -> str:
    return f'<td class="n">{value:,}</td>' if isinstance(value, int) else f"<td>{escape(str(value))}</td>"
