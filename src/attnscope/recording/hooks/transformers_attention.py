"""Intercept attention of transformers models through AttentionInterface and AttentionMaskInterface.

In: a model. Out: inside the with block, every attention call is reported to the observers of the thread that runs it,
and computed in O(n) memory; in threads without an observer the model runs its own code.
Does not know: names, traces. The model's configs name our implementation meanwhile, and two registries of transformers
have an entry for it. Both are restored.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, partial
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope.attention import Causal, Full, Sinks, Softcap, attend
from attnscope.attention.algebra import Mask
from attnscope.attention.scores import ScoreMod, chain_scores
from attnscope.attention.spec import to_autocast_dtype
from attnscope.errors import UnsupportedError
from attnscope.extras import import_extra, require_names
from attnscope.recording.call import Call, refuse_meta
from attnscope.recording.hooks.mask_tensors import read_bias, read_tensor
from attnscope.recording.hooks.observers import current_interventions, current_observers, suppress_recording
from attnscope.recording.hooks.transformers_masks import LazyMask
from attnscope.recording.hooks.verification import ReferenceBlock, from_eager

NAME = "attnscope"

SCORE_ARGUMENTS = {"softcap", "s_aux", "position_bias"}
"""Arguments that change the scores, and that AttnScope applies."""
SUPPORTED = SCORE_ARGUMENTS | {"is_causal", "sliding_window", "output_attentions"}
"""Further arguments that are applied here, or that do not change the weights."""


@dataclass
class _Switched:
    """A config that names our implementation, the number of its users, and the modules that read it."""

    config: Any
    original: str
    users: int
    modules: set[int]


_lock = RLock()
_switched: dict[int, _Switched] = {}
_deciding: dict[int, _Switched] = {}  # for each module
_asked: ContextVar[int | None] = ContextVar("asked", default=None)
"""The id of the outermost running model that was asked for its attention weights."""


def is_transformers_model(model: nn.Module) -> bool:
    """Whether the model is, or holds, one of transformers; the library is not imported to find out."""
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and any(isinstance(module, library.PreTrainedModel) for module in model.modules())


@contextmanager
def intercept_transformers(model: nn.Module) -> Iterator[None]:
    """Report attention calls of all transformers models in `model` to the observers."""
    if not is_transformers_model(model):
        yield
        return
    for registry in _registries():
        require_names("transformers", registry, "register", "_global_mapping")
    deciding = _configs_of(model)
    for config, _ in deciding:
        require_names("transformers", config, "_attn_implementation", "_attn_implementation_internal")
    with _lock:
        _register()
        for config, modules in deciding:
            found = _switched.setdefault(
                id(config), _Switched(config, config._attn_implementation or "eager", 0, set())
            )
            found.users += 1
            found.modules |= modules
            _deciding.update(dict.fromkeys(modules, found))
            config._attn_implementation_internal = NAME
    try:
        with _noted_requests(model):
            yield
    finally:
        with _lock:
            for config, _ in deciding:
                _put_back(_switched[id(config)])


def _put_back(found: _Switched) -> None:
    found.users -= 1
    if found.users:
        return
    found.config._attn_implementation_internal = found.original
    del _switched[id(found.config)]
    for module in found.modules:
        _deciding.pop(module, None)
    if not _switched:
        for registry in _registries():
            registry._global_mapping.pop(NAME, None)  # there is no way to unregister


@contextmanager
def _noted_requests(model: nn.Module) -> Iterator[None]:
    """Note which transformers model was called with output_attentions=True, which not all layers pass on."""

    def before(module: nn.Module, _: tuple, kwargs: dict[str, Any]) -> None:
        if kwargs.get("output_attentions"):
            _asked.set(_asked.get() or id(module))
        elif _asked.get() == id(module):  # torch runs no hooks after a KeyboardInterrupt
            _asked.set(None)

    def after(module: nn.Module, *_: object) -> None:
        if _asked.get() == id(module):
            _asked.set(None)

    library = import_extra("transformers.modeling_utils")
    handles = []
    for module in model.modules():
        if isinstance(module, library.PreTrainedModel):
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(module.register_forward_hook(after, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _configs_of(model: nn.Module) -> list[tuple[Any, set[int]]]:
    """The configs to switch, each with the modules that it decides for."""
    library = import_extra("transformers.modeling_utils")
    deciding: dict[int, Any] = {}
    for submodel in model.modules():  # outer ones first, so that inner ones decide for their own modules
        can_be_switched = getattr(submodel, "_can_set_attn_implementation", None)
        if can_be_switched is not None and can_be_switched():
            for module in submodel.modules():
                own = getattr(module, "config", None)
                deciding[id(module)] = own if isinstance(own, library.PreTrainedConfig) else submodel.config
    configs = {id(config): (config, set()) for config in deciding.values()}
    for module, config in deciding.items():
        configs[id(config)][1].add(module)
    return list(configs.values())


def _registries() -> tuple[Any, Any]:
    models, masks = import_extra("transformers.modeling_utils"), import_extra("transformers.masking_utils")
    require_names("transformers", models, "AttentionInterface", "PreTrainedConfig")
    require_names("transformers", masks, "AttentionMaskInterface", "sdpa_mask")
    return models.AttentionInterface, masks.AttentionMaskInterface


def _register() -> None:
    attention, masks = _registries()
    attention.register(NAME, _attention)
    masks.register(NAME, _mask)


def _mask(**arguments: Any) -> Any:
    """What a model makes once and passes to its layers; for other threads, what they would have had."""
    given = arguments.get("attention_mask")
    if isinstance(given, LazyMask):  # made before the layers were asked, as static caches do
        return given
    found = _switched.get(id(arguments.get("config")))
    original = "eager" if found is None else found.original

    def make_original_mask(arguments: Mapping[str, Any]) -> Tensor | None:
        masks = import_extra("transformers.masking_utils").AttentionMaskInterface()
        return masks[original](**arguments)

    return LazyMask(arguments, make_original_mask) if current_observers() else make_original_mask(arguments)


class Arguments(NamedTuple):
    """What a model passes to its attention function."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    attention_mask: Any
    scaling: float | None
    dropout: float
    kwargs: Mapping[str, Any]


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that models call, with interventions applied: (batch, queries, heads, dim)."""
    given = Arguments(module, query, key, value, attention_mask, scaling, dropout, kwargs)
    changing = [
        intervention
        for intervention in current_interventions()
        if intervention.owns(module) and intervention.targets(module)
    ]
    if not changing:
        return _observed(given)
    with suppress_recording():  # of these heads, not of what computes them or what takes their place
        output, weights = _observed(given)
        for intervention in changing:
            output = intervention.apply(module, output.transpose(1, 2), key.shape[2]).transpose(1, 2)
    return output, weights


def _observed(given: Arguments) -> tuple[Tensor, Tensor | None]:
    """Compute and report to observers; without an observer, call the model's own function."""
    owners = [observer for observer in current_observers() if observer.owns(given.module)]
    lazy = given.attention_mask if isinstance(given.attention_mask, LazyMask) else None
    if not owners and lazy is None:
        return _original(given)
    refuse_meta(given.query)
    with suppress_recording():
        if given.query.device.type == "cpu" and not _must_return_weights(given):
            call, output = _attend(given)
            weights = None
        else:  # the model's own function: ours is made for the CPU, and builds no weights
            call = read(given)
            output, weights = _original(given if lazy is None else given._replace(attention_mask=lazy.tensor()))
        with torch._C.DisableTorchFunction():  # a mode would be called for each line of ours
            for observer in owners:
                observer.on_attention(given.module, call, partial(_reference_blocks, given, call))
    return output, weights


def _attend(given: Arguments) -> tuple[Call, Tensor]:
    """The call and its output (batch, queries, heads, dim)."""
    with torch._C.DisableTorchFunction():
        call = read(given)
        output, lse = attend(
            given.query,
            call.key,
            call.value if call.value is not None else given.value,
            mask=call.mask,
            scale=call.scale,
            score_mod=call.score_mod,
            dropout=given.dropout,
            return_lse=True,
        )
        return replace(call, lse=lse), output.transpose(1, 2).contiguous()


def _must_return_weights(given: Arguments) -> bool:
    """Whether the model was asked for output_attentions, and its own implementation returns them."""
    if _original_name(given.module) != "eager":
        return False
    config = getattr(given.module, "config", None)
    if _asked.get() or given.kwargs.get("output_attentions") or getattr(config, "output_attentions", False):
        return True
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(capturing, "_active_collector", None)
    wanted = None if collector is None else collector.get()
    return bool(wanted) and any("attentions" in name for name in wanted)


def read(given: Arguments) -> Call:
    """The arguments of an attention function as a call; raises UnsupportedError for unknown arguments."""
    _check_arguments(given)
    _check_ignored(given)
    module, mask_argument, kwargs = given.module, given.attention_mask, given.kwargs
    query, key, value = to_autocast_dtype(given.query, given.key, given.value)
    row, column, whole = max(key.shape[2] - query.shape[2], 0), 0, None
    if isinstance(mask_argument, LazyMask):
        row, column, whole = mask_argument.row, mask_argument.column, mask_argument
        if not mask_argument.has_future_keys:  # a static cache has room behind the text, which no query sees
            seen = row + query.shape[2] - column
            if seen < key.shape[2]:
                key, value = key[:, :, :seen], value[:, :, :seen]
        rows, columns = range(row, row + query.shape[2]), range(column, column + key.shape[2])
        mask, added = mask_argument.slice(rows, columns), None
    elif mask_argument is None:
        mask, added = (_causal(query, key) if _is_causal(module, query, kwargs) else Full()), None
    elif mask_argument.dtype == torch.bool and _original_name(module) == "eager":
        raise UnsupportedError(
            f"record: {type(module).__name__} was given a mask of booleans, which its eager attention adds to the "
            "scores as 0 and 1; pass 0 and minus infinity instead, or load the model with attn_implementation='sdpa'"
        )
    else:
        mask, added = read_tensor(mask_argument, query, key)
    return Call(
        query=query,
        key=key,
        value=value,
        mask=mask,
        scale=given.scaling,
        score_mod=_score(kwargs, added, query, key.shape[2]),
        row=row,
        column=column,
        cross=True if vars(module).get("is_cross_attention") else None,  # getattr of a module is slow where it has none
        whole=whole,
    )


def _score(kwargs: Mapping[str, Any], added: ScoreMod | None, query: Tensor, keys: int) -> ScoreMod | None:
    """Softcap before what is added, sinks last: the order of the models that have them."""
    if added is None and not SCORE_ARGUMENTS & kwargs.keys():
        return None
    parts: list[ScoreMod] = [] if added is None else [added]
    if kwargs.get("softcap") is not None:
        parts.insert(0, Softcap(kwargs["softcap"]))
    position_bias = kwargs.get("position_bias")
    if position_bias is not None:
        cut = position_bias if position_bias.shape[-1] == keys else position_bias[..., :keys]  # room of a static cache
        parts += [bias] if (bias := read_bias(cut, query.shape[1], query.shape[2], keys)) is not None else []
    if kwargs.get("s_aux") is not None:
        parts.append(Sinks(kwargs["s_aux"].reshape(-1)))
    return chain_scores(parts)


def _is_causal(module: nn.Module, query: Tensor, kwargs: Mapping[str, Any]) -> bool:
    """Whether no mask means a causal one: where the call says so, or where the model's own implementation reads it so.

    An implementation of transformers beside "eager" asks the module, and takes a module that does not say for causal.
    That guess is not repeated here: models whose encoders do not say would be read as decoders.
    """
    if query.shape[2] == 1:
        return False
    if kwargs.get("is_causal") is not None:
        return bool(kwargs["is_causal"])
    return _original_name(module) != "eager" and getattr(module, "is_causal", False) is True


def _original_name(module: nn.Module) -> str:
    """The implementation that a module uses without recording."""
    found = _deciding.get(id(module)) or _switched.get(id(getattr(module, "config", None)))
    return "eager" if found is None else found.original


def _causal(query: Tensor, key: Tensor) -> Mask:
    return Causal() if query.shape[2] == key.shape[2] else Causal(0)  # torch aligns it top-left


def _check_arguments(given: Arguments) -> None:
    """Raise UnsupportedError for an argument that the model's own function reads and this one does not."""
    for name in _unsupported_arguments(type(given.module)) & given.kwargs.keys():
        if given.kwargs[name] is not None:
            raise UnsupportedError(
                f"record: {type(given.module).__name__} passes {name!r} to its attention, which changes the weights "
                "and is not supported; run the model with attn_implementation='eager' and output_attentions=True, and "
                "make a trace with Trace.from_attentions(outputs.attentions)"
            )


def _check_ignored(given: Arguments) -> None:
    """Raise if the model's own SDPA drops a term of the scores: recorded weights would not be those of the model.

    Some versions of transformers drop the softcap of Gemma 2 without an error.
    """
    present = [name for name in SCORE_ARGUMENTS & given.kwargs.keys() if given.kwargs[name] is not None]
    if not present or _original_name(given.module) != "sdpa":
        return
    code = inspect.unwrap(_registries()[0]()["sdpa"]).__code__
    if ignored := set(present) - {*code.co_varnames, *code.co_consts}:
        version = import_extra("transformers").__version__
        raise UnsupportedError(
            f"record: {type(given.module).__name__} passes {', '.join(ignored)} to its attention, which the sdpa of "
            f"transformers {version} ignores; load the model with attn_implementation='eager'"
        )


@cache
def _unsupported_arguments(kind: type[nn.Module]) -> frozenset[str]:
    """Names that would change the weights of this kind of layer."""
    usual = {"module", "query", "key", "value", "attention_mask", "scaling", "dropout", "kwargs"}
    eager = eager_function(kind)
    named = set() if eager is None else set(inspect.signature(eager).parameters)
    return frozenset((named | {"indices", "block_indices"}) - usual - SUPPORTED)


@cache
def eager_function(kind: type[nn.Module]) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The attention of a kind of layer as the model's own file writes it, weights and all; None where there is none.

    A file may have several: the one that the layer's own code names is meant.
    """
    forward = inspect.unwrap(kind.forward)
    named = [name for name in forward.__code__.co_names if name.endswith("eager_attention_forward")]
    files = [forward.__globals__, *(vars(sys.modules[base.__module__]) for base in kind.__mro__)]
    found = (file.get(name) for name in [*named, "eager_attention_forward"] for file in files)
    return next((function for function in found if function is not None), None)


def _reference_blocks(given: Arguments, call: Call) -> list[ReferenceBlock]:
    eager = eager_function(type(given.module))
    if eager is None:
        return []
    assert call.value is not None
    tensors = call.query, call.key, call.value
    return from_eager(eager, given.module, tensors, given.attention_mask, given.scaling, given.kwargs)


def _original(given: Arguments) -> tuple[Tensor, Tensor | None]:
    """Call the attention function that the model would use without recording."""
    name = _original_name(given.module)
    function = eager_function(type(given.module)) if name == "eager" else _registries()[0]()[name]
    if function is None:
        raise UnsupportedError(
            f"record: no eager attention was found for {type(given.module).__name__}; record another layer"
        )
    return function(
        given.module,
        given.query,
        given.key,
        given.value,
        given.attention_mask,
        scaling=given.scaling,
        dropout=given.dropout,
        **given.kwargs,
    )
