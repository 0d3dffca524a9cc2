"""The vision tower of a chat model and its projector, as one compiled program of fixed sizes: `chat_vision`.

Pictures are prepared by the checkpoint's own image processor: one view of the whole picture. Files of pictures
are read by picture_reader.py, and embeddings are written into a slot by `chat/model/`.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText, PreTrainedModel

from hfjax_app.chat.text.pictures import PictureMarkup
from hfjax_app.chat.text.template import Template
from hfjax_app.chat.vision.picture import Picture
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.hub import fetch
from hfjax_app.runtime.checkpoints.safetensors_reader import on_one_device, read
from hfjax_app.runtime.dtype_policy import Cast
from hfjax_app.runtime.held_weights import shapes
from hfjax_app.runtime.mesh import replicated
from hfjax_app.runtime.model_transform import Transforms
from hfjax_app.runtime.module import Shapes, Weights, pure_function
from hfjax_app.runtime.program import Program
from hfjax_app.runtime.seams.torchax import jax_dtype
from hfjax_app.runtime.warm_up import ProgramSpec

# A picture in RGB -> float32 pixels [..., 3, height, width].
ImageProcessor = Callable[[Image.Image], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Family:
    """How one family of models sees. The vision tower's own code runs unmodified.

    Args:
        embed: the whole model and pixels [1, 3, side, side] -> the picture's embeddings [tokens, hidden].
        tokens: how many embeddings a picture has, by the model's configuration.
        mark: what a chat template writes in the place of a picture.
        written: what the family's processor writes there instead, with a single placeholder. Both take the
            configuration and the text of a token by its id.
        both_ways: whether each of a picture's tokens sees all of them, also those after it.
        options: of the image processor: one view of a picture, whose size never changes.
    """

    embed: Callable[[PreTrainedModel, torch.Tensor], torch.Tensor]
    tokens: Callable[[Any], int]
    mark: Callable[[Any, Callable[[int], str]], str]
    written: Callable[[Any, Callable[[int], str]], str]
    both_ways: bool
    options: Mapping[str, Any] = field(default_factory=dict)


def _gemma3(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    embeddings: torch.Tensor = model.get_image_features(pixel_values=pixels.to(model.dtype)).pooler_output[0]
    return embeddings


def _idefics3(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Its `get_image_features` after it has left out the empty pictures of a batch, which can't be traced."""
    side = pixels.shape[-1] // model.config.vision_config.patch_size
    patches = torch.ones((1, side, side), dtype=torch.bool, device=pixels.device)
    pixels = pixels.to(model.dtype)
    seen = model.model.vision_model(pixel_values=pixels, patch_attention_mask=patches).last_hidden_state
    embeddings: torch.Tensor = model.model.connector(seen)[0]
    return embeddings


def _idefics3_tokens(config: Any) -> int:
    side: int = config.vision_config.image_size // config.vision_config.patch_size
    return side**2 // int(config.scale_factor) ** 2


def _around(config: Any, text_of: Callable[[int], str]) -> str:
    return f"<fake_token_around_image><global-img>{text_of(config.image_token_id)}<fake_token_around_image>"


GEMMA3 = Family(
    embed=_gemma3,
    tokens=lambda config: int(config.mm_tokens_per_image),
    mark=lambda config, text_of: text_of(config.boi_token_id),
    written=lambda config, text_of: "\n\n{}{}{}\n\n".format(
        *map(text_of, (config.boi_token_id, config.image_token_id, config.eoi_token_id))
    ),
    both_ways=True,
    options={"do_pan_and_scan": False},
)
IDEFICS3 = Family(
    embed=_idefics3,
    tokens=_idefics3_tokens,
    mark=lambda config, text_of: text_of(config.image_token_id),
    written=_around,
    both_ways=False,
    options={"do_image_splitting": False},
)
# By the type of their configuration; other models with eyes answer to text only.
FAMILIES: Mapping[str, Family] = {"gemma3": GEMMA3, "idefics3": IDEFICS3, "smolvlm": IDEFICS3}


class VisionTower:
    """Pixels of a picture -> its embeddings. `spec`'s program must have joined.

    Args:
        model: of one of FAMILIES, on the meta device, without its text part.
        process: prepares a picture; the results always have the same shape.
        markup: of the model's prompts.
        mesh: the devices, each of which holds all of the tower; None: the default device.

    Attributes:
        family: of the model.
        tokens: how many embeddings a picture has.
        shape: of a picture's embeddings, [tokens, hidden].
        weights: shapes until `load`.
    """

    def __init__(self, model: PreTrainedModel, process: ImageProcessor, markup: PictureMarkup, mesh: Mesh | None):
        self.family, self.markup, self.tokens = FAMILIES[model.config.model_type], markup, markup.tokens
        self._process, self._model = process, model
        self._replicated = None if mesh is None else replicated(mesh)
        self._transforms = Transforms(Cast(self._model))
        self.weights: Weights | Shapes = shapes(self._model, self._transforms, placement=self._placement)
        hidden = model.config.get_text_config(decoder=True).hidden_size
        dtype = jax_dtype(model.dtype)
        self.shape = jax.ShapeDtypeStruct((self.tokens, hidden), dtype, sharding=self._replicated)
        self._program: Program | None = None

    @classmethod
    def of(
        cls, source: str | os.PathLike[str], text: PreTrainedModel, tokenizer: Any, context: int, mesh: Mesh | None
    ) -> "VisionTower | None":
        """The tower of a checkpoint, without its weights; None if the model is to read text only.

        That is so for other families, and where the checkpoint has no image processor or no place for pictures in its
        chat template, or is quantised, or a picture takes more than half of the context.

        Args:
            source: a folder or a hub id.
            text: its text part, as a causal language model.
            tokenizer: of the checkpoint; None: it has none.
            context: tokens of a conversation.
            mesh: the devices.
        """
        family = FAMILIES.get(getattr(text.config, "text_part_of", ""))
        quantized = getattr(text.config, "quantization_config", None) is not None
        if family is None or quantized or tokenizer is None or tokenizer.chat_template is None:
            return None
        model = empty_model(AutoModelForImageTextToText, source, text.dtype)
        config = model.config

        def text_of(token: int) -> str:
            return tokenizer.convert_ids_to_tokens(token) or ""

        markup = PictureMarkup(
            mark=family.mark(config, text_of),
            written=family.written(config, text_of),
            placeholder=config.image_token_id,
            tokens=family.tokens(config),
        )
        process = _image_processor(source, config.vision_config.image_size, family.options)
        ids = tokenizer.encode(markup.written, add_special_tokens=False)
        if process is None or 2 * markup.tokens > context or ids.count(markup.placeholder) != 1:
            return None
        if not Template(tokenizer).shows_pictures(markup.mark):
            return None
        return cls(_without_text(model), process, markup, mesh)

    def on(self, mesh: Mesh | None) -> "VisionTower":
        """The same tower on other devices, without its weights."""
        return VisionTower(self._model, self._process, self.markup, mesh)

    def _placement(self, name: str, shape: tuple[int, ...]) -> jax.sharding.Sharding:
        return on_one_device(name, shape) if self._replicated is None else self._replicated

    def load(self, source: str | os.PathLike[str]) -> None:
        """Read the weights; raises what `read` raises."""
        try:
            self.weights = read(self._model, source, transforms=self._transforms, placement=self._placement)
        except ModelUnavailable as error:
            raise ModelUnavailable(f"{error}; with pictures = never its text part is served alone") from error

    def spec(self) -> ProgramSpec:
        """The program, described by shapes alone."""
        function = pure_function(self._model, self.family.embed)
        blank = np.zeros(self._shape, np.float32)

        def join(program: Program) -> None:
            jax.block_until_ready(program(self.weights, blank))
            self._program = program

        return ProgramSpec(
            name="chat_vision", function=function, args=(self.weights, blank), shardings=self._replicated, join=join
        )

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        side = self._model.config.vision_config.image_size
        return 1, 3, side, side

    @property
    def picture_bytes(self) -> int:
        """Of a prepared picture on the host."""
        return 4 * math.prod(self._shape)

    def picture(self, seen: Image.Image) -> Picture:
        """A picture in RGB, prepared."""
        return Picture(pixels=self._process(seen))

    def __call__(self, pixels: np.ndarray) -> jax.Array:
        """The embeddings of a prepared picture, [tokens, hidden] on the devices."""
        assert self._program is not None, "the program has not joined"
        embeddings: jax.Array = self._program(self.weights, pixels)
        return embeddings


def _without_text(model: PreTrainedModel) -> PreTrainedModel:
    """A model with eyes on the meta device, its decoder and its output layer taken out."""
    text = {id(model.get_decoder()), id(model.get_output_embeddings())}
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if id(part) in text:
                setattr(module, name, None)
    return model


def _image_processor(source: str | os.PathLike[str], side: int, options: Any) -> ImageProcessor | None:
    """The image processor of a checkpoint; None if it has none, or none that makes a picture of the tower's size."""
    try:
        # the one that needs no torchvision, which is not installed; without the option transformers asks on stdin
        processor = AutoImageProcessor.from_pretrained(
            fetch(source, weights=False), backend="pil", trust_remote_code=False
        )
    except Exception:  # transformers raises many kinds; such a model reads text
        return None

    def process(picture: Image.Image) -> np.ndarray:
        pixels = np.asarray(processor(images=picture, return_tensors="np", **options)["pixel_values"], np.float32)
        return pixels.reshape(-1, *pixels.shape[-3:])

    blank = Image.new("RGB", (2, 2))
    return process if process(blank).shape == (1, 3, side, side) else None
