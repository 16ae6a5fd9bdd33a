"""Intercept attention of transformers models through AttentionInterface and AttentionMaskInterface.

In: a model. Out: inside the with block, every attention call is reported to the observers of the thread that runs it,
and computed in O(n) memory; in threads without an observer the model runs its own code.
Does not know: layer names, traces. Inside the block, the model's configs name our implementation, and two registries of
transformers have an entry for it. Both are restored.
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
from attnscope.recording.hooks.mask_tensors import read_bias, read_mask
from attnscope.recording.hooks.observers import current_interventions, current_observers, suppress_recording
from attnscope.recording.hooks.transformers_masks import LazyMask
from attnscope.recording.hooks.verification import ReferenceBlock, from_eager

NAME = "attnscope"

SCORE_ARGUMENTS = {"softcap", "s_aux", "position_bias"}
"""Arguments that change the scores, and that AttnScope applies."""
SUPPORTED = SCORE_ARGUMENTS | {"is_causal", "sliding_window", "output_attentions"}
"""All arguments that are applied here, or that do not change the weights."""


@dataclass
class _Switched:
    """A config that names our implementation, the number of its users, and the modules that read it."""

    config: Any
    original: str
    users: int
    modules: set[int]


_lock = RLock()
_switched: dict[int, _Switched] = {}
_config_of: dict[int, _Switched] = {}  # by the id of a module
_weights_requested: ContextVar[int | None] = ContextVar("weights_requested", default=None)
"""The id of the outermost running model that was called with output_attentions=True."""


def is_transformers_model(model: nn.Module) -> bool:
    """Whether the model is or contains a transformers model; does not import transformers."""
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
    configs = _configs_of(model)
    for config, _ in configs:
        require_names("transformers", config, "_attn_implementation", "_attn_implementation_internal")
    with _lock:
        _register()
        for config, modules in configs:
            found = _switched.setdefault(
                id(config), _Switched(config, config._attn_implementation or "eager", 0, set())
            )
            found.users += 1
            found.modules |= modules
            _config_of.update(dict.fromkeys(modules, found))
            config._attn_implementation_internal = NAME
    try:
        with _note_requested_weights(model):
            yield
    finally:
        with _lock:
            for config, _ in configs:
                _restore(_switched[id(config)])


def _restore(found: _Switched) -> None:
    found.users -= 1
    if found.users:
        return
    found.config._attn_implementation_internal = found.original
    del _switched[id(found.config)]
    for module in found.modules:
        _config_of.pop(module, None)
    if not _switched:
        for registry in _registries():
            registry._global_mapping.pop(NAME, None)  # the registry has no method for this


@contextmanager
def _note_requested_weights(model: nn.Module) -> Iterator[None]:
    """Note which transformers model was called with output_attentions=True, which not all layers pass on."""

    def before(module: nn.Module, _: tuple, kwargs: dict[str, Any] | None = None) -> None:
        """Torch leaves out `kwargs` in other threads, while this one adds or removes the hook."""
        if kwargs is not None and kwargs.get("output_attentions"):
            _weights_requested.set(_weights_requested.get() or id(module))
        elif _weights_requested.get() == id(module):  # torch runs no hooks after a KeyboardInterrupt
            _weights_requested.set(None)

    def after(module: nn.Module, *_: object) -> None:
        if _weights_requested.get() == id(module):
            _weights_requested.set(None)

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
    """The configs to switch, each with the ids of the modules that read it."""
    library = import_extra("transformers.modeling_utils")
    config_of: dict[int, Any] = {}
    for submodel in model.modules():  # outer ones first, so that an inner config replaces an outer one
        can_be_switched = getattr(submodel, "_can_set_attn_implementation", None)
        if can_be_switched is not None and can_be_switched():
            for module in submodel.modules():
                own = getattr(module, "config", None)
                config_of[id(module)] = own if isinstance(own, library.PreTrainedConfig) else submodel.config
    configs = {id(config): (config, set()) for config in config_of.values()}
    for module, config in config_of.items():
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
    """The mask that a model passes to its layers; without observers in this thread, the model's own mask."""
    given = arguments.get("attention_mask")
    if isinstance(given, LazyMask):  # static caches make the mask before the model does
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
        return _run_observed(given)
    with suppress_recording():  # these heads are reported once, without the calls that compute or replace them
        output, weights = _run_observed(given)
        for intervention in changing:
            heads = output.transpose(1, 2)
            output = intervention.apply(module, heads, key.shape[2], partial(read, given)).transpose(1, 2)
    return output, weights


def _run_observed(given: Arguments) -> tuple[Tensor, Tensor | None]:
    """Compute and report to observers; without an observer, call the model's own function."""
    owners = [observer for observer in current_observers() if observer.owns(given.module)]
    lazy = given.attention_mask if isinstance(given.attention_mask, LazyMask) else None
    if not owners and lazy is None:
        return _original(given)
    refuse_meta(given.query)
    needs_lse = any(observer.needs_lse for observer in current_observers())
    with suppress_recording():
        if needs_lse and given.query.device.type == "cpu" and not _must_return_weights(given):
            call, output = _attend(given)
            weights = None
        else:  # attend is made for the CPU, returns no weights, and rounds otherwise than the model's kernel
            call = read(given)
            output, weights = _original(given if lazy is None else given._replace(attention_mask=lazy.tensor()))
        with torch._C.DisableTorchFunction():  # otherwise a mode is called for each torch function in the observer
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
    """Whether output_attentions is on, and the model's own implementation returns the weights."""
    if _original_name(given.module) != "eager":
        return False
    config = getattr(given.module, "config", None)
    if _weights_requested.get() or given.kwargs.get("output_attentions") or getattr(config, "output_attentions", False):
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
        if not mask_argument.has_future_keys:  # the unused positions of a static cache are masked
            used = row + query.shape[2] - column
            if used < key.shape[2]:
                key, value = key[:, :, :used], value[:, :, :used]
        rows, columns = range(row, row + query.shape[2]), range(column, column + key.shape[2])
        mask, added = mask_argument.slice(rows, columns), None
    elif mask_argument is None:
        mask, added = (_causal(query, key) if _is_causal(module, query, kwargs) else Full()), None
    elif mask_argument.dtype == torch.bool and _original_name(module) == "eager":
        raise UnsupportedError(
            f"record: {type(module).__name__} was called with a boolean mask, which its eager attention adds to the "
            "scores as 0 and 1; pass 0 and minus infinity instead, or load the model with attn_implementation='sdpa'"
        )
    else:
        mask, added = read_mask(mask_argument, query, key)
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
    """The score modifier of a call, in the order that models use: softcap, biases, sinks."""
    if added is None and not SCORE_ARGUMENTS & kwargs.keys():
        return None
    parts: list[ScoreMod] = [] if added is None else [added]
    if kwargs.get("softcap") is not None:
        parts.insert(0, Softcap(kwargs["softcap"]))
    position_bias = kwargs.get("position_bias")
    if position_bias is not None:
        used = position_bias[..., :keys] if position_bias.shape[-1] != keys else position_bias  # of a static cache
        parts += [bias] if (bias := read_bias(used, query.shape[1], query.shape[2], keys)) is not None else []
    if kwargs.get("s_aux") is not None:
        parts.append(Sinks(kwargs["s_aux"].reshape(-1)))
    return chain_scores(parts)


def _is_causal(module: nn.Module, query: Tensor, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call without a mask is causal, by its `is_causal` argument or by that attribute of the module.

    Implementations of transformers other than "eager" read the attribute, with True as the default. The default is not
    used here, because encoders without the attribute would be recorded as decoders.
    """
    if query.shape[2] == 1:
        return False
    if kwargs.get("is_causal") is not None:
        return bool(kwargs["is_causal"])
    return _original_name(module) != "eager" and getattr(module, "is_causal", False) is True


def _original_name(module: nn.Module) -> str:
    """The implementation that a module uses without recording."""
    found = _config_of.get(id(module)) or _switched.get(id(getattr(module, "config", None)))
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
    """Arguments that change the weights of a layer class and are not supported."""
    usual = {"module", "query", "key", "value", "attention_mask", "scaling", "dropout", "kwargs"}
    eager = eager_function(kind)
    named = set() if eager is None else set(inspect.signature(eager).parameters)
    return frozenset((named | {"indices", "block_indices"}) - usual - SUPPORTED)


@cache
def eager_function(kind: type[nn.Module]) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The eager attention function of a layer class, which returns weights; None if there is none.

    If the model's file has several, it is the one that the forward of the class names.
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
