"""diffusers: single files of whole models, the parts that take a LoRA, and the schedulers of Stable Diffusion."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hfjax_app.runtime.seams import Seam, moved, needed, part, replace

VERSIONS = {"diffusers": "0.42.1"}
SEAMS = (
    Seam(
        name="kinds of single files",
        what="infer_diffusers_model_type of diffusers.loaders.single_file_utils",
        without="single files of models can't be loaded",
    ),
    Seam(
        name="parts with a LoRA",
        what="`_lora_loadable_modules` of pipelines",
        without="models with a LoRA can't be loaded",
    ),
    Seam(
        name="parts that may be missing",
        what="`_optional_components` of pipelines",
        without="a model without a part that its class needs is refused later, by what then fails",
    ),
    Seam(
        name="old names in checkpoints",
        what="`_fix_state_dict_keys_on_load` of models",
        without="checkpoints with the names of older releases can't be loaded",
    ),
    Seam(
        name="lengths of prompts",
        what="patchify_and_embed, _prepare_sequence, _build_unified_sequence and cap_pad_token of "
        "ZImageTransformer2DModel; rope_embedder, _get_freqs_cis and layers of Lumina2Transformer2DModel; that "
        "CogView4Transformer2DModel and Kandinsky5Transformer3DModel mix tokens by scaled_dot_product_attention alone",
        without="Z-Image or Lumina 2 can't be traced, and the padding of prompts is seen by CogView 4 and Kandinsky 5",
    ),
    Seam(
        name="scripted functions",
        what="apply_rotary_pos_emb of diffusers.pipelines.kolors.text_encoder, and its `_torchdynamo_inline`",
        without="Kolors can't be traced",
    ),
    Seam(
        name="schedulers of a family",
        what="the enumeration diffusers.schedulers.KarrasDiffusionSchedulers",
        without="a checkpoint's own scheduler is the only choice, unless it is LCM",
    ),
)

_SINGLE_FILES = "diffusers.loaders.single_file_utils"


def kind_of_file(keys: Mapping[str, Any]) -> str:
    """diffusers' name for the kind of model that has these tensors.

    Args:
        keys: name -> anything with a `shape`.

    Raises:
        Moved: that can't be found out.
    """
    return str(needed(f"{_SINGLE_FILES}:infer_diffusers_model_type")(keys))


def parts_with_lora(pipeline: Any) -> list[str]:
    """The names of a pipeline's parts that a LoRA may change, those that it has.

    Raises:
        Moved: that can't be found out.
    """
    names = getattr(pipeline, "_lora_loadable_modules", None)
    if names is None:
        raise moved(f"diffusers:{type(pipeline).__name__}._lora_loadable_modules")
    return [name for name in names if getattr(pipeline, name, None) is not None]


def needed_parts(kind: type[Any]) -> list[str]:
    """The parts that a class of pipelines can't do without; none where that can't be found out."""
    optional = part(f"diffusers:{kind.__name__}._optional_components", without="a missing part is found later")
    if optional is None:
        return []
    parameters = inspect.signature(kind).parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.name not in optional]


def rename_old_keys(model: Any, values: "OrderedDict[str, Any]") -> None:
    """Move the values of keys that an older release wrote to the keys of today, as `from_pretrained` does."""
    where = "diffusers:ModelMixin._fix_state_dict_keys_on_load"
    if part(where, without="checkpoints of older releases can't be loaded") is not None:
        model._fix_state_dict_keys_on_load(values)


def schedulers_of_stable_diffusion() -> set[str]:
    """The names of the scheduler classes that can take each other's place."""
    where = "diffusers.schedulers:KarrasDiffusionSchedulers"
    family = part(where, without="a model's own scheduler is the only choice")
    return {member.name for member in family or ()}


def with_lengths_as_data(network: torch.nn.Module) -> torch.nn.Module:
    """A denoiser or text encoder whose code can be traced for prompts of any length, padded to the longest.

    The code of some classes makes Python numbers of a prompt's length. In these the same positions, masks and padding
    are computed from a length that is data: of rows that are NaN for Z-Image, and of the mask for Lumina 2 and Kolors.
    Others take no mask; there rows of NaN stay NaN, and attention leaves them out.

    Args:
        network: is changed; others stay as they are.

    Returns:
        The same network.
    """
    change = _LENGTHS.get(type(network).__name__)
    if change is not None:
        change(network)
    return network


def pads_prompts(network: torch.nn.Module) -> bool:
    """Whether a denoiser takes prompts whose padding is NaN, see `with_lengths_as_data`."""
    return _LENGTHS.get(type(network).__name__) in (_z_image, _without_padding)


_MULTIPLE = 32  # SEQ_MULTI_OF of Z-Image: a prompt's tokens are padded to it with a token of their own


def _z_image(network: Any) -> None:
    """The tokens of a prompt, some of padding up to a multiple of 32, and then the picture's positions follow."""
    embed, prepare, unify = network.patchify_and_embed, network._prepare_sequence, network._build_unified_sequence
    masks: list[torch.Tensor] = []  # of the prompts with their padding, [1, longest] each

    def patchify_and_embed(pictures: Any, prompts: Sequence[torch.Tensor], *sizes: Any) -> tuple[Any, ...]:
        made = list(embed(pictures, [torch.nan_to_num(prompt) for prompt in prompts], *sizes))
        masks.clear()
        for i, prompt in enumerate(prompts):
            longest = len(made[1][i])
            count = torch.logical_not(torch.isnan(prompt[:, 0])).sum()
            padded = torch.div(count + _MULTIPLE - 1, _MULTIPLE, rounding_mode="floor") * _MULTIPLE
            at = torch.arange(longest, device=prompt.device)
            masks.append((at < padded)[None])
            made[6][i] = at >= count
            ids = made[3][i]  # of the picture: (behind the prompt, row, column), or zeros for its own padding
            first = torch.where(ids[:, :1] == longest + 1, (padded + 1).to(ids.dtype), ids[:, :1])
            made[3][i] = torch.cat([first, ids[:, 1:]], dim=1)
        return tuple(made)

    def prepare_sequence(parts: Any, ids: Any, padding: Any, token: Any, *more: Any) -> tuple[Any, ...]:
        made = list(prepare(parts, ids, padding, token, *more))
        if token is network.cap_pad_token:
            made[2] = torch.cat(masks)
        return tuple(made)

    def build_unified_sequence(pictures: torch.Tensor, *more: Any) -> tuple[Any, ...]:
        made = list(unify(pictures, *more))
        prompts = torch.cat(masks)
        pictured = torch.ones(pictures.shape[:2], dtype=torch.bool, device=prompts.device)
        made[2] = torch.cat([pictured, prompts], dim=1)
        return tuple(made)

    network.patchify_and_embed = patchify_and_embed
    network._prepare_sequence = prepare_sequence
    network._build_unified_sequence = build_unified_sequence


def _lumina_2(network: Any) -> None:
    """The picture's positions follow the prompt's, and no layer looks at what lies between them."""
    rotary = network.rope_embedder
    masks: list[torch.Tensor] = []  # of prompts and pictures, [rows, tokens]

    def forward(latents: torch.Tensor, mask: torch.Tensor) -> tuple[Any, ...]:
        rows, channels, height, width = latents.shape
        side, longest = rotary.patch_size, mask.shape[1]
        tall, wide = height // side, width // side
        count = mask.to(torch.int32).sum(dim=1, keepdim=True)
        grid = torch.arange(tall * wide, dtype=torch.int32, device=mask.device)[None].repeat(rows, 1)
        own = torch.arange(longest, dtype=torch.int32, device=mask.device)[None].repeat(rows, 1)
        nothing = torch.zeros_like(own)
        down, along = torch.div(grid, wide, rounding_mode="floor"), torch.remainder(grid, wide)
        of_prompt = torch.stack([own, nothing, nothing], dim=-1)
        of_picture = torch.stack([count.expand(rows, tall * wide).to(grid.dtype), down, along], dim=-1)
        positions = rotary._get_freqs_cis(torch.cat([of_prompt, of_picture], dim=1))
        pictured = torch.ones(grid.shape, dtype=torch.bool, device=mask.device)
        masks[:] = [torch.cat([own < count, pictured], dim=1)]
        patches = (
            latents.view(rows, channels, tall, side, wide, side).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        )
        lengths, sums = [longest] * rows, [longest + tall * wide] * rows
        return patches, positions[:, :longest], positions[:, longest:], positions, lengths, sums

    def masked(layer: Callable[..., Any]) -> Callable[..., Any]:
        return lambda states, mask, *more: layer(states, masks[0], *more)

    rotary.forward = forward
    for layer in network.layers:
        layer.forward = masked(layer.forward)


class _LeavesOutPadding(TorchFunctionMode):
    """While active, no query attends to a key that is NaN."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))

        def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any) -> Any:
            assert attn_mask is None, "the class takes no mask"
            is_there = torch.logical_not(torch.isnan(key[..., :1])).transpose(-1, -2)
            return func(query, torch.nan_to_num(key), torch.nan_to_num(value), attn_mask=is_there, **options)

        return attend(*args, **(kwargs or {}))


def _without_padding(network: Any) -> None:
    forward = network.forward

    def padded(*args: Any, **kwargs: Any) -> Any:
        with _LeavesOutPadding():
            return forward(*args, **kwargs)

    network.forward = padded


def _chat_glm(network: Any) -> None:
    """Its code asks whether a mask leaves out anything, and a part of it is scripted, which can't be traced."""
    forward, script = network.forward, needed(f"{_KOLORS}:apply_rotary_pos_emb")
    if (function := getattr(script, "_torchdynamo_inline", None)) is not None:
        replace(f"{_KOLORS}:apply_rotary_pos_emb", function, without=None)

    def masked(input_ids: torch.Tensor, *args: Any, attention_mask: torch.Tensor, **kwargs: Any) -> Any:
        whole = network.get_masks(input_ids, None, padding_mask=attention_mask)
        return forward(input_ids, *args, attention_mask=attention_mask, full_attention_mask=whole, **kwargs)

    network.forward = masked


_KOLORS = "diffusers.pipelines.kolors.text_encoder"
_LENGTHS: Mapping[str, Callable[[Any], None]] = {
    "ZImageTransformer2DModel": _z_image,
    "Lumina2Transformer2DModel": _lumina_2,
    "CogView4Transformer2DModel": _without_padding,
    "Kandinsky5Transformer3DModel": _without_padding,
    "ChatGLMModel": _chat_glm,
}
