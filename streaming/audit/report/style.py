"""The report's CSS: plain, printable, and dark on systems with a dark theme."""

STYLE = """
:root{--bg:#f6f7f9;--paper:#fff;--ink:#1c2430;--dim:#667085;--line:#e4e7ec;--bad:#c2410c;--loss:#b42318;--ok:#067647;
--use:#4b7bb5;--tier:#8bb3dc;--c1:#c2410c;--c2:#e3a008;--c3:#0e9384;--c4:#7a5af8;--c5:#667085}
@media (prefers-color-scheme:dark){:root{--bg:#12161c;--paper:#1b212a;--ink:#e6e9ee;--dim:#98a2b3;--line:#303945;
--bad:#f0803c;--loss:#f97066;--ok:#47cd89;--use:#6b9bd6;--tier:#3f5f86;--c1:#f0803c;--c2:#f5c451;--c3:#2ed3b7;
--c4:#9b8afb;--c5:#98a2b3}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main{max-width:980px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;margin:0;display:flex;align-items:center;gap:14px}
h2{font-size:16px;margin:0 0 12px}
header{margin-bottom:18px}header p{margin:4px 0 0}
section{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin:14px 0}
.cards{display:grid;grid-template-columns:repeat(6,1fr);gap:12px;background:none;border:0;padding:0}
@media (max-width:820px){.cards{grid-template-columns:repeat(3,1fr)}}
.card{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:12px 14px;display:flex;
flex-direction:column}
.card .name{font-size:13px;color:var(--dim)}.card .number{font-size:24px;font-weight:650;line-height:1.3}
.card.bad .number{color:var(--bad)}.card.loss{border-color:var(--loss)}.card.loss .number{color:var(--loss)}
.dim{color:var(--dim);font-size:13px}
.stamp{font-size:13px;font-weight:600;border:1.5px solid;border-radius:99px;padding:1px 12px}
.stamp.ok{color:var(--ok)}.stamp.no{color:var(--loss)}
.alarm{background:#b42318;color:#fff;border-radius:10px;padding:12px 18px;margin:14px 0}
.note{border:1px solid var(--loss);border-radius:10px;padding:12px 18px;margin:14px 0}
.nothing{color:var(--dim);margin:0}
.legend{margin:0 0 8px;font-size:13px;display:flex;gap:18px;flex-wrap:wrap}
.key{display:inline-flex;align-items:center;gap:6px}
.plot{width:100%;min-width:640px;height:auto;display:block;font:13px system-ui,sans-serif}
.plot text{fill:var(--ink)}.plot text.dim{fill:var(--dim);font-size:12px}.plot text.label{font-size:13px}
.plot text.value{font-size:12.5px;fill:var(--dim)}
.grid{stroke:var(--line)}
.bad{fill:var(--bad)}.use{fill:var(--use)}.tier{fill:var(--tier)}
.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}.c4{fill:var(--c4)}.c5{fill:var(--c5)}
.area{opacity:.14}.stroke{fill:none;stroke:var(--bad);stroke-width:2.2}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{text-align:left;color:var(--dim);font-weight:600;border-bottom:1px solid var(--line);padding:4px 12px 6px 0}
td{border-bottom:1px solid var(--line);padding:6px 12px 6px 0;vertical-align:top;overflow-wrap:anywhere}
tr:last-child td{border-bottom:0}
th.n,td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
th.k,td.k{white-space:nowrap}
@media (max-width:820px){td{min-width:70px}td:first-child:not(.n,.k){min-width:230px}}
@media print{.plot{min-width:0}body{background:#fff}section{break-inside:avoid}}
"""
