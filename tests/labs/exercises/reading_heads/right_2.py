import torch


def previous_score(weights):
    n = weights.shape[-1]
    return torch.stack([weights[:, i, i - 1] for i in range(1, n)]).mean(0)


def score(weights, tokens, shift):
    sums = []
    for i, token in enumerate(tokens):
        earlier = [j for j in range(i) if tokens[j] == token]
        if earlier:
            sums.append(sum(weights[:, i, j + shift] for j in earlier))
    return torch.stack(sums).mean(0) if sums else torch.zeros(len(weights))


def duplicate_score(weights, tokens):
    return score(weights, tokens, 0)


def induction_score(weights, tokens):
    return score(weights, tokens, 1)


def name_heads(weights, tokens):
    found = []
    for head in weights[:, None]:
        scores = {
            "previous": previous_score(head).item(),
            "duplicate": duplicate_score(head, tokens).item(),
            "induction": induction_score(head, tokens).item(),
            "other": 0.4,
        }
        found.append(max(scores, key=lambda name: scores[name]))
    return found
