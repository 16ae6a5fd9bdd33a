"""Save a trace as a folder of safetensors files and a manifest, trace.json, which is written last.

In: the contents of a trace. Out: the folder, either complete or absent. An existing trace is replaced by complete
files; other files are never touched.
Does not know: models, how the folder is read. Memory: one chunk of a tensor, and the manifest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from attnscope.errors import TraceError, UnsupportedError
from attnscope.folder_lock import scratch_folder
from attnscope.images.known_models import Layouts
from attnscope.images.photo import Photo
from attnscope.models.json_fields import MAX_CHARACTERS
from attnscope.models.json_files import write_json
from attnscope.recording.files.expressions import MAX_NODES, ExpressionReader, ExpressionWriter
from attnscope.recording.files.images import image_fields, image_tensors
from attnscope.recording.files.layers import AnyLayer, EncodedLayer, Header, decode_layer, encode_layer
from attnscope.recording.files.manifest import content_hash, read_manifest, trace_fields
from attnscope.recording.files.tensors import write_file
from attnscope.recording.files.texts import Strings
from attnscope.recording.token_texts import Texts
from attnscope.version import __version__

FORMAT, VERSION = "attnscope trace", 2
VERSION_WITHOUT_IMAGES = 1
"""A trace without images has no fields that are new in version 2."""

MANIFEST, RULES, TEXTS, LAYERS = "trace.json", "rules.safetensors", "texts.safetensors", "layers"
IMAGES = "images.safetensors"
SCRATCH = ".unfinished-trace-"
UNFINISHED = {"format": FORMAT, "version": VERSION, "unfinished": True}
"""The manifest while a save is in progress: marks the folder as ours, and as not complete."""

MAX_LAYERS = 20_000  # a process can map some 65,000 files


class Contents(NamedTuple):
    """The contents of a trace."""

    model: str
    without_softmax: Sequence[str]
    errors: Mapping[str, float]
    given: Sequence[str] | None
    texts: Sequence[Texts]
    layers: Mapping[str, AnyLayer]
    image_layouts: Layouts
    photos: Mapping[int, Photo]


def layer_file(place: int) -> str:
    """The file name of a layer."""
    return f"{LAYERS}/{place:05}.safetensors"


def text_tensors(contents: Contents) -> dict[str, Tensor]:
    """The tensors of all texts, named by the index of the text and the field."""
    tensors: dict[str, Tensor] = {}
    for place, text in enumerate(contents.texts):
        of_text = {"ids": text.ids} | ({} if text.shown is None else text.shown.tensors())
        tensors |= {f"{place}.{name}": tensor for name, tensor in of_text.items()}
    if contents.given is not None:
        tensors |= {f"given.{name}": tensor for name, tensor in Strings.pack(contents.given)._asdict().items()}
    return tensors


def save_contents(folder: Path, contents: Contents) -> None:
    """Write a folder, after checking that everything can be written and opened again."""
    expressions = ExpressionWriter()
    _check_names(contents)
    layers = [encode_layer(name, layer, expressions) for name, layer in contents.layers.items()]
    _check_readable(layers, expressions)
    try:
        with _scratch(folder) as scratch:
            manifest = _write(scratch, contents, layers, expressions)
            write_json(scratch / MANIFEST, manifest)
            _check_manifest_size(scratch / MANIFEST)
            _move_files(scratch, folder)
    except OSError as error:
        raise TraceError(f"save: {folder} cannot be written: {error.strerror or error}") from error


def _write(
    scratch: Path, contents: Contents, layers: Sequence[EncodedLayer], expressions: ExpressionWriter
) -> dict[str, Any]:
    """Write all tensors and return the manifest."""
    entries = [
        {**layer.entry, "file": write_file(scratch, layer_file(place), layer.tensors)._asdict()}
        for place, layer in enumerate(layers)
    ]
    of_rules, of_texts = expressions.tensors, text_tensors(contents)
    images = _write_images(scratch, contents)
    manifest = {
        "format": FORMAT,
        "version": VERSION if images else VERSION_WITHOUT_IMAGES,
        "attnscope": __version__,
        "model": contents.model,
        "without_softmax": list(contents.without_softmax),
        "errors": {name: repr(float(error)) for name, error in contents.errors.items()},  # which may be infinite
        "texts": {
            "file": write_file(scratch, TEXTS, of_texts)._asdict() if of_texts else None,
            "parts": [
                {
                    "part": text.part,
                    "shape": list(text.ids.shape),
                    "shown": text.shown is not None,
                    "since": int(text.since),
                }
                for text in contents.texts
            ],
            "given": None if contents.given is None else len(contents.given),
        },
        "rules": {
            "file": write_file(scratch, RULES, of_rules)._asdict() if of_rules else None,
            "expressions": expressions.nodes,
        },
        "layers": entries,
        **images,
    }
    return {**manifest, "content": content_hash(manifest)}


def _write_images(scratch: Path, contents: Contents) -> dict[str, Any]:
    """Write the tensors of images and return their field of the manifest; nothing for a trace without images."""
    given = contents.image_layouts, contents.photos
    if not any(given):
        return {}
    tensors = image_tensors(*given)
    file = write_file(scratch, IMAGES, tensors)._asdict() if tensors else None
    return {"images": {"file": file, **image_fields(*given)}}


def _check_names(contents: Contents) -> None:
    names = [contents.model, *contents.without_softmax, *contents.errors, *(text.part for text in contents.texts)]
    wrong = [name for name in names if not isinstance(name, str) or len(name) > MAX_CHARACTERS]
    if wrong or len(contents.layers) > MAX_LAYERS:
        what = f"the name {wrong[0]!r:.80}" if wrong else f"a trace of {len(contents.layers):,} layers"
        raise UnsupportedError(
            f"save: expected at most {MAX_LAYERS:,} layers and names of {MAX_CHARACTERS:,} characters, got {what}"
        )


def _check_readable(layers: Sequence[EncodedLayer], expressions: ExpressionWriter) -> None:
    """Raise UnsupportedError if the trace could not be opened again."""
    try:
        if len(expressions.nodes) > MAX_NODES:
            raise TraceError(f"expected at most {MAX_NODES:,} masks and scores, got {len(expressions.nodes):,}")
        reader = ExpressionReader(expressions.nodes, expressions.tensors, "masks and scores")
        for layer in layers:
            source = f"layer {layer.entry['name']!r:.80}"
            fields = trace_fields(layer.entry, source)
            decode_layer(Header.read(fields, source), fields, layer.tensors, reader)
    except TraceError as error:
        raise UnsupportedError(f"save: this trace cannot be saved: {error}") from error


def _check_manifest_size(path: Path) -> None:
    """Raise UnsupportedError if the manifest is too large to be read."""
    try:
        read_manifest(path)
    except TraceError as error:
        raise UnsupportedError(f"save: this trace has too many layers or masks: {error}; save fewer layers") from error


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A temporary folder inside the folder; removed at the end, also after an error."""
    created = not folder.exists()
    fresh = _is_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    in_use = TraceError(f"save: another process is saving a trace to {folder}; wait until it ends")
    try:
        with scratch_folder(folder, SCRATCH, in_use) as scratch:
            try:
                if fresh:
                    _mark_unfinished(scratch, folder)
                yield scratch
            except BaseException:
                if fresh:
                    _remove_trace(folder)
                raise
    finally:
        if created and not any(folder.iterdir()):
            folder.rmdir()


def _is_free(folder: Path) -> bool:
    """Whether the folder is absent or empty; raises TraceError if it contains anything but a trace."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        raise TraceError(f"save: {folder} is a file; give the name of a folder")
    if not any(not path.name.startswith(SCRATCH) for path in folder.iterdir()):
        return True
    try:
        ours = read_manifest(folder / MANIFEST).get("format") == FORMAT
    except TraceError:
        ours = False
    if not ours or (folder / LAYERS).is_symlink():
        raise TraceError(
            f"save: {folder} contains files that are not an AttnScope trace; choose an empty or another folder"
        )
    return False


def _mark_unfinished(scratch: Path, folder: Path) -> None:
    write_json(scratch / MANIFEST, UNFINISHED)
    os.replace(scratch / MANIFEST, folder / MANIFEST)


def _move_files(scratch: Path, folder: Path) -> None:
    """Move complete files into the folder; meanwhile its manifest marks it as unfinished."""
    done = scratch / f"{MANIFEST}.done"
    os.replace(scratch / MANIFEST, done)
    _mark_unfinished(scratch, folder)
    try:
        _remove_files(folder)
        for path in _trace_files(scratch):
            place = folder / path.relative_to(scratch)
            place.parent.mkdir(exist_ok=True)
            os.replace(path, place)
        os.replace(done, folder / MANIFEST)
    except BaseException:
        _remove_trace(folder)  # the old trace is gone, and the new one is incomplete
        raise


def _trace_files(folder: Path) -> list[Path]:
    """The files of a trace except its manifest."""
    layers = [path for path in (folder / LAYERS).glob("*") if re.fullmatch(r"\d{5,}\.safetensors", path.name)]
    return [*layers, *(folder / name for name in (RULES, TEXTS, IMAGES) if (folder / name).exists())]


def _remove_files(folder: Path) -> None:
    for path in _trace_files(folder):
        path.unlink()
    if (folder / LAYERS).is_dir() and not any((folder / LAYERS).iterdir()):
        (folder / LAYERS).rmdir()


def _remove_trace(folder: Path) -> None:
    _remove_files(folder)
    (folder / MANIFEST).unlink(missing_ok=True)
