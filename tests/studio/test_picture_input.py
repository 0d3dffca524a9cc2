"""The picture editor's value and the endpoint behind it, without a page."""

import asyncio
import io
import os
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from gradio.data_classes import DataWithFiles
from PIL import Image

from hfjax_app.errors import RequestRejected
from hfjax_app.images.interface import ImageFacts, Latents, Recommended, Sizes
from hfjax_app.studio.picture_input import PictureInput, SentPictures


def png(alpha: int | None = None) -> bytes:
    picture, file = Image.new("RGB", (6, 4), (200, 30, 30)), io.BytesIO()
    if alpha is not None:
        picture.putalpha(alpha)
    picture.save(file, "PNG")
    return file.getvalue()


def part(number: str, kind: str, content: bytes, index: object = None) -> DataWithFiles:
    """A part as the page's form sends it: fields are text."""
    return DataWithFiles(data={"id": number, "type": kind, "index": str(index)}, files=[(f"{kind}.png", content)])


@pytest.fixture
def source() -> PictureInput:
    async def build() -> PictureInput:  # without a running loop, Gradio makes its own and never closes it
        with gr.Blocks():
            return PictureInput()

    return asyncio.run(build())


def test_a_picture_and_its_layer_are_read_once(source: PictureInput) -> None:
    """Parts arrive one by one, in any order, at the component's own endpoint."""
    accept = source.editor.accept_blobs
    assert accept._is_server_fn, "Gradio calls only such functions"
    assert "accept_blobs" in source.editor.get_config()["server_fns"]
    for sent in (part("x", "composite", png()), part("x", "layer", png(255), 0), part("x", "background", png())):
        accept(sent)
    picture, mask = source.read({"id": "x"})
    assert picture.size == mask.size == (6, 4)
    assert mask.getextrema() == (255, 255)
    assert source.read({"id": "x"}) == (None, None)
    assert source.read({"id": "never sent"}) == (None, None), "an emptied editor sends such a number"


def test_parts_that_no_page_sends_are_not_stored(source: PictureInput) -> None:
    """Gradio's own endpoint accepts any index and allocates as many layers: 20,000,000 took 300 MB."""
    accept = source.editor.accept_blobs
    wrong: list[Any] = [
        *(part("x", "layer", png(), index) for index in (1, 20_000_000, -1, "null", "x")),
        part("x", "everything", png()),
        part("x" * 1000, "background", png()),
        DataWithFiles(data={"id": "x", "type": "background"}, files=[]),
        DataWithFiles(data=None, files=[("x", b"x")]),
        {"id": "x"},
        None,
    ]
    for sent in wrong:
        accept(sent)
    assert source._sent._sent == {}
    assert source.editor.blob_storage == {}


def test_the_oldest_pictures_are_deleted_and_asking_for_them_is_an_error() -> None:
    """Each stroke of a brush sends a picture, and only the last one is used; Gradio deletes none of them."""
    sent = SentPictures(most=3, most_bytes=100)
    for number in "abcd":
        sent.accept(part(number, "background", b"x" * 10))
    with pytest.raises(RequestRejected, match="too long ago"):
        sent.take("a")
    assert sent.take("b") == (b"x" * 10, None)
    sent.accept(part("e", "background", b"x" * 80))
    sent.accept(part("e", "background", b"x" * 85))
    with pytest.raises(RequestRejected, match="too long ago"):
        sent.take("c")
    assert sent.take("e") == (b"x" * 85, None)
    assert sent.take("d") == (b"x" * 10, None)
    assert (sent._sent, sent._bytes) == ({}, 0)


def test_more_than_one_layer_is_rejected(source: PictureInput, tmp_path: Path) -> None:
    """Every layer that a value named was decoded, for example one file of 10 MB sixty times."""
    for name, content in (("picture", png()), ("layer", png(255)), ("none", os.urandom(100))):
        (tmp_path / name).write_bytes(content)
    picture, layer, none = ({"path": str(tmp_path / name)} for name in ("picture", "layer", "none"))
    read, mask = source.read({"background": picture, "layers": [layer], "id": None})
    assert read.size == mask.size == (6, 4)
    assert source.read({"background": picture, "layers": None})[1] is None
    for layers in ([none, none], [layer] * 60, "layer", 5):
        with pytest.raises(RequestRejected, match="must be one layer"):
            source.read({"background": picture, "layers": layers})


@pytest.mark.parametrize("edits", [False, True])
def test_a_model_that_edits_by_words_says_so(source: PictureInput, edits: bool) -> None:
    """What it can't do with a picture is hidden and empty: hidden values are sent too."""
    facts = ImageFacts(
        name=None,
        revision=None,
        versions={},
        recommended=Recommended(),
        sizes=Sizes(own=(8, 8), patch=8),
        latents=Latents(shape=(1, 4, 1, 1), height=2, width=3, scale=8),
        schedulers=("DDIM",),
        most={},
        takes_negative_prompt=True,
        takes_weights=False,
        edits=edits,
    )
    how, *others = source.fitted(facts)
    assert len(others) + 1 == len(source.of_model)
    assert ("changes the picture by words" in how["value"]) == edits
    assert [each["visible"] for each in others] == [not edits] * 4
    assert [each["value"] for each in others if "value" in each] == ([False, ""] if edits else [])
