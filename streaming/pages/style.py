"""The CSS of all pages: plain, printable, dark on systems with a dark theme, and readable at a width of 400 px."""

STYLE = """
:root{color-scheme:light dark;
--bg:#f6f7f9;--paper:#fff;--ink:#1c2430;--dim:#5d6778;--line:#e4e7ec;--bad:#c2410c;--loss:#b42318;--ok:#067647;
--use:#2f64a8;--tier:#6389bb;--c1:#c2410c;--c2:#b27a04;--c3:#0e8a7c;--c4:#7a5af8;--c5:#667085}
@media (prefers-color-scheme:dark){:root{--bg:#12161c;--paper:#1b212a;--ink:#e6e9ee;--dim:#98a2b3;--line:#303945;
--bad:#f0803c;--loss:#f97066;--ok:#47cd89;--use:#7fb0ee;--tier:#5680b5;--c1:#f0803c;--c2:#f5c451;--c3:#2ed3b7;
--c4:#9b8afb;--c5:#98a2b3}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;overflow-wrap:anywhere}
main{max-width:980px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;margin:0;display:flex;flex-wrap:wrap;align-items:center;gap:4px 14px}
h2{font-size:16px;margin:0 0 12px}h3{font-size:14px;margin:22px 0 8px}
header{margin-bottom:18px}header p{margin:4px 0 0}header .dim+p:not(.dim){margin-top:12px}
section{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin:14px 0}
.cards{display:grid;grid-template-columns:repeat(6,1fr);gap:12px;background:none;border:0;padding:0}
.card{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:12px 14px;display:flex;
flex-direction:column;overflow-wrap:normal}
.card .name{font-size:13px;color:var(--dim)}.card .number{font-size:24px;font-weight:650;line-height:1.3}
.card.bad .number{color:var(--bad)}.card.loss{border-color:var(--loss)}.card.loss .number{color:var(--loss)}
.totals{margin-top:10px}.totals p{display:grid;grid-template-columns:76px 100px 1fr;gap:0 14px;align-items:baseline}
.totals b{text-align:right;white-space:nowrap}
.dim{color:var(--dim);font-size:13px}
.stamp{font-size:13px;font-weight:600;border:1.5px solid;border-radius:99px;padding:1px 12px}
.stamp.ok{color:var(--ok)}.stamp.no{color:var(--loss)}
.alarm{background:#b42318;color:#fff;border-radius:10px;padding:12px 18px;margin:14px 0}
.note{border:1px solid var(--loss);border-radius:10px;padding:12px 18px;margin:14px 0}
.nothing{color:var(--dim);margin:0}
dl,dd,dd p{margin:0}dt{font-weight:600;margin-top:14px}dd{margin-top:2px}
pre{margin:4px 0 0;padding:6px 10px;background:var(--bg);border-radius:6px;white-space:pre-wrap;font-size:13px}
.bad{--mark:var(--bad)}.use{--mark:var(--use)}.tier{--mark:var(--tier)}
.c1{--mark:var(--c1)}.c2{--mark:var(--c2)}.c3{--mark:var(--c3)}.c4{--mark:var(--c4)}.c5{--mark:var(--c5)}
.bars,.chart,.map{margin:0 0 14px;font-size:13px;line-height:1.25}
.legend{margin:0 0 10px;padding:0;font-size:13px;display:flex;gap:4px 18px;flex-wrap:wrap;list-style:none}
.legend li{display:flex;align-items:baseline;gap:6px}
.legend i{flex:none;width:11px;height:11px;border-radius:2px;background:var(--mark)}
.row{display:grid;grid-template-columns:minmax(0,270px) minmax(0,1fr) minmax(76px,max-content);gap:1px 10px;
align-items:center;min-height:26px}
.row>span:first-child{text-align:right}
.row>b{font-weight:400;color:var(--dim);text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.row.use>*{font-weight:600;color:var(--ink)}
.track{position:relative;height:16px;background:var(--bg);border-radius:2px;overflow:hidden}
.track i{position:absolute;top:0;bottom:0;min-width:2px;background:var(--mark);box-shadow:inset -1px 0 var(--paper)}
.chart{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:4px 8px;color:var(--dim)}
.chart .axis{display:flex;flex-direction:column-reverse;justify-content:space-between;text-align:right;height:216px;
margin:-8px 0}
.chart svg{width:100%;height:200px;display:block;overflow:visible}
.chart .ends{grid-column:2;display:flex;justify-content:space-between;gap:12px}
.chart line{stroke:var(--line)}.chart line,.chart polyline,.chart path{vector-effect:non-scaling-stroke}
.chart polyline{fill:none;stroke:var(--mark);stroke-width:2.2;stroke-linejoin:round}
.chart path{stroke:var(--mark);stroke-width:7;stroke-linecap:round}
.map{position:relative;height:440px}
.map div{position:absolute;overflow:hidden}
.map b,.map span{display:block;white-space:nowrap;overflow:hidden;text-overflow:ellipsis;padding:1px 4px 0;
font-size:12px;line-height:16px}
.map b{font-weight:600}.map .part b{font-weight:400;color:var(--dim)}
.map .inside{inset:17px 1px 1px}
.leaf{background:color-mix(in srgb,var(--mark) 30%,var(--paper));border:1px solid var(--paper);
container-type:inline-size}
.rest{--mark:var(--dim)}.rest.leaf{background:var(--bg)}
@container (max-width:60px){.map .leaf span+span{display:none}}
@container (max-width:40px){.map .leaf span{display:none}}
.scroll{overflow-x:auto}.scroll+.scroll,details+.scroll{margin-top:16px}
code{font-size:.95em}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{text-align:left;color:var(--dim);font-weight:600;border-bottom:1px solid var(--line);padding:4px 12px 6px 0;
vertical-align:bottom;overflow-wrap:normal}
td{border-bottom:1px solid var(--line);padding:6px 12px 6px 0;vertical-align:top;min-width:70px}
td:first-child:not(.n,.k){min-width:200px}
summary{cursor:pointer;color:var(--dim);font-size:13px;padding-top:8px}
tr:last-child td{border-bottom:0}
th:last-child,td:last-child{padding-right:0}
th.n,td.n{text-align:right;font-variant-numeric:tabular-nums}
td.n,th.k,td.k{white-space:nowrap}
@media (max-width:820px){.cards{grid-template-columns:repeat(3,1fr)}}
@media (max-width:640px){main{padding:16px 10px 40px}section{padding:14px 12px}.cards{gap:8px}.card{padding:8px 10px}
.row{grid-template-columns:minmax(0,1fr) max-content;padding-bottom:6px}.row>span:first-child{text-align:left}
.row>b{grid-area:1/2}.track{grid-area:2/1/auto/span 2;height:12px}
.totals p{grid-template-columns:72px 1fr}.totals b{text-align:left}.totals p>.dim{grid-column:1/-1}
thead{display:none}tr{display:flex;flex-wrap:wrap;gap:0 14px;padding:6px 0;border-bottom:1px solid var(--line)}
tr:last-child{border-bottom:0}td{border:0;padding:0;min-width:0}td:first-child{flex-basis:100%}
td.n{text-align:left}
td:not(:first-child):not(:empty)::before,td.n:first-child::before{content:attr(data-head)" ";color:var(--dim)}}
@media print{body{background:#fff}section{break-inside:avoid}*{print-color-adjust:exact}}
"""
