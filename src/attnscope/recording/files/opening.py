"""`open_trace`: a folder that a trace was saved to becomes a trace again, by memory map.

In: a folder, which may be broken, half copied or made by somebody with bad intentions. Out: a `Trace` whose tensors are
views of the files, or a `TraceError` that says what is wrong; nothing in a trace is code. A file that is cut off while
it is mapped takes the process with it: copy a folder before you change it.
Does not know: models. Memory: the manifest, the headers, the masks of O(n) and the tokens.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from attnscope.errors import TraceError
from attnscope.models.checkpoint.fields import shown
from attnscope.recording.files.expressed import MAX_NODES, Rules, tensor_names
from attnscope.recording.files.layers import AnyLayer, Header, restore
from attnscope.recording.files.manifest import MAX_NUMBER, Entry, content_hash, read_manifest
from attnscope.recording.files.saving import FORMAT, MANIFEST, MAX_LAYERS, RULES, TEXTS, VERSION, Contents, layer_file
from attnscope.recording.files.tensors import MAX_SIZE, Written, open_file, refuse_way_out
from attnscope.recording.files.texts import FIELDS, Shown, Strings
from attnscope.recording.token_texts import INTEGERS, Texts
from attnscope.recording.trace import Trace

MAX_TEXTS = 1_000


def open_trace(folder: str | Path, *, verify: bool = False) -> Trace:
    """Open a trace that `Trace.save` wrote; its files are mapped, so that a large one opens at once.

    Sizes, shapes and every number in trace.json are always checked; `verify` also reads all files and compares their
    SHA-256. Whatever is wrong is a `TraceError`.

    >>> from tempfile import TemporaryDirectory
    >>> import torch
    >>> with TemporaryDirectory() as folder:
    ...     Trace.from_attentions([torch.eye(3)[None, None]], tokens=["so", "it", "is"]).save(folder)
    ...     trace = open_trace(folder)
    >>> trace["0"][0, 0, 2], trace.tokens()
    (tensor([0., 0., 1.]), ['so', 'it', 'is'])
    """
    reader = _Reader(Path(folder), verify)
    return Trace.restored(reader.read())


class _Reader:
    """Reads one folder."""

    def __init__(self, folder: Path, verify: bool) -> None:
        self._folder, self._verify = folder, verify

    def read(self) -> Contents:
        """Everything in it."""
        manifest = _manifest(self._folder)
        entry = Entry(manifest, str(self._folder / MANIFEST))
        entry.take("format")
        entry.take("version")
        entry.take("content")
        entry.text("attnscope")
        model, without_softmax, errors = entry.text("model"), entry.texts("without_softmax"), _errors(entry)
        texts, given = self._texts(entry.entry("texts"))
        rules = self._rules(entry.entry("rules"))
        layers: dict[str, AnyLayer] = {}
        for place, found in enumerate(entry.values("layers", MAX_LAYERS)):
            layer = self._layer(place, found, rules)
            if layer.name in layers:
                raise TraceError(f"{self._folder / MANIFEST} has two layers {shown(layer.name)}")
            layers[layer.name] = layer
        entry.finish()
        return Contents(model, without_softmax, errors, given, texts, layers)

    def _layer(self, place: int, found: object, rules: Rules) -> AnyLayer:
        where = f"{self._folder / MANIFEST}: layer {place}"
        entry = Entry(found, where)
        header = Header.read(entry, where)
        tensors = self._tensors(entry.entry("file"), layer_file(place), header.tensors)
        return restore(header, entry, tensors, rules)

    def _rules(self, entry: Entry) -> Rules:
        nodes = entry.values("expressions", MAX_NODES)
        tensors = self._optional_tensors(entry, RULES, sorted(tensor_names(nodes)))
        entry.finish()
        return Rules(nodes, tensors, str(self._folder / MANIFEST))

    def _texts(self, entry: Entry) -> tuple[list[Texts], list[str] | None]:
        where = str(self._folder / TEXTS)
        parts = [_Part(found, f"{where}: text {at}") for at, found in enumerate(entry.values("parts", MAX_TEXTS))]
        given = None if entry.is_null("given") else entry.whole("given")
        names = [f"{at}.{name}" for at, part in enumerate(parts) for name in part.tensors]
        names += [] if given is None else [f"given.{name}" for name in Strings._fields]
        tensors = self._optional_tensors(entry, TEXTS, names)
        entry.finish()
        texts = [part.text({name: tensors[f"{at}.{name}"] for name in part.tensors}) for at, part in enumerate(parts)]
        if given is None:
            return texts, None
        strings = Strings(*(tensors[f"given.{name}"] for name in Strings._fields))
        strings.check(given, where)
        return texts, strings.between(0, given)

    def _optional_tensors(self, entry: Entry, name: str, names: list[str]) -> dict[str, Tensor]:
        """The tensors of a file that is there if any are wanted."""
        file = entry.optional_entry("file")
        if (file is None) == bool(names):
            raise TraceError(
                f"{self._folder / MANIFEST} names {len(names)} tensors of {name}, and {'no' if file is None else 'a'} "
                "file for them; save the trace again"
            )
        return {} if file is None else self._tensors(file, name, names)

    def _tensors(self, entry: Entry, name: str, names: list[str]) -> dict[str, Tensor]:
        """The tensors of a file. Its name is known beforehand, so no name in a manifest leads anywhere else."""
        named = entry.text("name")
        if named != name:
            raise entry.wrong("name", named, f"{name}, where this part of a trace is kept")
        written = Written(name, entry.whole("num_bytes", 8, MAX_NUMBER), entry.text("sha256"))
        entry.finish()
        return open_file(self._folder, written, names, verify=self._verify)


class _Part:
    """What the manifest says about the ids of one part of a model."""

    def __init__(self, found: object, where: str) -> None:
        entry = Entry(found, where)
        self._part, self._shown, self._where = entry.text("part"), entry.flag("shown"), where
        self._since = entry.whole("since")
        shape = entry.wholes("shape", 0, MAX_SIZE)
        if len(shape) != 2:
            raise entry.wrong("shape", shape, "two numbers: batch, positions")
        self._shape = (shape[0], shape[1])
        entry.finish()

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of its tensors."""
        return ("ids", *FIELDS) if self._shown else ("ids",)

    def text(self, tensors: dict[str, Tensor]) -> Texts:
        """The ids, and what is known about them."""
        ids = tensors["ids"]
        if ids.dtype not in INTEGERS or tuple(ids.shape) != self._shape:
            raise TraceError(
                f"{self._where}: ids {tuple(ids.shape)} {ids.dtype} are not the {self._shape} they should be"
            )
        shown = Shown.restored(tensors, self._shape, self._where) if self._shown else None
        return Texts(self._part, ids, shown, self._since)


def _manifest(folder: Path) -> dict[str, object]:
    """The manifest of a folder, if it is one that this version reads."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise TraceError(f"{folder} is not a folder; a trace is one, made by trace.save(folder)")
    if not path.exists() and not path.is_symlink():
        raise TraceError(f"{folder} is not a saved trace (no {MANIFEST})")
    try:
        refuse_way_out(folder, path)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    manifest = read_manifest(path)
    if manifest.get("format") != FORMAT:
        raise TraceError(f"{path} has the format {shown(manifest.get('format'))}, not {FORMAT!r}: this is no trace")
    version = manifest.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise TraceError(f"{path} has the version {shown(version)}, which is none; save the trace again")
    if version > VERSION:
        raise TraceError(
            f"{path} has version {shown(version)} of the format, and this AttnScope reads up to {VERSION}: update it"
        )
    if "unfinished" in manifest:
        raise TraceError(f"{folder}: saving this trace was broken off, so that it is not complete; save it again")
    if manifest.get("content") != content_hash(manifest):
        raise TraceError(f"{path} was changed after it was written: its hash is another; copy the folder again")
    return manifest


def _errors(entry: Entry) -> dict[str, float]:
    """Numbers by name, written as text because they may be infinite."""
    inner = entry.entry("errors")
    names = inner.names()
    try:
        return {name: float(inner.text(name)) for name in names}
    except ValueError as error:
        raise TraceError(f"{MANIFEST}: errors has to hold numbers as text, but {error}") from error
