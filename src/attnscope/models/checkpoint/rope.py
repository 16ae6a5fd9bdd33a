"""The rotary fields of a config.json, both ways: the pace of each pair, and how it is slowed for longer texts.

In: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (transformers 4). Out: a `Rotary`, and back.
Does not know: the rest of the config. Memory: O(1).
"""

from __future__ import annotations

from attnscope.attention.rotary import Rotary
from attnscope.attention.rotary_scaling import LinearScaling, Llama3Scaling, Scaling, YarnScaling
from attnscope.errors import CheckpointError, UnsupportedModelError
from attnscope.models.json_fields import Fields

SCALINGS = {name: name for name in ("default", "linear", "llama3", "yarn")}
"""The values of `rope_type` that are understood."""


def rotary_from(fields: Fields, *, head_dim: int, max_position_embeddings: int) -> Rotary:
    """How the heads turn, from the fields of either version."""
    base = fields.number("rope_theta", 10000.0)
    fields.only(partial_rotary_factor=1.0)
    scaling, parameters = fields.optional_inner("rope_scaling"), fields.optional_inner("rope_parameters")
    if scaling is not None and parameters is not None:
        raise UnsupportedModelError(
            f"{fields.source} has both rope_scaling and rope_parameters, which may disagree; choose one of them by "
            'ignore=("rope_scaling",) or ignore=("rope_parameters",)'
        )
    inner = scaling or parameters
    if inner is None:
        return Rotary(dim=head_dim, layout="half", base=base)
    inner.only(partial_rotary_factor=1.0)
    base = inner.number("rope_theta", base)
    kind = "rope_type" if "rope_type" in inner else "type"
    slowed = _scaling(inner.choice(kind, SCALINGS, "default"), inner, max_position_embeddings)
    inner.changes_nothing("type")
    inner.finish()
    return Rotary(dim=head_dim, layout="half", base=base, scaling=slowed)


def rope_fields(rotary: Rotary, *, head_dim: int) -> dict[str, object]:
    """The `rope_parameters` of a rotary; refuses what they cannot express."""
    if rotary.layout != "half":
        raise CheckpointError(
            'these checkpoints have the rotary layout "half", but the model turns "interleaved" pairs; convert its '
            "query and key weights with attnscope.attention.rotary.convert_layout"
        )
    if rotary.dim != head_dim:
        raise CheckpointError(f"these checkpoints turn whole heads of {head_dim}, but Rotary.dim is {rotary.dim}")
    found: dict[str, object] = {"rope_theta": rotary.base}
    match rotary.scaling:
        case None:
            return {**found, "rope_type": "default"}
        case LinearScaling() as scaling:
            return {**found, "rope_type": "linear", "factor": scaling.factor}
        case Llama3Scaling() as scaling:
            return {
                **found,
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_frequency_factor,
                "high_freq_factor": scaling.high_frequency_factor,
                "original_max_position_embeddings": scaling.original_length,
            }
        case YarnScaling() as scaling:
            optional = {name: getattr(scaling, name) for name in ("attention_factor", "mscale", "mscale_all_dim")}
            return {
                **found,
                "rope_type": "yarn",
                "factor": scaling.factor,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "original_max_position_embeddings": scaling.original_length,
                "truncate": scaling.truncate,
                **{name: value for name, value in optional.items() if value is not None},
            }
    raise CheckpointError(f"these checkpoints know no {type(rotary.scaling).__name__}")


def _scaling(kind: str, inner: Fields, max_position_embeddings: int) -> Scaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=inner.number("factor"))
    original_length = inner.size("original_max_position_embeddings", max_position_embeddings)
    if kind == "llama3":
        return Llama3Scaling(
            factor=inner.number("factor"),
            low_frequency_factor=inner.number("low_freq_factor"),
            high_frequency_factor=inner.number("high_freq_factor"),
            original_length=original_length,
        )
    factor = inner.optional_number("factor")
    return YarnScaling(
        factor=max_position_embeddings / original_length if factor is None else factor,
        original_length=original_length,
        # null and 0 both stand for the defaults of the paper
        beta_fast=inner.optional_number("beta_fast") or 32.0,
        beta_slow=inner.optional_number("beta_slow") or 1.0,
        attention_factor=inner.optional_number("attention_factor"),
        mscale=inner.optional_number("mscale"),
        mscale_all_dim=inner.optional_number("mscale_all_dim"),
        truncate=inner.flag("truncate", True),
    )
