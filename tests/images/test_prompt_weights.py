"""Weights of words in prompts: read as compel reads them, without another program."""

import numpy as np
import pytest
import torch
from compel import Compel, DownweightMode, ReturnedEmbeddingsType

from hfjax_app.errors import RequestRejected
from hfjax_app.images.prompt_conditioning import Conditioning, PromptReader
from hfjax_app.images.prompt_weights import Fragment, fragments, plain
from hfjax_app.images.request import ImageRequest
from hfjax_app.runtime.programs import Programs

from .pipelines import CLASSES

OPTIONS = {"guidance_scale": 2.0, "width": 32, "height": 32}


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("a red dot", [("a red dot", 1)]),
        ("a (red:1.3) dot", [("a ", 1), ("red", 1.3), (" dot", 1)]),
        ("(red dot: .5)", [("red dot", 0.5)]),
        ("(a:0)(b:2)", [("a", 0), ("b", 2)]),
        (r"(red \(dark\):1.2)", [("red (dark)", 1.2)]),
        (r"\(red:1.2)", [(r"\(red:1.2)", 1)]),
        ("a picture (16:9)", [("a picture (16:9)", 1)]),
        ("a (red:-1) ((dot)) [x:1]", [("a (red:-1) ((dot)) [x:1]", 1)]),
        ("(red:nan) (:1.2) (red:1e400)", [("(red:nan) (:1.2) (red:1e400)", 1)]),
    ],
)
def test_what_is_a_weight(prompt: str, found: list[tuple[str, float]]) -> None:
    assert fragments(prompt) == [Fragment(text=text, weight=weight) for text, weight in found]


def test_too_many_weights_are_refused_at_once() -> None:
    assert ImageRequest("(a:.9)" * 16, negative_prompt="(a:1.1)" * 99).prompt == "(a:.9)" * 16
    with pytest.raises(RequestRejected, match="17 weights below 1 in a prompt: at most 16"):
        ImageRequest("a dot", negative_prompt="(a:.9)" * 17)


def both(conditioning: Conditioning) -> np.ndarray:
    """The embeddings of the words of both prompts, [2, length, width], the negative one's first."""
    prompt, negative = (array for array in conditioning.arrays if array is not None and array.ndim == 3)
    return np.concatenate([negative, prompt])


@pytest.mark.parametrize("name", ["SD 2", "SDXL"])
def test_embeddings_are_compels(name: str) -> None:
    pipeline, programs = CLASSES[name](), Programs()
    reader = PromptReader(pipeline, programs)
    usual = reader.read(ImageRequest("a red dot", negative_prompt="blue", **OPTIONS))
    compiled = len(programs.reports)
    prompt, negative = "a (red:1.5) (dot:0.5)", "(blue:1.2)"
    got = reader.read(ImageRequest(prompt, negative_prompt=negative, **OPTIONS))
    assert len(programs.reports) == compiled, "a request compiles nothing"
    encoders = [getattr(pipeline, each) for each in ("text_encoder", "text_encoder_2") if hasattr(pipeline, each)]
    tokenizers = [getattr(pipeline, each) for each in ("tokenizer", "tokenizer_2") if hasattr(pipeline, each)]
    kinds = ReturnedEmbeddingsType
    last = kinds.LAST_HIDDEN_STATES_NORMALIZED if len(encoders) == 1 else kinds.PENULTIMATE_HIDDEN_STATES_NON_NORMALIZED
    rows = []
    for text in ("(blue)1.2", "a (red)1.5 (dot)0.5"):
        made = [
            Compel(tokenizer, encoder, downweight_mode=DownweightMode.REMOVE, returned_embeddings_type=last)(text)
            for tokenizer, encoder in zip(tokenizers, encoders, strict=True)
        ]
        rows.append(torch.cat(made, dim=-1))
    want = torch.cat(rows).detach().numpy()
    weighted, unweighted = both(got), both(usual)
    np.testing.assert_allclose(weighted, want, rtol=1e-4, atol=1e-4)
    assert np.abs(weighted - unweighted).max() > 1e-2
    for mine, other in zip(got.arrays, usual.arrays, strict=True):
        if mine is not None and mine.ndim != 3:  # pooled embeddings, of the words alone
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)
    assert reader.cut(prompt) == ""


def test_clip_skip_and_weights_are_compels(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = CLASSES["SD 2"]()
    request = ImageRequest("a (red:1.5) dot", negative_prompt="(blue:1.2)", clip_skip=1, **OPTIONS)
    got = PromptReader(pipeline, Programs()).read(request)
    monkeypatch.setitem(pipeline.text_encoder.__dict__, "text_model", pipeline.text_encoder)
    kind = ReturnedEmbeddingsType.PENULTIMATE_HIDDEN_STATES_NORMALIZED
    skipping = Compel(pipeline.tokenizer, pipeline.text_encoder, returned_embeddings_type=kind)
    whole = Compel(pipeline.tokenizer, pipeline.text_encoder)  # diffusers leaves out no layers of negative prompts
    want = torch.cat([whole("(blue)1.2"), skipping("a (red)1.5 dot")]).detach().numpy()
    np.testing.assert_allclose(both(got), want, rtol=1e-4, atol=1e-4)


def test_other_text_encoders_read_weights_as_text() -> None:
    reader = PromptReader(CLASSES["PixArt"](), Programs())
    assert not reader.takes_weights
    assert plain("a (red:1.5) dot") == "a red dot"
    weighted, text = (reader.read(ImageRequest(prompt, **OPTIONS)) for prompt in ("a (red:1.5) dot", "a red dot"))
    assert any(
        mine is not None and mine.shape == other.shape and not np.array_equal(mine, other)
        for mine, other in zip(weighted.arrays, text.arrays, strict=True)
    )
