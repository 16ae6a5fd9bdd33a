"""The report of a fact has the weights, losses and places of the runs it describes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attnscope.errors import SettingError
from attnscope.heads import FactReport, ablate, explain_fact
from attnscope.heads.fact_page import fact_page
from attnscope.models import Decoder, train_bpe
from attnscope.models.published_configs import DECODERS
from attnscope.recording import record

TEXT = "The old house was lost. The password is cobalt. Anna looked for the key in the garden and in the house. " * 2
QUESTION = "The password is"
TOKENIZER = train_bpe([TEXT], vocab_size=300)


def tiny() -> Decoder:
    torch.manual_seed(0)
    config = replace(
        DECODERS["smollm2-135m"],
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        intermediate_size=48,
    )
    model = Decoder(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6.0 if parameter.dim() > 1 else 1.0)
    return model


@pytest.fixture(scope="module")
def report() -> FactReport:
    return explain_fact(tiny(), TOKENIZER, TEXT, fact="cobalt", question=QUESTION, progress=False)


def parts() -> tuple[list[int], list[int], list[int]]:
    asked = TOKENIZER.encode(f"\n\n{QUESTION}", add_special_tokens=False)
    return TOKENIZER.encode(TEXT), asked, TOKENIZER.encode(" cobalt", add_special_tokens=False)


@torch.no_grad()
def test_losses_and_weights_are_those_of_one_pass(report: FactReport) -> None:
    model, (text, asked, answer) = tiny(), parts()
    ids = torch.tensor([*text, *asked, *answer])
    with record(model) as trace:
        logits = model(ids[None])[0]
    rows = slice(len(ids) - len(answer) - 1, len(ids) - 1)
    assert report.loss == pytest.approx(float(F.cross_entropy(logits[rows], torch.tensor(answer))), abs=1e-4)
    assert report.num_tokens == len(ids)
    at = report.position
    assert TOKENIZER.decode(text[at : at + len(answer)]).strip() == "cobalt"
    best = report.heads.rows([0])
    weights = trace[best.layers[0]].batch(0).head(best.heads[0])[rows, :]
    copies = torch.tensor(text[at : at + len(answer)]) == torch.tensor(answer)[:, None]
    on_fact = (weights[:, at : at + len(answer)] * copies).sum(-1)
    assert float(best["weight"][0]) == pytest.approx(float(on_fact.mean()), abs=1e-5)
    cache = model.new_cache()
    model.features(torch.tensor([text]), cache=cache)
    with ablate(model, best):  # while the question is asked, not while the text is read
        changed = model(torch.tensor([[*asked, *answer]]), cache=cache)[0, -len(answer) - 1 : -1]
    assert report.ablations[0].heads == best.head_names
    change = float(F.cross_entropy(changed, torch.tensor(answer))) - report.loss
    assert report.ablations[0].change == pytest.approx(change, abs=1e-4)
    assert len(report.ablations[-1].heads) == 4
    assert report.random_changes.shape == (5,)


@torch.no_grad()
def test_the_fact_is_cut_out_for_comparison(report: FactReport) -> None:
    text, asked, answer = parts()
    cut = [*text[: report.position], *text[report.position + len(answer) :]]
    ids = torch.tensor([*cut, *asked, *answer])
    logits = tiny()(ids[None])[0, -len(answer) - 1 : -1]
    assert report.loss_without_fact == pytest.approx(float(F.cross_entropy(logits, torch.tensor(answer))), abs=1e-4)


def test_places_are_outside_of_the_fact_and_ordered(report: FactReport) -> None:
    positions = [place.position for place in report.places]
    fact = range(report.position, report.position + len(parts()[2]))
    assert not set(positions) & set(fact)
    weights = [place.weight for place in report.places]
    assert weights == sorted(weights, reverse=True)
    assert 0 < weights[0] < 1


def test_the_page_shows_the_report_and_escapes_words(report: FactReport) -> None:
    page = fact_page(replace(report, predicted="<script>", question="a < b"), model="tiny & small")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "tiny &amp; small does not predict" in page
    assert f"{report.loss_without_fact:.3f}" in page
    assert page.count("<tr>") == len(re.findall("</tr>", page))
    for name in report.heads.head_names[:3]:
        assert f"<td>{name}</td>" in page


@pytest.mark.parametrize(
    ("weight", "change", "loss", "wanted"),
    [
        (0.04, 3.0, 2.0, "No head attends to the fact: the largest weight on it is 0.040."),
        (0.5, 0.1, 2.0, "changes the loss by +0.100, and a draw of other heads by +0.200."),
        (0.5, 3.0, 5.5, "it does not help."),
        (0.5, 3.0, 2.0, "the model still prefers another answer."),
    ],
)
def test_a_missed_fact_is_explained_on_the_page(
    report: FactReport, weight: float, change: float, loss: float, wanted: str
) -> None:
    heads = report.heads.rows(range(len(report.heads)))
    heads["weight"][:] = torch.linspace(weight, 0.0, len(heads), dtype=torch.float64)
    missed = replace(
        report,
        predicted="amber",
        heads=heads,
        loss=loss,
        loss_without_fact=5.0,
        ablations=[*report.ablations[:-1], report.ablations[-1]._replace(change=change)],
        random_changes=torch.tensor([-0.3, 0.2]),
    )
    assert wanted in fact_page(missed, model="tiny")
    assert replace(missed, predicted=missed.answer).why_missed is None


def test_mistakes_are_named() -> None:
    with pytest.raises(SettingError, match="'amber' is not in the text"):
        explain_fact(tiny(), TOKENIZER, TEXT, fact="amber", question=QUESTION)
    with pytest.raises(SettingError, match="choose whole words"):
        explain_fact(tiny(), TOKENIZER, TEXT, fact="obal", question=QUESTION)


def test_line_breaks_of_a_place_stay_on_one_line(report: FactReport) -> None:
    broken = report.places[0]._replace(before="a\nb", token="\n")
    page = fact_page(replace(report, places=[broken]), model="tiny")
    assert "a↵b<mark>↵</mark>" in page
