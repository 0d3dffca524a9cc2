"""The sizes of pictures: within a budget, near to the picture's shape, and no smaller than it needs."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers import AutoModelForCausalLM
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil

from hfjax_app.chat.options import EngineOptions
from hfjax_app.chat.text.messages import Shown
from hfjax_app.chat.text.tokenizer import load_tokenizer
from hfjax_app.chat.vision.picture import Grid, chosen, sizes
from hfjax_app.chat.vision.vision_tower import VisionTower
from hfjax_app.errors import RequestRejected
from hfjax_app.pictures import size_of
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from tests.chat.vision.checkpoints import PICTURE_TOKENS, checkpoint, drawn, png


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


def tower_of(folder: Path) -> VisionTower | None:
    text, tokenizer = empty_model(AutoModelForCausalLM, folder), load_tokenizer(folder, 256)
    return VisionTower.of(folder, text, tokenizer, EngineOptions(context=256, picture_tokens=(16,)), None)


def test_llava_onevision_shows_each_picture_as_one_of_several(tmp_path: Path) -> None:
    """As transformers' own processor prepares two of them, and one embedding more, which ends the view."""
    checkpoint("llava_onevision", tmp_path)
    tower, pictures = tower_of(tmp_path), [drawn(1, (40, 30)), drawn(2, (20, 70))]
    assert tower is not None
    whole = LlavaOnevisionImageProcessorPil.from_pretrained(tmp_path)([pictures], return_tensors="np")
    for picture, right in zip(pictures, whole["pixel_values"], strict=True):
        seen = tower.picture(picture)
        assert np.array_equal(seen.pixels[0], right)
        assert seen.grid.count == PICTURE_TOKENS + 1


def test_an_image_processor_may_stand_in_the_processor_s_file(tmp_path: Path) -> None:
    """As newer versions of transformers save it. Its settings were taken for none, and those of the class instead."""
    checkpoint("lfm2_vl", tmp_path)
    before = tower_of(tmp_path)
    own = tmp_path / "preprocessor_config.json"
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": json.loads(own.read_text())}))
    own.unlink()
    after = tower_of(tmp_path)
    assert before is not None
    assert after is not None
    assert np.array_equal(before.picture(drawn(1)).pixels, after.picture(drawn(1)).pixels)
    (tmp_path / "processor_config.json").unlink()
    assert tower_of(tmp_path) is None
