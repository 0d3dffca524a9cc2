"""What differs between families of models with eyes. Their own code runs unmodified.

A family needs an entry only. Its model's `get_image_features` makes the embeddings, its image processor the pixels, and
its processor writes what stands for a picture in a prompt.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

# Of a picture: its embeddings [tokens, hidden], and what is added to the outputs of the first layers, as many of the
# same shape; most models have none.
Features = tuple[torch.Tensor, tuple[torch.Tensor, ...]]
TextOf = Callable[[int], str]  # of a token, by its id


def features(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> Features:
    """By the model's own code.

    Args:
        model: whole, its decoder may be missing.
        inputs: one picture, as the image processor prepares it.
    """
    get: Any = model.get_image_features
    pixels = inputs["pixel_values"].to(model.dtype)
    made = get(**{**inputs, "pixel_values": pixels})
    deep = getattr(made, "deepstack_features", None) or ()
    return _rows(made.pooler_output), tuple(map(_rows, deep))


def _rows(found: Any) -> torch.Tensor:
    """[tokens, hidden] of one picture, which models return in one piece or in several."""
    parts = found if isinstance(found, list | tuple) else [found]
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


def _idefics3(model: Any, inputs: Mapping[str, torch.Tensor]) -> Features:
    """Its `get_image_features` after it has left out the empty pictures of a batch, which can't be traced."""
    pixels = inputs["pixel_values"][0].to(model.dtype)
    side = pixels.shape[-1] // model.config.vision_config.patch_size
    patches = torch.ones((1, side, side), dtype=torch.bool, device=pixels.device)
    seen = model.model.vision_model(pixel_values=pixels, patch_attention_mask=patches).last_hidden_state
    return _rows(model.model.connector(seen)), ()


def _around(config: Any, text_of: TextOf, prepared: Mapping[str, Any]) -> str:
    """As the processor writes it, which needs a package for videos."""
    side = config.vision_config.image_size // config.vision_config.patch_size
    tokens = text_of(config.image_token_id) * (side**2 // int(config.scale_factor) ** 2)
    return f"<fake_token_around_image><global-img>{tokens}<fake_token_around_image>"


@dataclass(frozen=True, kw_only=True)
class Family:
    """How one family of models sees.

    Args:
        unit: of the model's configuration and the image processor: pixels of the side of the square that a token stands
            for. None: pictures have one size, which the image processor makes itself.
        options: of the image processor and of a budget of tokens: what the processor is told, so that it leaves the
            size as it is and makes one view of the picture.
        budgets: those that the model was trained with; None: any.
        most: the largest budget; None: any.
        images: of the settings in the checkpoint's file: an image processor that prepares one view of a picture without
            packages that are not here; None: the checkpoint's own does.
        both_ways: of the text model's configuration: the types of layers in which each of a picture's tokens sees all
            of them, also those after it.
        features: of the whole model and a prepared picture.
        deep: of its configuration: to how many of the first layers' outputs a picture is added.
        written: what the processor writes for a prepared picture, by the model's configuration; None: the processor is
            asked, as it can be made without packages that are not here.
        mark: what a chat template writes for a picture; None: the processor's token, or the placeholder.
    """

    unit: Callable[[Any, Any], int] | None = None
    options: Callable[[Any, int], Mapping[str, Any]] = lambda processor, budget: {"do_resize": False}
    budgets: tuple[int, ...] | None = None
    most: int | None = None
    images: Callable[[Mapping[str, Any]], Any] | None = None
    both_ways: Callable[[Any], tuple[str, ...]] = lambda config: ()
    features: Callable[[PreTrainedModel, Mapping[str, torch.Tensor]], Features] = features
    deep: Callable[[Any], int] = lambda config: 0
    written: Callable[[Any, TextOf, Mapping[str, Any]], str] | None = None
    mark: str | None = None


def _rows_and_breaks(config: Any, text_of: TextOf, prepared: Mapping[str, Any]) -> str:
    """As Pixtral's processor writes it, whose class needs torchvision."""
    rows, columns = prepared["image_sizes"][0] // (config.vision_config.patch_size * config.spatial_merge_size)
    return "[IMG_BREAK]".join([text_of(config.image_token_id) * columns] * rows) + "[IMG_END]"


def _lfm2_images(settings: Mapping[str, Any]) -> Any:
    """As LFM2-VL's image processor, which needs torchvision, prepares a picture of one tile: SigLIP 2's patches."""
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    names = ("image_mean", "image_std", "rescale_factor", "do_rescale", "do_normalize", "resample")
    given = {name: settings[name] for name in names if settings.get(name) is not None}
    return Siglip2ImageProcessorPil(patch_size=settings.get("encoder_patch_size", 16), **given)


def _among_others(settings: Mapping[str, Any]) -> Any:
    """LLaVA-OneVision's image processor shows one picture in tiles, and each of several in one view: here always."""
    from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil

    kind: Any = LlavaOnevisionImageProcessorPil

    class AmongOthers(kind):
        def __call__(self, images: Any, **options: Any) -> dict[str, Any]:
            made = super().__call__([[images, images]], **options)
            one = {name: made[name][:1] for name in ("pixel_values", "image_sizes")}
            return one | {"batch_num_images": made["batch_num_images"]}

    return AmongOthers.from_dict(dict(settings))


def _llama4(model: Any, inputs: Mapping[str, torch.Tensor]) -> Features:
    """With the projector, which its forward calls itself."""
    seen = model.get_image_features(pixel_values=inputs["pixel_values"].to(model.dtype)).last_hidden_state
    return model.multi_modal_projector(_rows(seen)), ()


def _one_tile(settings: Mapping[str, Any]) -> Any:
    """As Llama 4's image processor, which needs torchvision, prepares a picture of one tile."""
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    names = ("image_mean", "image_std", "rescale_factor", "resample", "size")
    return SiglipImageProcessorPil(**{name: settings[name] for name in names if settings.get(name) is not None})


def _patches(config: Any, text_of: TextOf, prepared: Mapping[str, Any]) -> str:
    """As Llama 4's processor writes a picture of one tile."""
    vision = config.vision_config
    count = int((vision.image_size // vision.patch_size) ** 2 * vision.pixel_shuffle_ratio**2)
    return f"<|image_start|><|image|>{text_of(config.image_token_id) * count}<|image_end|>"


def _started_and_ended(config: Any, text_of: TextOf, prepared: Mapping[str, Any]) -> str:
    """As LFM2-VL's processor writes a picture of one tile."""
    rows, columns = prepared["spatial_shapes"][0] // config.downsample_factor
    return f"<|image_start|>{text_of(config.image_token_id) * (rows * columns)}<|image_end|>"


_QWEN = Family(unit=lambda config, processor: int(processor.patch_size * processor.merge_size))
_QWEN3 = replace(_QWEN, deep=lambda config: len(config.vision_config.deepstack_visual_indexes))
_IDEFICS3 = Family(options=lambda processor, budget: {"do_image_splitting": False}, features=_idefics3, written=_around)
# By the type of their configuration; other models with eyes answer to text only.
FAMILIES: Mapping[str, Family] = {
    "gemma3": Family(
        options=lambda processor, budget: {"do_pan_and_scan": False},
        both_ways=lambda config: ("full_attention", "sliding_attention"),
    ),
    "gemma4": Family(
        unit=lambda config, processor: int(processor.patch_size * processor.pooling_kernel_size),
        options=lambda processor, budget: {"do_resize": False, "max_soft_tokens": budget},
        budgets=(70, 140, 280, 560, 1120),
        both_ways=lambda config: ("sliding_attention",) if config.use_bidirectional_attention == "vision" else (),
    ),
    "idefics3": _IDEFICS3,
    "internvl": Family(options=lambda processor, budget: {"crop_to_patches": False}),
    "lfm2_vl": Family(
        unit=lambda config, processor: int(config.vision_config.patch_size * config.downsample_factor),
        options=lambda processor, budget: {"do_resize": False, "max_num_patches": 4 * budget},
        most=256,  # of a tile; larger pictures would be several
        images=_lfm2_images,
        written=_started_and_ended,
    ),
    "llama4": Family(
        options=lambda processor, budget: {}, images=_one_tile, features=_llama4, written=_patches, mark="<|image|>"
    ),
    "llava_onevision": Family(options=lambda processor, budget: {}, images=_among_others),
    "mistral3": Family(
        unit=lambda config, processor: int(config.vision_config.patch_size * config.spatial_merge_size),
        written=_rows_and_breaks,
    ),
    "qwen2_5_vl": _QWEN,
    "qwen2_vl": _QWEN,
    "qwen3_5": _QWEN,
    "qwen3_5_moe": _QWEN,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "smolvlm": _IDEFICS3,
}
