"""The sizes of pictures: within a budget, near to the picture's shape, and no smaller than it needs."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers import AutoModelForCausalLM

from hfjax_app.chat.options import EngineOptions
from hfjax_app.chat.text.pictures import Shown
from hfjax_app.chat.text.tokenizer import load_tokenizer
from hfjax_app.chat.vision.picture import Grid, chosen, sizes
from hfjax_app.chat.vision.vision_tower import VisionTower
from hfjax_app.errors import RequestRejected
from hfjax_app.pictures import size_of
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from tests.chat.vision.checkpoints import checkpoint, drawn, png


@pytest.mark.parametrize("budget", [16, 256, 280, 576, 1024, 1120])
def test_sizes_fill_their_budget(budget: int) -> None:
    for height, width in sizes(budget, 28):
        assert height % 28 == width % 28 == 0
        assert 0.7 * budget < (height // 28) * (width // 28) <= budget


def grids() -> list[list[Grid]]:
    def of(height: int, width: int) -> Grid:
        count = height * width // 28**2
        tokens = np.full(count, -1, np.int32)
        return Grid(height=height, width=width, tokens=tokens, pixels=(height, width), others={})

    return [[of(*size) for size in sizes(budget, 28)] for budget in (256, 576, 1024)]


@pytest.mark.parametrize(
    ("size", "detail", "grid"),
    [
        ((100, 100), "auto", "448x448"),
        ((500, 500), "auto", "672x672"),
        ((4000, 3000), "auto", "1008x756"),
        ((4000, 3000), "low", "504x364"),
        ((40, 30), "high", "1008x756"),
        ((1080, 2340), "auto", "672x1176"),
        ((9000, 1), "auto", "588x336"),
    ],
)
def test_a_picture_gets_the_smallest_that_loses_nothing(size: tuple[int, int], detail: str, grid: str) -> None:
    assert chosen(grids(), size, detail).name == grid


def test_the_size_is_that_of_the_picture_as_it_was_held() -> None:
    """Read from the header: the file may end there. What is none is refused as when it is decoded."""
    turned = Image.Exif()
    turned[0x0112] = 6
    file = png(drawn(1, (40, 30)), "JPEG", exif=turned)
    assert size_of(file, "picture") == (30, 40)
    assert size_of(png(drawn(1, (40, 30)))[:60], "picture") == (40, 30)
    assert Image.open(io.BytesIO(file)).size == (40, 30)
    for wrong, why in [(b"\0\0\0\x18ftypheic", "it is HEIC"), (b"", "can't be read"), ("x", "must be a picture file")]:
        with pytest.raises(RequestRejected, match=why):
            size_of(wrong, "picture")


def test_what_the_processor_writes_must_fit_half_of_the_context(tmp_path: Path) -> None:
    """Rows end with breaks here, so 16 embeddings take 19 tokens: in a context of 32 there are smaller pictures."""
    checkpoint("mistral3", tmp_path)
    text, tokenizer = empty_model(AutoModelForCausalLM, tmp_path), load_tokenizer(tmp_path, 256)
    found = {}
    for context in (256, 32):
        options = EngineOptions(context=context, picture_tokens=(16,))
        tower = VisionTower.of(tmp_path, text, tokenizer, options, None)
        assert tower is not None
        found[context] = max(grid.count for grid in tower.all_grids)
        assert tower.grid_of(Shown(0, png(drawn(1)))).count <= found[context]
    assert (found[256], found[32] <= 16) == (19, True)
