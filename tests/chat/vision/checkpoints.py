"""Tiny models with eyes and random weights, laid out as on the hub, and the whole model's own answers."""

import inspect
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel, PreTrainedTokenizerFast

from hfjax_app.chat.vision.picture import VisionPicture
from tests.chat.conftest import SMALL, make_tokenizer

SIDE, PICTURE_TOKENS = 56, 16  # of models whose pictures have one size
WINDOW = 12  # less than a picture's tokens: a window cuts through a picture
GEMMA_TOKENS = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")
SMOL_TOKENS = ("<fake_token_around_image>", "<image>", "<global-img>")
GEMMA4_TOKENS = ("<|image>", "<|image|>", "<image|>")
INTERNVL_TOKENS = ("<img>", "<IMG_CONTEXT>", "</img>", "<video>")
LFM2_TOKENS = ("<|image_start|>", "<image>", "<|image_end|>")
LLAMA4_TOKENS = ("<|image_start|>", "<|patch|>", "<|image_end|>", "<|image|>")
LLAVA_TOKENS = ("<video>", "<image>")
MISTRAL_TOKENS = ("[IMG_BREAK]", "[IMG]", "[IMG_END]")
QWEN_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
TEMPLATE = (
    "<bos>{% for m in messages %}<start_of_turn>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content | trim }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}MARK{% else %}{{ part.text | trim }}{% endif %}{% endfor %}{% endif %}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_TEXT = SMALL | {"vocab_size": 520, "num_hidden_layers": 2, "max_position_embeddings": 512}
_SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": SIDE,
}
_QWEN = {
    "depth": 2,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 32,
    "out_hidden_size": SMALL["hidden_size"],
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
_FIRST = len(make_tokenizer())  # id of the first of the pictures' tokens
_TOKEN_IDS = {"vision_start_token_id": _FIRST, "image_token_id": _FIRST + 1, "vision_end_token_id": _FIRST + 2}
_MODELS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": _TEXT
        | {
            "model_type": "gemma3_text",
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 16,
        },
        "vision_config": _SIGLIP | {"model_type": "siglip_vision_model", "patch_size": 7, "vision_use_head": False},
        "mm_tokens_per_image": PICTURE_TOKENS,
        "boi_token_index": _FIRST,
        "image_token_index": _FIRST + 1,
        "eoi_token_index": _FIRST + 2,
    },
    "smolvlm": {
        "text_config": _TEXT | {"model_type": "llama"},
        "vision_config": _SIGLIP | {"model_type": "smolvlm_vision", "patch_size": 7},
        "scale_factor": 2,
        "image_token_id": _FIRST + 1,
    },
    "qwen2_5_vl": {
        "text_config": _TEXT | {"model_type": "qwen2_5_vl_text", "rope_parameters": _ROPE},
        "vision_config": _QWEN | {"model_type": "qwen2_5_vl", "window_size": 16, "fullatt_block_indexes": [1]},
    }
    | _TOKEN_IDS,
}
# The files of their processors, as on the hub.
_QWEN_PIXELS = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48, 0.46, 0.41],
    "image_std": [0.27, 0.26, 0.28],
    "image_processor_type": "Qwen2VLImageProcessor",
}
_SMOL_PIXELS = {
    "do_image_splitting": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "max_image_size": {"longest_edge": SIDE},
    "size": {"longest_edge": 4 * SIDE},
    "image_processor_type": "SmolVLMImageProcessor",
    "processor_class": "SmolVLMProcessor",
}
_GEMMA3_PIXELS = {
    "do_pan_and_scan": None,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "image_seq_length": PICTURE_TOKENS,
    "size": {"height": SIDE, "width": SIDE},
    "image_processor_type": "Gemma3ImageProcessor",
    "processor_class": "Gemma3Processor",
}
_INTERLEAVED = _ROPE | {"mrope_interleaved": True}
_MODELS["qwen3_vl"] = {
    "text_config": _TEXT | {"model_type": "qwen3_vl_text", "num_hidden_layers": 3, "rope_parameters": _INTERLEAVED},
    "vision_config": _QWEN
    | {"model_type": "qwen3_vl", "depth": 3, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
} | _TOKEN_IDS
_MODELS["qwen3_5"] = {
    "text_config": _TEXT
    | {
        "model_type": "qwen3_5_text",
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "rope_parameters": _INTERLEAVED | {"partial_rotary_factor": 1.0},
    },
    "vision_config": _QWEN | {"model_type": "qwen3_5", "num_position_embeddings": 16},
} | _TOKEN_IDS
_MODELS["gemma4"] = {
    "text_config": _TEXT
    | {
        "model_type": "gemma4_text",
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": WINDOW,
        "global_head_dim": 16,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 520,
        "num_kv_shared_layers": 1,
        "use_bidirectional_attention": "vision",
    },
    "vision_config": {
        "model_type": "gemma4_vision",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "patch_size": 4,
        "pooling_kernel_size": 3,
        "position_embedding_size": 128,
    },
    "audio_config": None,
    "boi_token_id": _FIRST,
    "image_token_id": _FIRST + 1,
    "eoi_token_id": _FIRST + 2,
}
_MODELS["mistral3"] = {
    "text_config": _TEXT | {"model_type": "mistral"},
    "vision_config": {
        "model_type": "pixtral",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 16,
        "image_size": 256,
        "patch_size": 4,
    },
    "spatial_merge_size": 2,
    "vision_feature_layer": -1,
    "image_token_index": _FIRST + 1,
}
_MODELS["lfm2_vl"] = {
    "text_config": _TEXT | {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
    "vision_config": {
        "model_type": "siglip2_vision_model",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_patches": 16,
        "patch_size": 4,
        "vision_use_head": False,
    },
    "projector_hidden_size": 48,
    "downsample_factor": 2,
    "image_token_id": _FIRST + 1,
}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
for name, others in {
    "qwen3_vl": {"decoder_sparse_step": 1},
    "qwen3_5": {"shared_expert_intermediate_size": 32},
}.items():
    text, vision = _MODELS[name]["text_config"], _MODELS[name]["vision_config"]
    _MODELS[f"{name}_moe"] = _MODELS[name] | {
        "text_config": text | _MOE | others | {"model_type": f"{name}_moe_text"},
        "vision_config": vision | {"model_type": f"{name}_moe"},
    }
_MODELS["internvl"] = {
    "text_config": _TEXT | {"model_type": "qwen2"},
    "vision_config": {
        "model_type": "internvl_vision",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": [SIDE, SIDE],
        "patch_size": [7, 7],
    },
    "downsample_ratio": 0.5,
    "image_token_id": _FIRST + 1,
}
_MODELS["llama4"] = {
    "text_config": _TEXT
    | {
        "model_type": "llama4_text",
        "num_local_experts": 2,
        "intermediate_size_mlp": 64,
        "attention_chunk_size": 32,
        "no_rope_layers": [1, 0],
    },
    "vision_config": {
        "model_type": "llama4_vision_model",
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": 7,
        "pixel_shuffle_ratio": 0.5,
        "projector_input_dim": 48,
        "projector_output_dim": 48,
        "vision_output_dim": 48,
    },
    "boi_token_index": _FIRST,
    "eoi_token_index": _FIRST + 2,
    "image_token_index": _FIRST + 1,
}
_MODELS["llava_onevision"] = {
    "text_config": _TEXT | {"model_type": "qwen2"},
    "vision_config": _SIGLIP | {"model_type": "siglip_vision_model", "patch_size": 14, "vision_use_head": False},
    "image_grid_pinpoints": [[SIDE, SIDE], [SIDE, 2 * SIDE], [2 * SIDE, SIDE]],
    "video_token_index": _FIRST,
    "image_token_index": _FIRST + 1,
}
_FILES: dict[str, dict[str, dict[str, Any]]] = {
    "gemma3": {
        "preprocessor_config.json": _GEMMA3_PIXELS,
        "processor_config.json": {"image_seq_length": PICTURE_TOKENS, "processor_class": "Gemma3Processor"},
    },
    "smolvlm": {
        "preprocessor_config.json": _SMOL_PIXELS,
        "processor_config.json": {"image_seq_len": PICTURE_TOKENS, "processor_class": "SmolVLMProcessor"},
    },
    "qwen2_5_vl": {"preprocessor_config.json": _QWEN_PIXELS | {"processor_class": "Qwen2_5_VLProcessor"}},
    "qwen3_vl": {"preprocessor_config.json": _QWEN_PIXELS | {"processor_class": "Qwen3VLProcessor"}},
    "qwen3_5": {"preprocessor_config.json": _QWEN_PIXELS | {"processor_class": "Qwen3VLProcessor"}},
    "gemma4": {
        "processor_config.json": {
            "image_processor": {
                "image_processor_type": "Gemma4ImageProcessor",
                "max_soft_tokens": 280,
                "patch_size": 4,
                "pooling_kernel_size": 3,
            },
            "image_seq_length": 280,
            "processor_class": "Gemma4Processor",
        }
    },
    "mistral3": {
        "preprocessor_config.json": {
            "image_mean": [0.48, 0.46, 0.41],
            "image_std": [0.27, 0.26, 0.28],
            "patch_size": 4,
            "size": {"longest_edge": 256},
            "image_processor_type": "PixtralImageProcessor",
            "processor_class": "PixtralProcessor",
        },
        "processor_config.json": {
            "image_break_token": "[IMG_BREAK]",
            "image_end_token": "[IMG_END]",
            "image_token": "[IMG]",
            "patch_size": 4,
            "spatial_merge_size": 2,
            "processor_class": "PixtralProcessor",
        },
    },
}
_FILES |= {f"{name}_moe": _FILES[name] for name in ("qwen3_vl", "qwen3_5")}
_FILES["internvl"] = {
    "preprocessor_config.json": {
        "crop_to_patches": False,
        "image_mean": [0.48, 0.46, 0.41],
        "image_std": [0.23, 0.22, 0.23],
        "max_patches": 12,
        "min_patches": 1,
        "size": {"height": SIDE, "width": SIDE},
        "image_processor_type": "GotOcr2ImageProcessorFast",
        "processor_class": "InternVLProcessor",
    },
    "processor_config.json": {"image_seq_length": PICTURE_TOKENS, "processor_class": "InternVLProcessor"},
}
_FILES["llama4"] = {
    "preprocessor_config.json": {
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "max_patches": 16,
        "size": {"height": SIDE, "width": SIDE},
        "image_processor_type": "Llama4ImageProcessorFast",
        "processor_class": "Llama4Processor",
    }
}
_FILES["llava_onevision"] = {
    "preprocessor_config.json": {
        "do_pad": True,
        "image_grid_pinpoints": _MODELS["llava_onevision"]["image_grid_pinpoints"],
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"height": SIDE, "width": SIDE},
        "image_processor_type": "LlavaOnevisionImageProcessor",
        "processor_class": "LlavaOnevisionProcessor",
    },
    "processor_config.json": {
        "image_token": "<image>",
        "num_image_tokens": PICTURE_TOKENS,
        "processor_class": "LlavaOnevisionProcessor",
        "video_token": "<video>",
        "vision_feature_select_strategy": "full",
    },
}
_FILES["lfm2_vl"] = {
    "preprocessor_config.json": {
        "downsample_factor": 2,
        "encoder_patch_size": 4,
        "max_image_tokens": 256,
        "max_num_patches": 1024,
        "min_image_tokens": 64,
        "tile_size": 512,
        "do_image_splitting": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "image_processor_type": "Lfm2VlImageProcessorFast",
        "processor_class": "Lfm2VlProcessor",
    }
}
_TOKENS = {
    "gemma3": GEMMA_TOKENS,
    "gemma4": GEMMA4_TOKENS,
    "internvl": INTERNVL_TOKENS,
    "lfm2_vl": LFM2_TOKENS,
    "llama4": LLAMA4_TOKENS,
    "llava_onevision": LLAVA_TOKENS,
    "mistral3": MISTRAL_TOKENS,
    "smolvlm": SMOL_TOKENS,
}
_MARKS = {
    "gemma3": GEMMA_TOKENS[0],
    "gemma4": GEMMA4_TOKENS[1],
    "internvl": INTERNVL_TOKENS[1],
    "lfm2_vl": LFM2_TOKENS[1],
    "llama4": LLAMA4_TOKENS[3],
    "llava_onevision": LLAVA_TOKENS[1],
    "mistral3": MISTRAL_TOKENS[1],
    "smolvlm": SMOL_TOKENS[1],
}
_GEMMA_NAMES = ("boi_token", "image_token", "eoi_token")
_NAMES = {  # under which a tokenizer's config has them
    "gemma3": _GEMMA_NAMES,
    "gemma4": _GEMMA_NAMES,
    "internvl": ("start_image_token", "context_image_token", "end_image_token", "video_token"),
}


def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    tokenizer = make_tokenizer()
    tokens = _TOKENS.get(name, QWEN_TOKENS)
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)}, replace_extra_special_tokens=False)
    assert tokenizer.convert_tokens_to_ids(tokens[1]) == _FIRST + 1
    tokenizer.chat_template = TEMPLATE.replace("MARK", _MARKS.get(name, "".join(tokens)))
    return tokenizer


def checkpoint(name: str, folder: Path) -> PreTrainedModel:
    """The whole model, in torch."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **_MODELS[name], tie_word_embeddings=False)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.15)
    model.save_pretrained(folder)
    tokenizer_of(name).save_pretrained(folder)
    if names := _NAMES.get(name):
        file = folder / "tokenizer_config.json"
        named = dict(zip(names, _TOKENS[name], strict=True))
        file.write_text(json.dumps(json.loads(file.read_text()) | {"extra_special_tokens": named} | named))
    for file_name, settings in _FILES[name].items():
        (folder / file_name).write_text(json.dumps(settings))
    return model


def drawn(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A picture of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels)


def png(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def answer(model: PreTrainedModel, prompt: Sequence[int], pictures: Sequence[VisionPicture], count: int) -> list[int]:
    """The whole model's greedy answer by `generate`; the prompt has pictures as `ChatEngine.submit` takes them."""
    placeholder = model.config.image_token_id
    tokens, at = list(prompt), 0
    for picture in pictures:
        at = next(i for i in range(at, len(tokens)) if tokens[i] < 0)
        tokens[at : at + picture.grid.count] = [placeholder if i < 0 else i for i in picture.grid.ids]
    ids = torch.tensor([tokens])
    given: dict[str, Any] = {"attention_mask": torch.ones_like(ids)}  # also where a token is the padding's
    if pictures:
        axis = 1 if model.config.model_type == "smolvlm" else 0
        pixels = [picture.pixels for picture in pictures]
        if model.config.model_type == "mistral3":  # a batch is as large as its largest picture
            sides = [max(each.shape[side] for each in pixels) for side in (2, 3)]
            room = [[(0, 0), (0, 0), *((0, s - n) for s, n in zip(sides, p.shape[2:], strict=True))] for p in pixels]
            pixels = [np.pad(each, around) for each, around in zip(pixels, room, strict=True)]
        given["pixel_values"] = torch.tensor(np.concatenate(pixels, axis))
        for name in pictures[0].grid.others:
            given[name] = torch.tensor(np.concatenate([picture.grid.others[name] for picture in pictures]))
    for kinds in ("token_type_ids", "mm_token_type_ids"):
        if kinds in inspect.signature(model.forward).parameters:
            given[kinds] = (ids == placeholder).int()
    made = model.generate(ids, do_sample=False, max_new_tokens=count, eos_token_id=None, **given)
    return made[0, len(prompt) :].tolist()
