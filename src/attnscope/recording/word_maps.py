"""`record_words`: what each word of a prompt is attended by, on the image that a diffusion model makes.

The weights of the image tokens on the words are averaged over heads and summed over layers and denoising steps while
the model runs (as DAAM does, Tang et al., 2022, arXiv 2210.04885), for cross-attention and for joint attention of words
and image tokens. In: a model. Out: a `WordMaps`. Does not know: pipelines, prompts.
Memory: O(words x image tokens), and a block of one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.errors import SettingError, UnsupportedError
from attnscope.images.patch_map import PatchMap
from attnscope.images.photo import to_photo
from attnscope.matrix import AttentionMatrix
from attnscope.recording.call import Call
from attnscope.recording.hooks.coverage import Coverage
from attnscope.recording.hooks.eager import eagerly, uncompiled
from attnscope.recording.hooks.interception import intercept
from attnscope.recording.hooks.verification import ReferenceWeights
from attnscope.recording.recorder import is_cross
from attnscope.recording.single_use import single_use

MAX_CELLS = 2**22  # weights that are read at once
MAX_HALVINGS = 6  # of the resolution inside of a UNet


@single_use
def record_words(
    model: nn.Module, *, grid: tuple[int, int], text: range | None = None, row: int = -1
) -> Iterator[WordMaps]:
    """Sum the attention on the words of a prompt while a diffusion model runs inside the with block.

    Args:
        model: The denoising model, such as `pipe.unet` or `pipe.transformer`.
        grid: Rows and columns of its image tokens: those of the latents, divided by the patch size of a transformer.
        text: The positions of the words, for models whose words and image tokens attend to each other in one sequence;
            None for cross-attention.
        row: The row of the batch; with classifier-free guidance, the last one has the prompt.

    Yields:
        The `WordMaps`, which are filled as the model runs.

    Raises:
        SettingError: No call has image tokens of this grid and words.
        UnsupportedError: The model computed attention that cannot be intercepted.
    """
    if len(grid) != 2 or min(grid) < 1:
        raise SettingError(f"record_words: expected grid=(rows, columns), got {grid}")
    eager, model = eagerly(model, "record_words"), uncompiled(model)
    maps = WordMaps(model, grid, text, row)
    with eager, intercept(model, maps):
        yield maps
    maps.check()


class WordMaps:
    """The attention of image tokens on the words of a prompt, summed over layers and steps.

    `sums` is (words, rows, columns): the weights, averaged over the heads of each call. `calls` counts the calls.
    """

    needs_lse = False

    def __init__(self, model: nn.Module, grid: tuple[int, int], text: range | None, row: int) -> None:
        self.grid, self.calls = grid, 0
        self.sums: Tensor = torch.zeros(0, *grid)
        self._text, self._row = text, row
        self._names = {id(module): name for name, module in model.named_modules()}
        self.coverage = Coverage(model, set(self._names.values()), "record_words")
        self._seen: set[str] = set()

    def owns(self, module: nn.Module) -> bool:
        """Whether a module belongs to the model."""
        return id(module) in self._names

    def on_attention(self, module: nn.Module, call: Call, reference: ReferenceWeights) -> None:
        """Add the weights of a call, if it has image tokens and words."""
        name = self._names[id(module)]
        self._seen.add(name)
        queries, keys = call.query.shape[2], call.key.shape[2]
        if self._text is None:
            if is_cross(name) if call.cross is None else call.cross:
                self._add(call, range(queries), range(keys))
            return
        if queries == keys == len(self._text) + self.grid[0] * self.grid[1]:
            self._add(call, [at for at in range(queries) if at not in self._text], self._text)

    def on_handwritten(self, module: nn.Module | None) -> None:
        """Note a module that computes attention which is not intercepted."""
        if module is not None and self.owns(module):
            self.coverage.note_handwritten(self._names[id(module)], module)

    def check(self) -> None:
        """Raise if attention was missed, or if no call was added."""
        self.coverage.check(self._seen, finished=True)
        if not self.calls:
            raise SettingError(
                f"record_words: no call has {self.grid[0]} x {self.grid[1]} image tokens and words; for attention of "
                "words and image tokens in one sequence, give text=, the positions of the words"
            )

    def _add(self, call: Call, image: Sequence[int], words: range) -> None:
        factor = self._halving(len(image))
        weights = _mean_weights(call.matrix().batch(self._row), image, words)
        if not self.calls:
            self.sums = torch.zeros(len(words), *self.grid, dtype=torch.float64)
        if len(words) != len(self.sums):
            raise UnsupportedError(f"record_words: a call has {len(words)} words, and earlier ones {len(self.sums)}")
        small = weights.T.reshape(len(words), -(-self.grid[0] // factor), -(-self.grid[1] // factor))
        large = small.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
        self.sums += large[:, : self.grid[0], : self.grid[1]].double().cpu()
        self.calls += 1

    def _halving(self, count: int) -> int:
        """By which factor the resolution of a call is lower than the grid."""
        for factor in (2**power for power in range(MAX_HALVINGS)):
            if -(-self.grid[0] // factor) * -(-self.grid[1] // factor) == count:
                return factor
        raise SettingError(
            f"record_words: a call has {count} image tokens, not {self.grid[0]} x {self.grid[1]}, nor a half or "
            "quarter of it along each side"
        )

    def on_image(self, words: Sequence[int] | int, image: Any = None) -> PatchMap:
        """The mean weight on some words at each image token.

        Args:
            words: The positions of the words in the prompt; the weights on several are summed.
            image: The image that was made, as for `Trace.on_image`.

        Returns:
            A map for `attnscope.figures.on_image`.

        Raises:
            SettingError: A word is outside of the prompt.
        """
        chosen = [words] if isinstance(words, int) else list(words)
        if not chosen or not all(0 <= word < len(self.sums) for word in chosen):
            raise SettingError(f"record_words: expected words from 0 to {len(self.sums) - 1}, got {words}")
        values = self.sums[chosen].sum(0)[None, None] / self.calls
        title = f"attention to word {', '.join(map(str, chosen))}, mean of {self.calls} calls"
        return PatchMap(values, (), title=title, photo=None if image is None else to_photo(image))


def _mean_weights(matrix: AttentionMatrix, image: Sequence[int], words: range) -> Tensor:
    """The weights of image tokens on words as a mean over heads, (image tokens, words)."""
    step = max(1, MAX_CELLS // (matrix.shape[0] * max(len(words), 1)))
    columns = slice(words.start, words.stop)
    blocks = [matrix[:, list(image[at : at + step]), columns].mean(0) for at in range(0, len(image), step)]
    return torch.cat(blocks)
