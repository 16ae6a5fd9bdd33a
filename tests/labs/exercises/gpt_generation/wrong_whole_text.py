# kind: the context is exceeded
from collections.abc import Callable

import torch
from torch import Tensor, nn


class GPT(nn.Module):
    def __init__(self, vocabulary: int, context: int, width: int = 32):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(n))
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        for block in self.blocks:
            x = block(x, src_mask=future)
        return self.output(self.norm(x))


def build(vocabulary: int, context: int) -> nn.Module:
    return GPT(vocabulary, context)


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def probabilities(logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0) -> Tensor:
    ordered, tokens = (logits / temperature).softmax(-1).sort(descending=True)
    if top_k is not None:
        ordered = ordered * (torch.arange(len(ordered)) < top_k)
        ordered = ordered / ordered.sum()
    before = ordered.cumsum(-1) - ordered
    kept = ordered * (before < top_p)
    return torch.zeros_like(logits).scatter(0, tokens, kept / kept.sum())


@torch.no_grad()
def generate(model: nn.Module, ids: list[int], count: int, context: int, choose: Callable[[Tensor], int]) -> list[int]:
    ids = list(ids)
    for _ in range(count):
        logits = model(torch.tensor([ids]))
        ids.append(choose(logits[0, -1]))
    return ids
