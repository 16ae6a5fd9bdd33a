"""Run the story of docs/stories/far_sight.md, and write its result and its pictures.

In: .cache/models/smollm2-135m, as scripts/fetch_models.py puts it there, the topics of Python's own help(), Chromium.
Out: benchmarks/results/story_far_sight_<date>.md, docs/images/stories/far_sight. The page itself is written by hand;
tests/project/test_stories.py compares its numbers with the result.

Usage: .venv/bin/python scripts/make_story.py [TRACE]    (minutes; a saved trace of the same text is not read again)
"""

from __future__ import annotations

import datetime
import shutil
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from playwright.sync_api import sync_playwright
from torch import Tensor

import attnscope as ats
from attnscope.bench.report import Table, write
from attnscope.figures import grouped_bars, lines
from attnscope.heads import read_repeated_tokens
from attnscope.models import KVCache
from attnscope.models.fingerprint import fingerprint_model
from attnscope.recording import load, read

ROOT = Path(__file__).resolve().parents[1]
MODEL, NAME = ROOT / ".cache" / "models" / "smollm2-135m", "SmolLM2-135M-Instruct"
RESULTS, IMAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "images" / "stories" / "far_sight"

TOPICS = ("with", "try", "for", "while", "if", "compound")  # the last has the others again, in another order
TOKENS, PIECE = 8192, 2048
KNOWN = 16  # tokens in a row that make a passage the same as an earlier one
PASSAGE = 256  # tokens of it that are read again
BANDS = (512, 1500, 3000, 6000, TOKENS)  # distances
BEST = 6  # heads that are listed
CUTS = (1000, 2000, 4000)  # tokens from the first mention to the second, with the pages between them cut out
LAYER, SEEN = 18, (6, 7, 8)  # what was found
OTHERS = tuple(head for head in range(9) if head not in SEEN)
TRIPLES = ((0, 1, 2), (3, 4, 5), (0, 3, 5))  # of the others
SILENCED = (*((head,) for head in range(9)), SEEN, *TRIPLES)
SETTLED = 1500  # milliseconds after which a page is looked at again

Heads = tuple[int, ...]


class Returns(NamedTuple):
    """Queries whose last tokens stood in the text before, and the keys that came next then, (returns,) each."""

    queries: Tensor
    keys: Tensor

    @property
    def distances(self) -> Tensor:
        """How many tokens back the first mention is."""
        return self.queries - self.keys + 1


class Scene(NamedTuple):
    """A passage that is read after some tokens; its first mention begins at `first` of them, or is absent: None."""

    name: str
    before: Tensor
    passage: Tensor
    first: int | None


class Experiment(NamedTuple):
    """The mean loss of a passage without some heads; and of each head in question the weights that `glance` tells."""

    loss: dict[Heads, float]
    weights: dict[int, tuple[float, float]]

    def rise(self, heads: Heads) -> float:
        """How much the loss rises without these heads."""
        return self.loss[heads] - self.loss[()]


def document(tokenizer: Any) -> Tensor:
    """(tokens,): five topics of help(), and the chapter that has all of them once more."""
    text = "\n\n".join(topics[name].strip() for name in TOPICS)
    return torch.tensor(tokenizer.encode(text)[:TOKENS])


def returns(ids: Tensor, *, known: int = KNOWN, nearest: int = BANDS[0]) -> Returns:
    """All places where a text repeats itself after `nearest` tokens or more, and goes on as it went on before."""
    numbers = ids.tolist()
    seen: dict[tuple[int, ...], int] = {}
    found = []
    for at in range(known - 1, len(numbers) - 1):
        before = seen.setdefault(tuple(numbers[at - known + 1 : at + 1]), at)
        if at - before >= nearest and numbers[before + 1] == numbers[at + 1]:
            found.append((at, before + 1))
    queries, keys = torch.tensor(found).T
    return Returns(queries, keys)


def looked_back(trace: ats.Trace, found: Returns) -> dict[tuple[int, int], Tensor]:
    """The weight of each head, by layer and number, on the first mention at each return."""
    weights = {}
    for layer, name in enumerate(trace):
        for head, row in enumerate(trace[name].batch(0).at(found.queries, found.keys)):
            weights[layer, head] = row
    return weights


def scenes(ids: Tensor, cuts: Iterable[int] = CUTS, *, passage: int = PASSAGE) -> list[Scene]:
    """The passage that comes back from farthest away: never mentioned before, with pages cut out, and as it stands."""
    found = returns(ids)
    far = int(found.distances.max())
    queries = found.queries[found.distances == far].tolist()
    at, words = queries[0] - KNOWN + 1, ids[queries[0] - KNOWN + 1 :][:passage]
    first, end = at - far, queries[-1] - far + 1  # of the first mention
    mention = ids[first:end]
    between = {cut: ids[at - cut + len(mention) : at] for cut in cuts}
    absent = Scene("never mentioned", between[max(cuts)], words, None)
    cut_out = [Scene(f"{cut:,}", torch.cat([mention, pages]), words, 0) for cut, pages in between.items()]
    return [absent, *cut_out, Scene(f"{far:,}", ids[:at], words, first)]


@torch.no_grad()
def told(model: Any, ids: Tensor) -> KVCache:
    """What a model keeps of some tokens that it has read."""
    cache = model.new_cache()
    for piece in ids.split(PIECE):
        model.features(piece[None], cache=cache)
    return cache


@torch.no_grad()
def losses(model: Any, cache: KVCache, passage: Tensor, heads: Heads = ()) -> Tensor:
    """Nats of surprise at each token of a passage once it can be recognized, while some heads are silent."""
    start = cache.length
    with ats.ablate(model, {LAYER: list(heads)} if heads else {}):
        logits = model(passage[None, :-1], cache=cache)[0]
    cache.crop(start)
    return F.cross_entropy(logits.float(), passage[1:], reduction="none")[KNOWN - 1 :]


@torch.no_grad()
def glance(model: Any, cache: KVCache, scene: Scene) -> dict[int, tuple[float, float]]:
    """Of each of the heads in question, the mean weight on the first mention and on the first token of the text."""
    assert scene.first is not None, "a passage that was mentioned before"
    start = cache.length
    with ats.record(model, heads={LAYER: list(SEEN)}) as trace:
        model.features(scene.passage[None, :-1], cache=cache)
    matrix = next(iter(trace.values())).batch(0)
    queries = torch.arange(KNOWN - 1, len(scene.passage) - 1)
    mention, sink = (matrix.at(queries, keys).mean(-1) for keys in (queries + scene.first + 1, queries * 0))
    weights = {head: (float(mention[at]), float(sink[at])) for at, head in enumerate(SEEN)}
    cache.crop(start)
    return weights


def experiment(model: Any, scene: Scene, silenced: Sequence[Heads] = SILENCED) -> Experiment:
    """Read what comes before the passage once, and then the passage with all heads and without some."""
    cache = told(model, scene.before)
    weights = {} if scene.first is None else glance(model, cache, scene)
    loss = {heads: float(losses(model, cache, scene.passage, heads).mean()) for heads in ((), *silenced)}
    return Experiment(loss, weights)


def finding(trace: ats.Trace, probe: ats.Trace, ids: Tensor) -> Table:
    """Which heads look at the first mention when it is far away, and what a short probe says of them."""
    found = returns(ids)
    bands = [(found.distances >= low) & (found.distances < high) for low, high in pairwise(BANDS)]
    weights, scores = looked_back(trace, found), ats.score_heads(probe, progress=False)
    far = torch.stack(bands[2:]).any(0)
    best = sorted(weights, key=lambda place: -float(weights[place][far].mean()))[:BEST]
    best += [(LAYER, head) for head in SEEN if (LAYER, head) not in best]
    table = Table(
        title="who looks at the first mention",
        comparison=(
            f"{len(ids):,} tokens, of which {len(found.queries):,} come back after {BANDS[0]} tokens or more, with "
            f"{KNOWN} equal ones before them: mean weight on the token that came next the first time, by distance in "
            "tokens, highest from 3,000 tokens on first; and two scores on random tokens that come twice."
        ),
        columns=("head", *(f"{low:,} to {high:,}" for low, high in pairwise(BANDS)), "induction_probe", "sink_probe"),
    )
    table.add("places", *(f"{int(band.sum()):,}" for band in bands), "", "")
    for layer, head in best:
        row = scores.head_scores(list(trace)[layer], head)
        looks = (f"{float(weights[layer, head][band].mean()):.3f}" for band in bands)
        table.add(f"{layer}.{head}", *looks, f"{row['induction']:.3f}", f"{row['sink']:.3f}")
    return table


def glances(found: Mapping[str, Experiment]) -> Table:
    """Where the three heads look in the same passage, at growing distance."""
    seen = {name: one.weights for name, one in found.items() if one.weights}
    table = Table(
        title="one passage, four distances",
        comparison=f"{PASSAGE - KNOWN} tokens of help('with'): mean weight by distance in tokens.",
        columns=("head", "looks at", *seen),
    )
    for head in SEEN:
        for at, target in enumerate(("the first mention", "the first token")):
            table.add(f"{LAYER}.{head}", target, *(f"{weights[head][at]:.3f}" for weights in seen.values()))
    return table


def rises(found: Mapping[str, Experiment]) -> Table:
    """What the passage costs, and how much more of it without some heads."""
    table = Table(
        title="what is lost without them",
        comparison=(
            f"The same {PASSAGE - KNOWN} tokens: loss in nats a token with all heads, and its rise while heads of layer"
            f" {LAYER} are silent, from the first token of the passage on; what came before was read with all heads."
        ),
        columns=("heads", *found),
    )
    table.add("all heads, loss", *(f"{one.loss[()]:.3f}" for one in found.values()))
    for heads in (*((head,) for head in SEEN), SEEN):
        name = ", ".join(f"{LAYER}.{head}" for head in heads)
        table.add(f"without {name}", *(f"{one.rise(heads):+.3f}" for one in found.values()))
    for name, some in (("one other", [(head,) for head in OTHERS]), ("three others", TRIPLES)):
        for how, choose in (("mean", statistics.mean), ("most", max)):
            cells = (f"{choose([one.rise(heads) for heads in some]):+.3f}" for one in found.values())
            table.add(f"without {name}, {how} of {len(some)}", *cells)
    return table


def draw(found: Mapping[str, Experiment]) -> None:
    """The two figures."""
    apart = {name: one.weights for name, one in found.items() if one.weights}
    looks = {f"{LAYER}.{head}": [weights[head][0] for weights in apart.values()] for head in SEEN}
    distances = [float(name.replace(",", "")) for name in apart]
    weights = lines(distances, looks, xlabel="tokens back", ylabel="weight on the first mention")
    bars = {
        f"{name} tokens back" if one.weights else name: {
            **{f"without {LAYER}.{head}": one.rise((head,)) for head in SEEN},
            f"without one other, most of {len(OTHERS)}": max(one.rise((head,)) for head in OTHERS),
        }
        for name, one in found.items()
    }
    lost = grouped_bars(bars, ylabel="rise of the loss, nats a token")
    for name, figure in (("weights", weights), ("lost", lost)):
        figure.savefig(IMAGES / f"{name}.png")


def photograph(trace: ats.Trace, ids: Tensor) -> None:
    """The explorer in a real browser: the whole head, and the place where the passage comes back."""
    scene = scenes(ids)[-1]
    assert scene.first is not None, "the document mentions it"
    query, key = len(scene.before) + 302, scene.first + 303
    colours = "r=-15,0&cm=magma"
    views = {"map": f"agg=max&{colours}", "place": f"c={query},{key}&z=16&pin=q{query},k{key}&{colours}"}
    trace.model = NAME
    server = trace.explore(open_browser=False, block=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, view in views.items():
            page = browser.new_page(viewport={"width": 1280, "height": 820})
            page.add_init_script("localStorage.setItem('attnscope.tour', 'yes')")
            page.goto(f"{server.url}#1/-/L{LAYER}H{SEEN[-1]}/map?{view}")
            for drawn in ("html[data-state=ready]", ".map[data-state=ready]"):
                page.wait_for_selector(drawn, state="attached", timeout=300_000)
            while page.locator("text=reading… >> visible=true").count():
                page.wait_for_timeout(SETTLED)
            page.wait_for_timeout(SETTLED)
            page.screenshot(path=IMAGES / f"{name}.png")
            page.close()
        browser.close()
    server.close()


def main(folder: str | None = None) -> None:
    """Find, look, silence, draw, and write."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load(MODEL, dtype=torch.float32)
    ids = document(tokenizer)
    trace = ats.open_trace(folder) if folder else read(model, ids, tokenizer)
    first = finding(trace, read_repeated_tokens(model, tokenizer), ids)
    photograph(trace, ids)
    found = {scene.name: experiment(model, scene) for scene in scenes(ids)}
    draw(found)
    path = RESULTS / f"story_far_sight_{datetime.date.today().isoformat()}.md"
    tables = [first, glances(found), rises(found)]
    about = fingerprint_model(model, MODEL.name)
    write(path, "story far_sight", ".venv/bin/python scripts/make_story.py", tables, about)
    print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(*sys.argv[1:])
