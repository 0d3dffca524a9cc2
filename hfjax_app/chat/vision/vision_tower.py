"""The vision tower of a chat model and its projector: one compiled program for each grid, `chat_vision_WIDTHxHEIGHT`.

Files of pictures are read by `PictureReader` (`chat/prompt.py`), what stands for a picture in a prompt is found by
views.py, and embeddings are written into a slot by `chat/model/`.

Towers compute their layout (windows, positions, lengths) from the grid of a picture with `.tolist()` and loops. As a
plain torch tensor (`HostTensors`) the grid stays readable while the program is traced.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from jax.sharding import Mesh
from PIL import Image
from transformers import AutoModelForImageTextToText, PreTrainedModel

from hfjax_app.chat.options import EngineOptions
from hfjax_app.chat.text.messages import Shown
from hfjax_app.chat.text.template import Template
from hfjax_app.chat.vision.families import FAMILIES, Family, Features
from hfjax_app.chat.vision.picture import Grid, PlacedPicture, VisionPicture, chosen
from hfjax_app.chat.vision.views import Views
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.hub import fetch
from hfjax_app.runtime.checkpoints.safetensors_reader import on_one_device, read
from hfjax_app.runtime.dtype_policy import Cast
from hfjax_app.runtime.held_weights import shapes
from hfjax_app.runtime.host_tensors import HostTensors
from hfjax_app.runtime.mesh import replicated
from hfjax_app.runtime.model_transform import Transforms
from hfjax_app.runtime.module import Shapes, Weights, pure_function
from hfjax_app.runtime.programs import Program
from hfjax_app.runtime.seams.torchax import jax_dtype
from hfjax_app.runtime.warm_up import ProgramSpec


class SeenPicture(NamedTuple):
    """What a vision program makes of a picture, on the devices."""

    embeddings: jax.Array | jax.ShapeDtypeStruct  # [embeddings, hidden]
    deep: tuple[
        jax.Array | jax.ShapeDtypeStruct, ...
    ]  # [embeddings, hidden] each, added to the outputs of the first layers


class VisionTower:
    """Pixels of a picture -> its embeddings. The program of its grid must have joined.

    Args:
        model: of one of FAMILIES, on the meta device, without its text part.
        views: how its pictures are prepared and written.
        mesh: the devices, each of which holds all of the tower; None: the default device.

    Attributes:
        family: of the model.
        grids: of each budget, from the smallest.
        markup: of the model's prompts.
        axes: of the positions that the model has for a picture's tokens: three where they are its own, else 0.
        weights: shapes until `load`.
    """

    def __init__(self, model: PreTrainedModel, views: Views, mesh: Mesh | None):
        self.family, self.grids, self.markup = views.family, views.grids, views.markup
        self._views, self._model = views, model
        self.axes = 3 if hasattr(model.base_model, "get_rope_index") else 0
        self._replicated = None if mesh is None else replicated(mesh)
        self._transforms = Transforms(Cast(self._model))
        self.weights: Weights | Shapes = shapes(self._model, self._transforms, placement=self._placement)
        self._programs: dict[str, Program] = {}

    @classmethod
    def of(
        cls,
        source: str | os.PathLike[str],
        text: PreTrainedModel,
        tokenizer: Any,
        options: EngineOptions,
        mesh: Mesh | None,
    ) -> "VisionTower | None":
        """The tower of a checkpoint, without its weights; None if the model is to read text only.

        That is so for other families, and where the checkpoint has no image processor or no place for pictures in its
        chat template, or is quantised, or a picture takes more than half of the context.

        Args:
            source: a folder or a hub id.
            text: its text part, as a causal language model.
            tokenizer: of the checkpoint; None: it has none.
            options: context and picture_tokens count.
            mesh: the devices.
        """
        family = _family_of(text)
        if family is None or tokenizer is None or tokenizer.chat_template is None:
            return None
        model = empty_model(AutoModelForImageTextToText, source, text.dtype)
        folder = fetch(source, weights=False)
        try:
            views = Views(folder, family, model, tokenizer, options.picture_tokens, options.context // 2)
        except Exception:  # transformers raises many kinds; such a model reads text
            return None
        if not Template(tokenizer).shows_pictures(views.markup.mark):
            return None
        return cls(_without_text(model), views, mesh)

    @staticmethod
    def shapes_of(source: str | os.PathLike[str], text: PreTrainedModel) -> Shapes:
        """The weights of a checkpoint's tower on each device, by its config alone; empty for one that reads text only.

        Args:
            source, text: as for `of`.
        """
        if _family_of(text) is None:
            return {}
        model = _without_text(empty_model(AutoModelForImageTextToText, source, text.dtype))
        return shapes(model, Transforms(Cast(model)), placement=on_one_device)

    def on(self, mesh: Mesh | None) -> "VisionTower":
        """The same tower on other devices, without its weights."""
        return VisionTower(self._model, self._views, mesh)

    def _placement(self, name: str, shape: tuple[int, ...]) -> jax.sharding.Sharding:
        return on_one_device(name, shape) if self._replicated is None else self._replicated

    def load(self, source: str | os.PathLike[str]) -> None:
        """Read the weights; raises what `read` raises."""
        self.weights = read(self._model, source, transforms=self._transforms, placement=self._placement)

    @property
    def all_grids(self) -> list[Grid]:
        return [grid for of_budget in self.grids for grid in of_budget]

    @property
    def most_tokens(self) -> int:
        """Of a prompt, that a picture takes."""
        return max(grid.count for grid in self.all_grids)

    def spec(self, grid: Grid) -> ProgramSpec:
        """The program of a grid, described by shapes alone."""
        blank = np.zeros(grid.pixels, np.float32)

        def join(program: Program) -> None:
            seen = jax.block_until_ready(program(self.weights, blank))
            shapes = [
                jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), made) for made in (seen, self.seen_shape(grid))
            ]
            assert shapes[0] == shapes[1], f"a picture of {grid.name} has other embeddings than its prompt has places"
            self._programs[grid.name] = program

        return ProgramSpec(
            name=f"chat_vision_{grid.name}",
            function=self._function(grid),
            args=(self.weights, blank),
            shardings=self._replicated,
            join=join,
        )

    def _function(self, grid: Grid) -> Callable[..., SeenPicture]:
        """Weights and pixels -> SeenPicture."""
        others = {name: torch.from_numpy(value) for name, value in grid.others.items()}

        def see(model: PreTrainedModel, pixels: torch.Tensor) -> Features:
            with HostTensors():
                return self.family.features(model, {"pixel_values": pixels, **others})

        function = pure_function(self._model, see)
        return lambda weights, pixels: SeenPicture(*function(weights, pixels))

    def seen_shape(self, grid: Grid) -> SeenPicture:
        """The shapes of what the program of a grid makes."""
        hidden = self._model.config.get_text_config(decoder=True).hidden_size
        shape = jax.ShapeDtypeStruct((grid.embeddings, hidden), jax_dtype(self._model.dtype), sharding=self._replicated)
        return SeenPicture(shape, (shape,) * self.family.deep(self._model.config))

    def grid_of(self, shown: Shown) -> Grid:
        """The grid that a file's picture gets; raises RequestRejected for a file that can't be read."""
        return self._views.grid_of(shown)

    def picture(self, seen: Image.Image, grid: Grid | None = None) -> VisionPicture:
        """A picture in RGB, prepared for a grid; None: for the one that it gets."""
        grid = chosen(self.grids, seen.size, "auto") if grid is None else grid
        return VisionPicture(grid=grid, pixels=self._views.pixels(seen, grid))

    def is_ready(self, grid: Grid) -> bool:
        return grid.name in self._programs

    def __call__(self, picture: VisionPicture) -> SeenPicture:
        """The embeddings of a prepared picture, on the devices."""
        seen: SeenPicture = self._programs[picture.grid.name](self.weights, picture.pixels)
        return seen

    def positions(self, prompt: Sequence[int], pictures: Sequence[PlacedPicture]) -> np.ndarray | None:
        """The model's own positions of a prompt's tokens, int32 [axes, tokens]; None: the usual ones.

        Args:
            prompt: with each picture's id in the places of its tokens.
            pictures: in it.
        """
        if not self.axes or not pictures:
            return None
        is_picture = torch.tensor([[int(token < 0) for token in prompt]])
        ids = torch.where(is_picture > 0, self.markup.placeholder, 0)
        others = [place.picture.grid.others for place in pictures]
        given = {name: torch.from_numpy(np.concatenate([each[name] for each in others])) for name in others[0]}
        base: Any = self._model.base_model
        found, _ = base.get_rope_index(ids, mm_token_type_ids=is_picture, **given)
        positions: np.ndarray = found[:, 0].numpy().astype(np.int32)
        return positions


def _family_of(text: PreTrainedModel) -> Family | None:
    """Of a whole model, by its text part; None where it can't be shown pictures."""
    quantized = getattr(text.config, "quantization_config", None) is not None
    return None if quantized else FAMILIES.get(getattr(text.config, "text_part_of", ""))


def _without_text(model: PreTrainedModel) -> PreTrainedModel:
    """A model with eyes on the meta device, its decoder and its output layer taken out."""
    text = {id(model.get_decoder()), id(model.get_output_embeddings())}
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if id(part) in text:
                setattr(module, name, None)
    return model
