import math

import torch


def encode(length, width):
    rows = []
    for p in range(length):
        row = []
        for i in range(width // 2):
            angle = p / 10000 ** (2 * i / width)
            row += [math.sin(angle), math.cos(angle)]
        rows.append(row)
    return torch.tensor(rows)


def shift_matrix(offset, width):
    m = torch.zeros(width, width)
    for i in range(width // 2):
        b = offset / 10000 ** (2 * i / width)
        m[2 * i, 2 * i] = m[2 * i + 1, 2 * i + 1] = math.cos(b)
        m[2 * i + 1, 2 * i], m[2 * i, 2 * i + 1] = math.sin(b), -math.sin(b)
    return m


def similarity(offset, width):
    return sum(math.cos(offset / 10000 ** (2 * i / width)) for i in range(width // 2))
