"""`Trace`: the recorded attention of a forward pass, as one AttentionMatrix per layer, with the tokens.

In: recorded layers, dense attention weights, or a saved trace. Out: an AttentionMatrix by layer name.
Does not know: models, hooks. Memory: O(n) per head; a saved trace is memory-mapped.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnscope.attention.rotary import Rotary
from attnscope.attention.tensors import count_bytes
from attnscope.errors import AttnScopeError, SettingError, UnsupportedError
from attnscope.formatting import format_bytes, format_count
from attnscope.images.attention import ImageAttention
from attnscope.images.known_models import Layouts, describe_by_hand
from attnscope.images.layout import WHOLE, Box, layouts_by_hand
from attnscope.images.photo import Photo, find_crop, to_bytes, to_photo
from attnscope.matrix import AttentionMatrix
from attnscope.matrix.summary import Summary
from attnscope.recording.files.saving import AnyLayer, Contents, save_contents
from attnscope.recording.layers.dense import DenseLayer
from attnscope.recording.layers.statistics import BINS, StatisticsLayer
from attnscope.recording.token_texts import Texts, as_tokenizer, describe_tokens, spans_of
from attnscope.recording.viewer import load_viewer


class Trace(Mapping[str, AttentionMatrix]):
    """The attention of a model in one pass: a mapping from the names of its layers to attention matrices.

    The layers are in the order in which they ran, and each matrix has the shape (batch, heads, queries, keys). The
    second independent call of the same layer is named `name#2`. `trace[0]` and `trace[-1]` are the first and the last
    layer.

    Args:
        model: The name of the model, which is shown.
        tokenizer: Decodes the tokens; a tokenizer of transformers or of AttnScope, or None.
    """

    def __init__(self, model: str = "", tokenizer: Any = None) -> None:
        self.model = model
        self.layers: dict[str, AnyLayer] = {}
        self.texts: list[Texts] = []
        self.without_softmax: tuple[str, ...] = ()
        self.errors: dict[str, float] = {}
        self.rotary: Rotary | None = None  # how queries and keys were rotated, if known; lost when the trace is saved
        self.image_layouts: Layouts = {}
        self.photos: dict[int, Photo] = {}
        self._tokenizer = tokenizer
        self._codec: Any = None
        self._given: list[str] | None = None

    def __getitem__(self, name: str | int) -> AttentionMatrix:
        return self.layer(name).matrix()

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __contains__(self, name: object) -> bool:
        return name in self.layers

    def __len__(self) -> int:
        return len(self.layers)

    def layer(self, name: str | int) -> AnyLayer:
        """What is stored of a layer.

        Args:
            name: The name of the layer, or its index.

        Raises:
            KeyError: There is no layer of this name.
            IndexError: There are fewer layers.
        """
        if not isinstance(name, str):
            try:
                index = operator.index(name)
            except TypeError:
                raise KeyError(f"expected the name or the index of a layer, got {name!r:.80}") from None
            if not -len(self) <= index < len(self):
                raise IndexError(f"layer index {index} is out of range: this trace has {len(self)} layers")
            return list(self.layers.values())[index]
        if name not in self.layers:
            raise KeyError(f"{name!r} is not in this trace; its layers are {_list_names(self.layers)}")
        return self.layers[name]

    def summary(self, name: str | int) -> Summary:
        """The statistics of a layer: those that were recorded with keep="statistics", or those of its matrix.

        Args:
            name: The name of the layer, or its index.

        Returns:
            Statistics of all heads, as `AttentionMatrix.summary` computes them.
        """
        layer = self.layer(name)
        if isinstance(layer, StatisticsLayer):
            return layer.summary()
        matrix = layer.matrix()
        return matrix.summary(*(min(BINS, count) for count in matrix.shape[-2:]))

    @classmethod
    def from_attentions(cls, attentions: Any, *, tokens: Sequence[str] | None = None) -> Trace:
        """A trace of attention weights that exist already, such as `outputs.attentions` of transformers.

        Args:
            attentions: A tensor (batch, heads, queries, keys) for each layer, or a mapping from names to tensors.
            tokens: The text of each token, if all layers have as many keys.

        Raises:
            SettingError: A layer is not such a tensor, or the number of tokens differs from that of the keys.

        >>> trace = Trace.from_attentions([torch.eye(2).expand(1, 4, 2, 2)], tokens=["a", "rose"])
        >>> trace["0"].shape, trace.tokens()
        (torch.Size([1, 4, 2, 2]), ['a', 'rose'])
        """
        named = attentions if isinstance(attentions, Mapping) else {str(at): one for at, one in enumerate(attentions)}
        wrong = [name for name, one in named.items() if not isinstance(one, Tensor) or one.dim() != 4]
        if wrong or not named:
            raise SettingError(
                "Trace.from_attentions: expected a tensor (batch, heads, queries, keys) for each layer, "
                + (f"but {wrong[0]!r} is {_kind(named[wrong[0]])}" if wrong else "but there is none")
                + "; run the model with attn_implementation='eager' and output_attentions=True, one pass at a time"
            )
        lengths = {one.shape[-1] for one in named.values()}
        if tokens is not None and lengths != {len(tokens)}:
            raise SettingError(
                f"Trace.from_attentions: {len(tokens)} tokens were given for weights over {sorted(lengths)} keys; give "
                "one token for each key, or none"
            )
        trace = cls("weights that were already there")
        trace.layers = {name: DenseLayer(name, one) for name, one in named.items()}
        trace._given = None if tokens is None else list(tokens)
        return trace

    def tokens(self, batch: int = 0) -> list[str] | None:
        """The tokens as text; of an encoder-decoder model, those of the decoder.

        Args:
            batch: The index in the batch.

        Returns:
            One string for each token, or None if the model was not given token ids.
        """
        if self._given is not None:
            return list(self._given)
        return self._token_texts(self.texts[-1], batch) if self.texts else None

    def labels(self, name: str | int, batch: int = 0) -> tuple[list[str] | None, list[str] | None]:
        """The tokens of the queries and of the keys of a layer as text.

        Args:
            name: The name of the layer, or its index.
            batch: The index in the batch.

        Returns:
            Two lists; None in place of one whose positions are not tokens, such as the patches of an image.
        """
        layer = self.layer(name)
        queries, keys = layer.shape[2:]
        if self._given is not None:
            rows, columns = (list(self._given) if len(self._given) == count else None for count in (queries, keys))
            return rows, columns
        rows, columns = (None if text is None else self._token_texts(text, batch) for text in self._texts_of(layer))
        return rows, columns

    def ids(self, name: str | int) -> tuple[Tensor | None, Tensor | None]:
        """The token ids of the queries and of the keys of a layer.

        Args:
            name: The name of the layer, or its index.

        Returns:
            Two tensors (batch, position); None in place of one whose positions are not tokens.
        """
        rows, columns = self._texts_of(self.layer(name))
        return None if rows is None else rows.ids, None if columns is None else columns.ids

    def ids_at(self, name: str, place: int) -> Tensor | None:
        """The token ids so far of the sequence that the layer of this name and index reads, (batch, position).

        Args:
            name: The name of the layer.
            place: Its index.

        Returns:
            The ids, or None if they are not known.
        """
        text = self._text_at(name, place)
        return None if text is None else text.ids

    def _text_at(self, name: str, place: int) -> Texts | None:
        reading = [text for text in self.texts if name.startswith(_prefix(text.part)) and text.since <= place]
        return max(reading, key=lambda text: (len(text.part), text.since), default=None)

    def _texts_of(self, layer: AnyLayer) -> tuple[Texts | None, Texts | None]:
        """The sequences of the queries and of the keys of a layer; None for one of another length."""
        queries, keys = layer.shape[2:]
        rows = self._text_at(layer.name, list(self.layers).index(layer.name))
        others = [text for text in self.texts if text is not rows and text.ids.shape[1] == keys]
        columns = (others[-1] if others else None) if layer.cross else rows
        return (
            rows if rows is not None and rows.ids.shape[1] == queries else None,
            columns if columns is not None and columns.ids.shape[1] == keys else None,
        )

    def spans(self, batch: int = 0) -> tuple[str, list[tuple[int, int]]] | None:
        """The whole text and the span of each token in it.

        Args:
            batch: The index in the batch.

        Returns:
            The text and a (start, stop) for each token, or None if the tokenizer does not give spans.
        """
        text, codec = self.texts[-1] if self.texts else None, self._codec_of()
        if text is None or (text.shown is None and codec is None):
            return None
        if text.shown is not None:
            return text.shown.spans_of(batch)
        ids = text.ids[batch].tolist()
        spans = spans_of(codec, ids)
        return None if spans is None else (codec.decode(ids, skip_special_tokens=False), spans)

    def _token_texts(self, text: Texts, batch: int) -> list[str]:
        if text.shown is not None:
            return text.shown.words_of(batch)
        ids, codec = text.ids[batch].tolist(), self._codec_of()
        return [str(number) for number in ids] if codec is None else codec.texts(ids)

    def on_image(
        self,
        photo: Any = None,
        *,
        image: int = 0,
        processor: Any = None,
        grid: tuple[int, ...] | None = None,
        first: int | None = None,
        box: tuple[float, float, float, float] | None = None,
    ) -> ImageAttention:
        """The attention on an image, as maps over its patches.

        Where the patches are is known for some models of transformers and timm (see the guide on images). For other
        models, give `grid` and `first`.

        Args:
            photo: The path of a file, an image of Pillow, an array (height, width, 3), or a tensor (3, height, width);
                None for the one that `attach_photo` has stored, or maps without a photo.
            image: The index of the image in the forward pass.
            processor: The image processor that prepared the photo. It is needed if the photo and the input of the model
                differ in their aspect ratio, because only the processor says whether the photo was cropped or
                stretched.
            grid: Rows and columns of patches, or frames, rows and columns, instead of those that were found.
            first: The position of the first patch, with `grid`; the others follow row by row.
            box: Left, top, right and bottom of the part of the photo that the model was given, as fractions.

        Raises:
            UnsupportedError: The model is not known, and no grid was given.
            SettingError: The image does not exist, or it is ambiguous which part of the photo the model was given.
        """
        layouts = self._layouts(grid, first)
        hint = "" if grid is not None else describe_by_hand(self.model)
        stored = self.photos.get(image) if photo is None and grid is None and box is None else None
        if stored is not None:
            shown, crop = to_photo(stored.pixels), stored.crop
            return ImageAttention(self.layers, layouts, image=image, photo=shown, crop=crop, hint=hint)
        pixels = {
            found.pixels for rows in layouts.values() for row in rows for found in row.grids if found.image == image
        }
        shown = None if photo is None else to_photo(photo)
        crop = WHOLE
        if box is not None:
            crop = Box(*box)
        elif shown is not None:
            crop = find_crop((shown.shape[0], shown.shape[1]), next(iter(pixels), None), processor)
        return ImageAttention(self.layers, layouts, image=image, photo=shown, crop=crop, hint=hint)

    def attach_photo(
        self,
        photo: Any,
        *,
        image: int = 0,
        processor: Any = None,
        grid: tuple[int, ...] | None = None,
        first: int | None = None,
        box: tuple[float, float, float, float] | None = None,
    ) -> None:
        """Store a photo in the trace, for `on_image`, the explorer and `save`.

        Args:
            photo: As in `on_image`.
            image: As in `on_image`.
            processor: As in `on_image`.
            grid: As in `on_image`; the trace then has this layout instead of those that were found.
            first: As in `on_image`.
            box: As in `on_image`.

        Raises:
            UnsupportedError: The model is not known, and no grid was given.
            SettingError: The image does not exist, or it is ambiguous which part of the photo the model was given.
        """
        found = self.on_image(photo, image=image, processor=processor, grid=grid, first=first, box=box)
        assert found.photo is not None
        self.image_layouts = self._layouts(grid, first)
        self.photos = {**self.photos, image: Photo(to_bytes(found.photo), found.crop)}

    def _layouts(self, grid: tuple[int, ...] | None, first: int | None) -> Layouts:
        """The layouts that were found, or those of a grid that was given."""
        layouts = self.image_layouts
        if (grid is None) != (first is None):
            raise SettingError("on_image: give grid and first together, as in grid=(14, 14), first=1")
        if grid is not None and first is not None:
            first_calls = {name: layer.shape for name, layer in self.layers.items() if "#" not in name}
            layouts = layouts_by_hand(first_calls, grid, first)
        if not layouts:
            raise UnsupportedError(
                f"on_image: it is not known which positions of {self.model or 'this trace'} are patches of an image; "
                + (describe_by_hand(self.model) or "give grid and first, as in grid=(14, 14), first=1")
            )
        return layouts

    def save(self, folder: str | Path) -> None:
        """Write the trace to a folder, with the text of its tokens; `attnscope.open_trace` opens it.

        Args:
            folder: A new folder, or one with a trace, which is replaced.

        Raises:
            TraceError: The folder has other files, or the trace cannot be serialized.
        """
        codec = self._codec_of()
        texts = [
            text if codec is None else text._replace(shown=describe_tokens(codec, text.ids)) for text in self.texts
        ]
        about = (self.model, self.without_softmax, self.errors, self._given)
        save_contents(Path(folder), Contents(*about, texts, self.layers, self.image_layouts, self.photos))

    def explore(self, **options: Any) -> Any:
        """Show the trace in the browser.

        Args:
            **options: The options of `attnscope.explore`.

        Returns:
            The running server.
        """
        return load_viewer().explore(self, **options)

    def save_page(self, path: str | Path, *, layer: int | None = None, head: int | None = None) -> int:
        """Write a head to an HTML file that any browser shows, without AttnScope and without a network.

        The other heads are included while they fit into 12 MB: all of them for a sentence, none for a long text.

        Args:
            path: The file.
            layer: The index of the layer.
            head: The index of the head. Without a layer and a head, it is the one that the explorer opens on.

        Returns:
            The number of heads in the file.
        """
        return load_viewer().save_page(self, path, layer=layer, head=head)

    def widget(self, *others: Trace, **options: Any) -> Any:
        """Show the trace in a notebook cell.

        Args:
            *others: Traces to compare it with.
            **options: `layer` and `head` to begin with, and `height` in pixels.
        """
        return load_viewer().make_widget(self, *others, **options)

    def _repr_mimebundle_(self, **_: Any) -> Any:
        """The explorer in a notebook, and the text of `repr` elsewhere."""
        try:
            if _is_notebook():
                return load_viewer().display(self)
        except AttnScopeError:  # it cannot be shown, or what it takes is not installed
            pass
        return {"text/plain": repr(self)}

    def _display_(self) -> Any:
        """The explorer in a cell of marimo, or the text of `repr` where it cannot be shown."""
        try:
            return load_viewer().make_cell_widget(self)
        except AttnScopeError:
            return repr(self)

    @classmethod
    def from_contents(cls, contents: Contents) -> Trace:
        """A trace from the contents of a folder.

        Args:
            contents: What `open_trace` has read.

        Returns:
            The trace.
        """
        trace = cls(contents.model)
        trace.without_softmax, trace.errors = tuple(contents.without_softmax), dict(contents.errors)
        trace.texts, trace.layers = list(contents.texts), dict(contents.layers)
        trace.image_layouts, trace.photos = dict(contents.image_layouts), dict(contents.photos)
        trace._given = None if contents.given is None else list(contents.given)
        return trace

    def _codec_of(self) -> Any:
        if self._codec is None and self._tokenizer is not None:
            self._codec = as_tokenizer(self._tokenizer)
        return self._codec

    @property
    def nbytes(self) -> int:
        """The bytes of all stored tensors; a mask that several layers share counts once."""
        return count_bytes(tensor for layer in self.layers.values() for tensor in layer.tensors())

    def to(self, device: torch.device | str) -> Trace:
        """The trace with the tensors of all layers on a device, for example "cpu".

        Args:
            device: A device of torch.

        Returns:
            A trace with the same names and texts.
        """
        moved = copy(self)
        moved.layers = {name: layer.to(torch.device(device)) for name, layer in self.layers.items()}
        return moved

    def cpu(self) -> Trace:
        """The trace with the tensors of all layers in main memory."""
        return self.to("cpu")

    @property
    def dense_nbytes(self) -> int:
        """The bytes that the weights of all heads would take as float32 matrices."""
        return sum(4 * math.prod(layer.shape) for layer in self.layers.values())

    def __repr__(self) -> str:
        heads = sum(layer.shape[1] for layer in self.layers.values())
        counts = f"{format_count(len(self), 'layer')}, {format_count(heads, 'head')}"
        longest = max((layer.shape[3] for layer in self.layers.values()), default=0)
        sizes = f"holds {format_bytes(self.nbytes)}, dense {format_bytes(self.dense_nbytes)}"
        return f"Trace({self.model}: {counts}, up to {longest:,} keys, {sizes})"


def _is_notebook() -> bool:
    """Whether this runs in a Jupyter kernel; IPython is not imported to find out."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return hasattr(get_ipython(), "kernel")


def _prefix(part: str) -> str:
    return f"{part}." if part else ""


def _list_names(names: Mapping[str, Any]) -> str:
    shown = list(names)
    return ", ".join(shown) if len(shown) <= 6 else ", ".join((*shown[:3], "...", *shown[-2:]))


def _kind(value: object) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
