import torch


def measure(width: int, draws: int, seed: int) -> tuple[float, float, float, float]:
    torch.manual_seed(seed)
    products, sharp, soft = [], 0, 0
    for _ in range(draws):
        query, keys = torch.randn(width), torch.randn(10, width)
        scores = keys @ query
        products.append(scores)
        sharp += int(torch.softmax(scores, 0).max() > 0.3)
        soft += int(torch.softmax(scores * width**-0.5, 0).max() > 0.3)
    everything = torch.cat(products)
    deviation = float(everything.std(correction=0))
    return deviation, deviation / width**0.5, sharp / draws, soft / draws


def deviation_stays_near_one() -> bool:
    return all(abs(measure(width, 500, 0)[1] - 1) < 0.1 for width in (8, 64, 512))


def largest_weight_stays_under_0_30() -> bool:
    return all(measure(width, 500, 0)[3] == 0 for width in (8, 64, 512))
