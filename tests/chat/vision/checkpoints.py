"""Tiny models with eyes and random weights, saved as transformers saves them, and the whole model's own answers."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from hfjax_app.chat.vision.picture import Picture
from tests.chat.conftest import SMALL, make_tokenizer

SIDE, PICTURE_TOKENS = 56, 16
WINDOW = 12  # less than a picture's tokens: a window cuts through a picture
GEMMA_TOKENS = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")
SMOL_TOKENS = ("<fake_token_around_image>", "<image>", "<global-img>")
TEMPLATE = (
    "<bos>{% for m in messages %}<start_of_turn>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content | trim }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}MARK{% else %}{{ part.text | trim }}{% endif %}{% endfor %}{% endif %}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_TEXT = SMALL | {"vocab_size": 520, "num_hidden_layers": 2, "max_position_embeddings": 512}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": SIDE,
}
_FIRST = len(make_tokenizer())  # id of the first of the pictures' tokens
_MODELS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": _TEXT
        | {
            "model_type": "gemma3_text",
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 16,
        },
        "vision_config": _VISION | {"model_type": "siglip_vision_model", "patch_size": 7, "vision_use_head": False},
        "mm_tokens_per_image": PICTURE_TOKENS,
        "boi_token_index": _FIRST,
        "image_token_index": _FIRST + 1,
        "eoi_token_index": _FIRST + 2,
    },
    "smolvlm": {
        "text_config": _TEXT | {"model_type": "llama"},
        "vision_config": _VISION | {"model_type": "smolvlm_vision", "patch_size": 7},
        "scale_factor": 2,
        "image_token_id": _FIRST + 1,
    },
}


def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    tokenizer = make_tokenizer()
    tokens = GEMMA_TOKENS if name == "gemma3" else SMOL_TOKENS
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)}, replace_extra_special_tokens=False)
    assert tokenizer.convert_tokens_to_ids(tokens[1]) == _FIRST + 1
    tokenizer.chat_template = TEMPLATE.replace("MARK", tokens[0 if name == "gemma3" else 1])
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
    size = {"height": SIDE, "width": SIDE}
    if name == "gemma3":
        Gemma3ImageProcessorPil(size=size).save_pretrained(folder)
    else:
        size = {"longest_edge": SIDE}
        SmolVLMImageProcessorPil(size={"longest_edge": 4 * SIDE}, max_image_size=size).save_pretrained(folder)
    return model


def drawn(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A picture of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels)


def png(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def answer(model: PreTrainedModel, prompt: Sequence[int], pictures: Sequence[Picture], count: int) -> list[int]:
    """The whole model's greedy answer by `generate`; the prompt has pictures as `ChatEngine.submit` takes them."""
    placeholder = model.config.image_token_id
    ids = torch.tensor([[placeholder if token < 0 else token for token in prompt]])
    pixels = torch.tensor(np.concatenate([picture.pixels for picture in pictures]))
    given: dict[str, Any] = {"pixel_values": pixels}
    if model.config.model_type == "gemma3":
        given["token_type_ids"] = (ids == placeholder).int()
    else:
        given["pixel_values"] = pixels[None]
    made = model.generate(ids, do_sample=False, max_new_tokens=count, eos_token_id=None, **given)
    return made[0, len(prompt) :].tolist()
