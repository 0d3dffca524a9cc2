"""How a checkpoint's own image processor and processor show pictures to its model: as pixels, and in a prompt."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers import AutoImageProcessor, PreTrainedModel
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from hfjax_app.chat.text.messages import PictureMarkup, Shown
from hfjax_app.chat.vision.families import Family
from hfjax_app.chat.vision.picture import PLACEHOLDER, Grid, chosen, sizes
from hfjax_app.pictures import size_of
from hfjax_app.runtime.checkpoints.processor import of_pictures, settings_in

_PIXELS = "pixel_values"
_BLANK = Image.new("RGB", (2, 2))


class Views:
    """The pictures of one checkpoint.

    Args:
        folder: of the checkpoint.
        family: of its model.
        model: whole, on the meta device.
        tokenizer: of the checkpoint; it is not changed.
        budgets: tokens that a picture may take, where the family leaves a choice.
        most: of a prompt's tokens, that a picture may take.

    Attributes:
        grids: the sizes of each budget, from the smallest.
        markup: of the model's prompts.

    Raises:
        ValueError: what stands for a picture in a prompt takes more than `most`, or differs by more than its tokens.
        Exception: of many kinds, from transformers: the checkpoint has no processor that can be used here.
    """

    def __init__(
        self,
        folder: Path,
        family: Family,
        model: PreTrainedModel,
        tokenizer: Any,
        budgets: tuple[int, ...],
        most: int,
    ):
        self.family = family
        # the one that needs no torchvision, which is not installed; without the option transformers asks on stdin
        self._images = (
            AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)
            if family.images is None
            else family.images(_image_settings(folder))
        )
        self._config, self._tokenizer = model.config, tokenizer
        get_features: Any = model.get_image_features
        self._inputs = inspect.signature(get_features).parameters.keys() - {_PIXELS}
        kind = None if family.written is not None else PROCESSOR_MAPPING[type(model.config)]
        self._processor = None if kind is None else of_pictures(kind, folder, tokenizer, self._images)
        self._budgets: dict[str, int] = {}
        written: set[str] = set()
        self.grids: list[list[Grid]] = []
        while not self.grids and budgets[0]:  # where not even the smallest fits, half of it may
            found = [self._grids(budget, written) for budget in self._all_budgets(budgets)]
            self.grids = [grids for grids in found if max(grid.count for grid in grids) <= most]
            budgets = (0 if family.unit is None else budgets[0] // 2,)
        if not self.grids or len(written) != 1:
            raise ValueError(f"a picture takes more than {most} tokens of a prompt, or has different texts: {written}")
        placeholder = model.config.image_token_id
        mark = self._text_of(placeholder) if self._processor is None else self._processor.image_token
        mark = family.mark or mark
        self.markup = PictureMarkup(
            mark=mark, written=written.pop(), placeholder=placeholder, tokens=lambda shown: self.grid_of(shown).ids
        )

    def grid_of(self, shown: Shown) -> Grid:
        """The grid that a file's picture gets; only its header is read.

        Raises:
            RequestRejected: it can't be read.
        """
        return chosen(self.grids, size_of(shown.file, "picture"), shown.detail)

    def pixels(self, picture: Image.Image, grid: Grid) -> np.ndarray:
        """A picture in RGB as the model sees it in this grid, float32."""
        size = None if self.family.unit is None else (grid.height, grid.width)
        pixels: np.ndarray = self._prepared(picture, size, self._budgets[grid.name])[_PIXELS]
        return pixels

    def _all_budgets(self, budgets: tuple[int, ...]) -> list[int]:
        """Budgets that the model knows, near to the ones that are wanted; [0] where pictures have one size."""
        if self.family.unit is None:
            return [0]
        known, most = self.family.budgets, self.family.most
        near = set(budgets) if most is None else {min(budget, most) for budget in budgets}
        if known is not None:
            near = {min(known, key=lambda one: abs(one - budget)) for budget in near}
        return sorted(near)

    def _grids(self, budget: int, written: set[str]) -> list[Grid]:
        """The grids of a budget; adds the texts that take the place of a picture, each with a single placeholder."""
        unit = self.family.unit
        grids = []
        for size in [None] if unit is None else dict.fromkeys(sizes(budget, unit(self._config, self._images))):
            made = self._prepared(_BLANK, size, budget)
            before, tokens, after = self._written(made)
            written.add(before + self._text_of(self._config.image_token_id) + after)
            height, width = made[_PIXELS].shape[-2:] if size is None else size
            others = {name: np.asarray(made[name]) for name in sorted(self._inputs & made.keys())}
            grid = Grid(height=height, width=width, tokens=tokens, pixels=made[_PIXELS].shape, others=others)
            self._budgets[grid.name] = budget
            grids.append(grid)
        return grids

    def _prepared(self, picture: Image.Image, size: tuple[int, int] | None, budget: int) -> dict[str, Any]:
        """What the image processor makes of a picture, which is brought to `size` (height, width) first."""
        if size is not None:
            picture = picture.resize(size[::-1], resample=self._images.resample)
        options = self.family.options(self._images, budget)
        made = dict(self._images(images=picture, return_tensors="np", **options))
        return made | {_PIXELS: np.asarray(made[_PIXELS], np.float32)}

    def _written(self, prepared: Mapping[str, Any]) -> tuple[str, np.ndarray, str]:
        """What takes the place of a prepared picture: text before it, the tokens of a grid, and text after it."""
        placeholder = self._config.image_token_id
        if self._processor is not None:
            text = self._processor.replace_image_token(prepared, 0)
        else:
            assert self.family.written is not None
            text = self.family.written(self._config, self._text_of, prepared)
        before, mark, rest = text.partition(self._text_of(placeholder))
        inside, last, after = (mark + rest).rpartition(mark)
        ids = np.array(self._tokenizer.encode(inside + last, add_special_tokens=False), np.int32)
        return before, np.where(ids == placeholder, PLACEHOLDER, ids), after

    def _text_of(self, token: int) -> str:
        return self._tokenizer.convert_ids_to_tokens(token) or ""


def _image_settings(folder: Path) -> dict[str, Any]:
    """Of the image processor, which newer checkpoints have in the processor's file.

    Raises:
        ValueError: there are none.
    """
    own = settings_in(folder, "preprocessor_config.json")
    found: dict[str, Any] = own or settings_in(folder, "processor_config.json").get("image_processor", {})
    if not found:
        raise ValueError("the checkpoint has no image processor")
    return found
