"""A report of `explain_fact` as one HTML page without scripts.

In: a `FactReport`. Out: HTML text. All words of the model and of the text are escaped.
Does not know: models, files. Memory: that of the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from attnscope.heads.fact import FactReport

NUM_HEADS = 15
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;
color:#222;background:#fff}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{padding:.15rem .9rem .15rem 0;text-align:right}
th:first-child,td:first-child{text-align:left}th{font-weight:600;border-bottom:1px solid #bbb}
td.text{text-align:left;font-family:ui-monospace,monospace;font-size:13px;white-space:pre-wrap}mark{background:#ffe08a}
meter{width:8rem;vertical-align:middle}"""


def fact_page(report: FactReport, *, model: str) -> str:
    """Return a report as a page of HTML; `model` names the model."""
    verdict = "predicts" if report.is_found else "does not predict"
    parts = [
        f"<h1>{escape(report.question)} <mark>{escape(report.answer)}</mark></h1>",
        f"<p>{escape(model)} {verdict} the answer after {report.num_tokens:,} tokens. The fact is at token "
        f"{report.position:,}, {report.num_tokens - report.position:,} tokens before the end. Where the answer is, the "
        f"model predicts <b>{escape(report.predicted)}</b>.</p>",
        f"<p>{report.why_missed}</p>" if report.why_missed else "",
        "<h2>Does the fact help?</h2>",
        _table(
            ("loss of the answer", "nats per token"),
            (
                ("with the fact in the text", f"{report.loss:.3f}"),
                ("with the fact cut out", f"{report.loss_without_fact:.3f}"),
            ),
        ),
        "<h2>Which heads attend to it</h2><p>From the queries that predict the answer: the weight on its tokens in the "
        "fact, the share of these tokens that have the largest weight, and the weight on the first 4 and the last 256 "
        "tokens.</p>",
        _heads(report),
        "<h2>What ablating them costs</h2>",
        _ablations(report),
        "<h2>Where their attention goes instead</h2><p>Mean weight of the same heads on single tokens outside of the "
        "fact.</p>",
        _places(report),
    ]
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(report.answer)}</title>'
    return f"{head}<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; cells are HTML."""
    header = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{header}</tr>{body}</table>"


def _heads(report: FactReport) -> str:
    some = report.heads.rows(range(min(NUM_HEADS, len(report.heads))))
    columns = (some[name].tolist() for name in ("weight", "retrieval", "streaming"))
    rows = (
        (name, f'<meter value="{weight:.4f}"></meter> {weight:.3f}', f"{retrieval:.2f}", _number(streaming))
        for name, weight, retrieval, streaming in zip(some.head_names, *columns, strict=True)
    )
    return _table(("layer.head", "weight", "retrieval", "streaming"), rows)


def _number(value: float) -> str:
    """A number, or nothing for NaN: facts within the last tokens have no streaming score."""
    return f"{value:.2f}" if value == value else ""


def _ablations(report: FactReport) -> str:
    rows = [(", ".join(one.heads), f"{one.change:+.3f}") for one in report.ablations]
    count = len(report.ablations[-1].heads)
    others = f"{count} others of the same layers, mean of {len(report.random_changes)} draws"
    rows.append((others, f"{float(report.random_changes.mean()):+.3f}"))
    return _table(("without", "change of the loss, nats per token"), rows)


def _places(report: FactReport) -> str:
    rows = "".join(
        f"<tr><td>{place.position:,}</td><td>{place.weight:.3f}</td>"
        f'<td class="text">{_one_line(place.before)}<mark>{_one_line(place.token)}</mark>{_one_line(place.after)}'
        "</td></tr>"
        for place in report.places
    )
    return f"<table><tr><th>token</th><th>weight</th><th></th></tr>{rows}</table>"


def _one_line(text: str) -> str:
    """Text as HTML, with a visible sign for each line break."""
    return escape(text.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"))
