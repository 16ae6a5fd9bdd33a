"""`open_trace`: open a saved trace by memory map.

In: a folder, which may be damaged, half copied or hostile. Out: a `Trace` whose tensors are views of the files, or a
`TraceError` that names the problem; nothing in a trace is code. Truncating a file while it is mapped crashes the
process: copy a folder before you change it.
Does not know: models. Memory: the manifest, the headers, the masks of O(n) and the tokens.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from attnscope.errors import TraceError
from attnscope.images.known_models import Layouts
from attnscope.images.photo import Photo
from attnscope.models.json_fields import Fields, short_repr
from attnscope.recording.files.expressions import MAX_NODES, ExpressionReader, tensor_names
from attnscope.recording.files.file_check import FileCheck
from attnscope.recording.files.images import read_images
from attnscope.recording.files.layers import AnyLayer, Header, decode_layer
from attnscope.recording.files.manifest import content_hash, read_manifest, trace_fields
from attnscope.recording.files.saving import (
    FORMAT,
    IMAGES,
    MANIFEST,
    MAX_LAYERS,
    RULES,
    TEXTS,
    VERSION,
    Contents,
    layer_file,
)
from attnscope.recording.files.tensors import MAX_SIZE, Written, open_file, refuse_way_out
from attnscope.recording.files.texts import FIELDS, Shown, Strings
from attnscope.recording.token_texts import INTEGERS, Texts
from attnscope.recording.trace import Trace

MAX_TEXTS = 1_000


def open_trace(folder: str | Path, *, verify: bool = False) -> Trace:
    """Open a trace that `Trace.save` wrote; files are memory-mapped, so a large trace opens at once.

    Args:
        folder: The folder of the trace.
        verify: Compare the SHA-256 of all files at once. Otherwise the file of a layer is read and compared when the
            layer is first used; the other files are small and always compared.

    Returns:
        The trace, with tensors that are views of the files.

    Raises:
        TraceError: The folder is not a trace, or is damaged, hostile or of a newer version. The first use of a layer
            raises it, too, if its numbers were changed.

    >>> from tempfile import TemporaryDirectory
    >>> import torch
    >>> with TemporaryDirectory() as folder:
    ...     Trace.from_attentions([torch.eye(3)[None, None]], tokens=["so", "it", "is"]).save(folder)
    ...     trace = open_trace(folder)
    >>> trace["0"][0, 0, 2], trace.tokens()
    (tensor([0., 0., 1.]), ['so', 'it', 'is'])
    """
    reader = _Reader(Path(folder), verify)
    return Trace.from_contents(reader.read())


class _Reader:
    """Reads one folder."""

    def __init__(self, folder: Path, verify: bool) -> None:
        self._folder, self._verify = folder, verify

    def read(self) -> Contents:
        """Read everything in the folder."""
        manifest = _manifest(self._folder)
        fields = trace_fields(manifest, str(self._folder / MANIFEST))
        fields.changes_nothing("format", "version", "content")
        fields.string("attnscope")
        model, without_softmax, errors = fields.string("model"), fields.strings("without_softmax"), _errors(fields)
        texts, given = self._texts(fields.inner("texts"))
        expressions = self._expressions(fields.inner("rules"))
        layers: dict[str, AnyLayer] = {}
        for place, found in enumerate(fields.array("layers", maximum=MAX_LAYERS)):
            layer = self._layer(place, found, expressions)
            if layer.name in layers:
                raise TraceError(f"{self._folder / MANIFEST} has two layers {short_repr(layer.name)}")
            layers[layer.name] = layer
        image_layouts, photos = self._images(fields.inner("images")) if "images" in fields else ({}, {})
        fields.finish()
        return Contents(model, without_softmax, errors, given, texts, layers, image_layouts, photos)

    def _images(self, fields: Fields) -> tuple[Layouts, dict[int, Photo]]:
        found = read_images(
            fields, str(self._folder / MANIFEST), lambda names: self._optional_tensors(fields, IMAGES, names)
        )
        fields.finish()
        return found

    def _layer(self, place: int, found: object, expressions: ExpressionReader) -> AnyLayer:
        source = f"{self._folder / MANIFEST}: layer {place}"
        fields = trace_fields(found, source)
        header = Header.read(fields, source)
        tensors, check = self._tensors(fields.inner("file"), layer_file(place), header.tensors)
        if self._verify:
            check()
        layer = decode_layer(header, fields, tensors, expressions)
        layer.check_file = check
        return layer

    def _expressions(self, fields: Fields) -> ExpressionReader:
        nodes = fields.array("expressions", maximum=MAX_NODES)
        tensors = self._optional_tensors(fields, RULES, sorted(tensor_names(nodes)))
        fields.finish()
        return ExpressionReader(nodes, tensors, str(self._folder / MANIFEST))

    def _texts(self, fields: Fields) -> tuple[list[Texts], list[str] | None]:
        where = str(self._folder / TEXTS)
        parts = [
            _Part(found, f"{where}: text {at}") for at, found in enumerate(fields.array("parts", maximum=MAX_TEXTS))
        ]
        given = None if fields.is_null("given") else fields.integer("given")
        names = [f"{at}.{name}" for at, part in enumerate(parts) for name in part.tensors]
        names += [] if given is None else [f"given.{name}" for name in Strings._fields]
        tensors = self._optional_tensors(fields, TEXTS, names)
        fields.finish()
        texts = [part.text({name: tensors[f"{at}.{name}"] for name in part.tensors}) for at, part in enumerate(parts)]
        if given is None:
            return texts, None
        strings = Strings(*(tensors[f"given.{name}"] for name in Strings._fields))
        strings.check(given, where)
        return texts, strings.between(0, given)

    def _optional_tensors(self, fields: Fields, name: str, names: list[str]) -> dict[str, Tensor]:
        """The tensors, compared with their hash, of a file that exists only if there are any."""
        file = None if fields.is_null("file") else fields.inner("file")
        if (file is None) == bool(names):
            raise TraceError(
                f"{self._folder / MANIFEST} refers to {len(names)} tensors of {name}, but to "
                f"{'no' if file is None else 'a'} file; save the trace again"
            )
        if file is None:
            return {}
        tensors, check = self._tensors(file, name, names)
        check()
        return tensors

    def _tensors(self, fields: Fields, name: str, names: list[str]) -> tuple[dict[str, Tensor], FileCheck]:
        """The tensors of a file and its check; its name is fixed, so a manifest cannot point elsewhere."""
        fields.choice("name", {name: name})
        written = Written(name, fields.integer("num_bytes", minimum=8), fields.string("sha256"))
        fields.finish()
        return open_file(self._folder, written, names)


class _Part:
    """The fields of the input ids of one part of a model."""

    def __init__(self, found: object, where: str) -> None:
        fields = trace_fields(found, where)
        self._part, self._shown, self._where = fields.string("part"), fields.flag("shown"), where
        self._since = fields.integer("since")
        shape = fields.integers("shape", maximum=MAX_SIZE)
        if len(shape) != 2:
            raise fields.invalid("shape", shape, "two numbers: batch, positions")
        self._shape = (shape[0], shape[1])
        fields.finish()

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of its tensors."""
        return ("ids", *FIELDS) if self._shown else ("ids",)

    def text(self, tensors: dict[str, Tensor]) -> Texts:
        """The ids, and their text where it is stored."""
        ids = tensors["ids"]
        if ids.dtype not in INTEGERS or tuple(ids.shape) != self._shape:
            raise TraceError(f"{self._where}: ids: expected integers {self._shape}, got {ids.dtype} {tuple(ids.shape)}")
        shown = Shown.from_tensors(tensors, self._shape, self._where) if self._shown else None
        return Texts(self._part, ids, shown, self._since)


def _manifest(folder: Path) -> dict[str, object]:
    """The manifest of a folder; raises TraceError unless this version can read it."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise TraceError(f"{folder} is not a folder; expected one that trace.save(folder) wrote")
    if not path.exists() and not path.is_symlink():
        raise TraceError(f"{folder} is not a saved trace (no {MANIFEST})")
    try:
        refuse_way_out(folder, path)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    manifest = read_manifest(path)
    if manifest.get("format") != FORMAT:
        raise TraceError(f"{path}: format: expected {FORMAT!r}, got {short_repr(manifest.get('format'))}")
    version = manifest.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise TraceError(
            f"{path}: version: expected an integer of at least 1, got {short_repr(version)}; save the trace again"
        )
    if version > VERSION:
        raise TraceError(f"{path}: version: expected at most {VERSION}, got {short_repr(version)}; update AttnScope")
    if "unfinished" in manifest:
        raise TraceError(f"{folder}: the trace is incomplete, as saving it was interrupted; save it again")
    if manifest.get("content") != content_hash(manifest):
        raise TraceError(f"{path} was changed after it was written (its content hash differs); copy the folder again")
    return manifest


def _errors(fields: Fields) -> dict[str, float]:
    """Numbers by name, stored as strings because they may be infinite."""
    inner = fields.inner("errors")
    try:
        return {name: float(inner.string(name)) for name in inner.found}
    except ValueError as error:
        raise TraceError(f"{MANIFEST}: errors: expected numbers as strings, got {error}") from error
