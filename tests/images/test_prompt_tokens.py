"""Prompts as tokens of text encoders that are no CLIP's: what a class reads of them, and pictures beside them."""

import pytest
import torch
from PIL import Image

from hfjax_app.images.prompt_conditioning import PromptReader
from hfjax_app.images.prompt_tokens import TextsOfPicture
from hfjax_app.runtime.programs import Programs

from .families import family, qwen_image_edit

BEFORE, AFTER = "look: <|vision_start|><|image_pad|><|vision_end|>", "<|im_end|>"


def test_what_a_class_cuts_off_behind_its_tokenizer_is_told() -> None:
    """Qwen-Image's tokenizer cuts at 1,058 tokens with the template, and its class takes 512 of the states."""
    pipeline = family("Qwen-Image")
    reader = PromptReader(pipeline, Programs(planned=True))
    template = pipeline.prompt_template_encode
    tokens = len(pipeline.tokenizer(template[: template.index("{}")]).input_ids)
    room = pipeline.prompt_template_encode_start_idx + 512 - tokens
    assert reader.length("a").room == room
    assert reader.cut("a" * room) == reader.cut("a" * (room - 8)) == ""
    assert reader.cut("a" * room + "the end") == "the end"
    assert not reader.length("a" * room).is_cut
    assert reader.length("a" * (room + 1)).is_cut


@pytest.mark.parametrize("typed", ["a red dot", "a <|image_pad|> dot <|image_pad|>"])
def test_texts_of_a_picture_equal_the_processors(typed: str) -> None:
    """Both texts are of one picture and as long; a mark in a prompt stays text, and would have no picture."""
    processor = qwen_image_edit().processor
    read = []
    preprocess = processor.image_processor.preprocess
    processor.image_processor.preprocess = lambda *args, **kwargs: (read.append(args), preprocess(*args, **kwargs))[1]
    texts = TextsOfPicture(processor, processor.tokenizer, 100)
    picture = Image.linear_gradient("L").convert("RGB")
    first = texts(text=[f"{BEFORE}a{AFTER}"], images=picture)
    assert len(read) == 1, "a picture is prepared once"
    own = processor(text=[f"{BEFORE}a{AFTER}"], images=[picture], return_tensors="pt")
    assert set(first) == {"input_ids", "attention_mask", "pixel_values", "image_grid_thw", "mm_token_type_ids"}
    for name in first:
        assert torch.equal(first[name], own[name])
    places = int((own["input_ids"] == processor.image_token_id).sum())
    both = texts(text=[f"{BEFORE}{texts.plain(typed)}{AFTER}", f"{BEFORE}{'word ' * 99}{AFTER}"], images=[picture])
    longest = own["input_ids"].shape[1] + 100
    assert both["input_ids"].shape == (2, longest)
    assert (both["input_ids"] == processor.image_token_id).sum(1).tolist() == [places, places]
    assert both["attention_mask"].sum(1).tolist()[1] == longest
    assert both["attention_mask"].sum(1).tolist()[0] < longest
    assert len(both["image_grid_thw"]) == 1
    assert torch.equal(both["pixel_values"], own["pixel_values"])
