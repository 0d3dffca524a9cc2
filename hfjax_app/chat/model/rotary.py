"""Rotary embeddings whose frequencies depend on the length of the sequence (LongRoPE, dynamic NTK), chosen once.

transformers chooses them in every forward, by the positions that it gets. A compiled program can't, and a cache that
was written with both would be wrong: here the context that is served decides for all of it.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_BY_LENGTH = ("longrope", "dynamic")


def positions_of(config: Any) -> int | None:
    """The positions that a model has, those of dynamic NTK scaling included; None: no limit.

    Args:
        config: of the text model.
    """
    positions: int | None = getattr(config, "max_position_embeddings", None)
    if positions is None or positions <= 0:  # XLNet's config says -1
        return None
    scaling = getattr(config, "rope_parameters", None) or {}
    factor = scaling.get("factor") if scaling.get("rope_type") == "dynamic" else None
    return int(positions * factor) if isinstance(factor, int | float) and factor > 1 else positions


def choose_frequencies(model: torch.nn.Module, context: int) -> dict[str, torch.Tensor]:
    """Make a model use the frequencies for one length whatever its positions are.

    Args:
        model: on the meta device; its rotary embeddings are changed.
        context: tokens of the longest sequence.

    Returns:
        The buffers that hold these frequencies, by name.
    """
    chosen: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        if not hasattr(module, "rope_type") or not hasattr(module, "config"):
            continue
        for kind, layer_type in _kinds(module.rope_type):
            if kind not in _BY_LENGTH:
                continue
            options = {} if layer_type is None else {"layer_type": layer_type}
            frequencies, _ = ROPE_INIT_FUNCTIONS[kind](module.config, torch.device("cpu"), seq_len=context, **options)
            prefix = f"{name}." if name else ""
            chosen[prefix + ("inv_freq" if layer_type is None else f"{layer_type}_inv_freq")] = frequencies
        if any(kind in _BY_LENGTH for kind, _ in _kinds(module.rope_type)):
            _stop_choosing(module, context)
    return chosen


def _kinds(rope_type: Any) -> Iterator[tuple[str, str | None]]:
    """The kinds of a rotary embedding, and the type of layers that each is for; None: all layers."""
    if isinstance(rope_type, dict):
        for layer_type, kind in rope_type.items():
            yield kind, layer_type
    else:
        yield rope_type, None


def _stop_choosing(module: Any, context: int) -> None:
    """Let a rotary embedding take its frequencies and its factor as they are."""
    if isinstance(module.rope_type, dict):
        module.rope_type = {name: "default" if kind in _BY_LENGTH else kind for name, kind in module.rope_type.items()}
        return
    scaling, original = module.config.rope_parameters, module.config
    module.rope_type, module.config = "default", copy.deepcopy(original)
    module.config.rope_parameters["rope_type"] = "default"
    if (compute := getattr(module, "rope_init_fn", None)) is not None and "long_mscale" in scaling:
        # Phi-3.5-MoE computes its frequencies in each forward, and has a factor of its own for each length.
        is_long = context > scaling["original_max_position_embeddings"]
        factor = scaling["long_mscale" if is_long else "short_mscale"]
        module.rope_init_fn = lambda config: (compute(original)[0], factor)
