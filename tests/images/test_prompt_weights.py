"""Weights of words in prompts: read as compel reads them, without another program."""

import numpy as np
import pytest
import torch
from compel import Compel, DownweightMode, ReturnedEmbeddingsType

from hfjax_app.errors import RequestRejected
from hfjax_app.images.prompt_conditioning import Conditioning, PromptReader
from hfjax_app.images.prompt_weights import Fragment, fragments, left_out, plain, unweighted
from hfjax_app.images.request import ImageRequest
from hfjax_app.runtime.programs import Programs

from .pipelines import CLASSES, TOKENS

OPTIONS = {"guidance_scale": 2.0, "width": 32, "height": 32}


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("a red dot", [("a red dot", 1)]),
        ("a (red:1.3) dot", [("a ", 1), ("red", 1.3), (" dot", 1)]),
        ("(red dot: .5)", [("red dot", 0.5)]),
        ("(a:0)(b:2)", [("a", 0), ("b", 2)]),
        (r"(red \(dark\):1.2)", [("red (dark)", 1.2)]),
        (r"\(red:1.2)", [("(red:1.2)", 1)]),
        ("a picture (16:9)", [("a picture (16:9)", 1)]),
        ("a (red:-1) (red:2.1) [x:1] [x|y]", [("a (red:-1) (red:2.1) [x:1] [x|y]", 1)]),
        ("(:1.2) () [] a)b]", [("(:1.2) () [] a)b]", 1)]),
        ("(dark) [dot]", [("dark", 1.1), (" ", 1), ("dot", 1 / 1.1)]),
        ("((dark)) [(dot)]", [("dark", 1.21), (" dot", 1)]),
        ("(not closed", [("not closed", 1.1)]),
        (r"\(red\), \[x\] \\", [("(red), [x] \\", 1)]),
        (r"(smile:1.2), rin \(cards\)", [("smile", 1.2), (", rin (cards)", 1)]),
        ("a (((house:1.3)) [on] hill", [("a ", 1), ("house", 1.573), (" ", 1.1), ("on", 1), (" hill", 1.1)]),
        ("((((((((((a))))))))))", [("a", 2)]),
        ("((a (16:9) [b) c]", [("a (16:9) ", 1.21), ("b", 1.1), (" c", 1)]),
        ("a <lora:x:0.8>dot", [("a dot", 1)]),
        ("<lora:x:1>", [("", 1)]),
    ],
)
def test_what_is_a_weight(prompt: str, found: list[tuple[str, float]]) -> None:
    assert [each.text for each in fragments(prompt)] == [text for text, _ in found]
    assert [each.weight for each in fragments(prompt)] == pytest.approx([weight for _, weight in found])
    assert plain(prompt) == "".join(text for text, _ in found)


def test_pieces() -> None:
    assert fragments("red BREAK dot, (blue BREAK sky:1.2) BREAKS") == [
        Fragment(text="red"),
        Fragment(text=" dot, ", breaks=True),
        Fragment(text="blue", weight=1.2),
        Fragment(text=" sky", weight=1.2, breaks=True),
        Fragment(text=" BREAKS"),
    ]


def test_what_is_not_taken_is_told() -> None:
    prompt = "a __colour__ {dot|ball} [red:blue:0.5] [a|b] AND (sky:3) <lora:some:0.8>, embedding:bad (dark)"
    assert left_out(prompt, takes_weights=True) == [
        "no text: <lora:some:0.8>",
        "read as text: [red:blue:0.5], [a|b], __colour__, {dot|ball}, AND, embedding:bad, (sky:3)",
    ]
    assert left_out("(red)1.3 {{sky}} (dot)++ C++", takes_weights=True) == [
        "read as text: (red)1.3, {sky}, (dot)++",
    ]
    assert left_out("a ((red)) [dot] (sky:1.2) (16) BREAK b", takes_weights=False) == [
        "read as text: (sky:1.2), ((red)), [dot], BREAK"
    ]
    for takes in (True, False):
        assert left_out(r"a dot, its colour: red (dark)", takes_weights=takes) == []
    assert unweighted(r"rin \(cards\) (a:1.2) BREAK b <lora:x:1>") == "rin (cards) (a:1.2) b "


def test_too_many_weights_are_refused_at_once() -> None:
    assert ImageRequest("(a:.9) " * 16, negative_prompt="(a:1.1) " * 99).prompt == "(a:.9) " * 16
    with pytest.raises(RequestRejected, match="17 weights below 1 in a prompt: at most 16"):
        ImageRequest("a dot", negative_prompt="(a:.9) " * 17)
    with pytest.raises(RequestRejected, match="301 brackets in a prompt: at most 300"):
        ImageRequest("(" * 301)


def both(conditioning: Conditioning) -> np.ndarray:
    """The states of the words of both prompts, [2, length, width], the negative one's first."""
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
    np.testing.assert_allclose(both(got), want, rtol=1e-4, atol=1e-4)
    assert np.abs(both(got) - both(usual)).max() > 1e-2
    for mine, other in zip(got.arrays, usual.arrays, strict=True):
        if mine is not None and mine.ndim != 3:  # pooled embeddings, of the words alone
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)
    assert reader.cut(prompt) == ""


@pytest.mark.parametrize("name", ["SD 2", "SDXL"])
def test_pieces_are_compels(name: str) -> None:
    """Each as long as it can be. Those that a prompt lacks are empty ones."""
    from compel.embeddings_provider import EmbeddingsProvider, SplitLongTextMode

    pipeline, programs = CLASSES[name](), Programs()
    reader = PromptReader(pipeline, programs)
    for text in ("a", "a BREAK a"):
        reader.read(ImageRequest(text, **OPTIONS))
    compiled = len(programs.reports)
    prompt = "a red dot (on a blue lake:1.4) and so on for ever"
    got = reader.read(ImageRequest(prompt, negative_prompt="(blue:1.2)", **OPTIONS))
    assert (len(programs.reports), got.form.is_long, got.form.rows) == (compiled, True, 2)
    encoders = [getattr(pipeline, each) for each in ("text_encoder", "text_encoder_2") if hasattr(pipeline, each)]
    tokenizers = [getattr(pipeline, each) for each in ("tokenizer", "tokenizer_2") if hasattr(pipeline, each)]
    kinds = ReturnedEmbeddingsType
    last = kinds.LAST_HIDDEN_STATES_NORMALIZED if len(encoders) == 1 else kinds.PENULTIMATE_HIDDEN_STATES_NON_NORMALIZED
    rows = []
    for parts in ({"blue": 1.2}, {"a red dot ": 1.0, "on a blue lake": 1.4, " and so on for ever": 1.0}):
        made = []
        for tokenizer, encoder in zip(tokenizers, encoders, strict=True):
            provider = EmbeddingsProvider(
                tokenizer,
                encoder,
                truncate=False,
                split_long_text_mode=SplitLongTextMode.BRUTAL,
                returned_embeddings_type=last,
            )
            states = provider.get_embeddings_for_weighted_prompt_fragments([[*parts]], [[*parts.values()]])
            made.append(torch.cat([states, *[provider.empty_z] * (3 - states.shape[1] // TOKENS)], dim=1))
        rows.append(torch.cat(made, dim=-1))
    want = torch.cat(rows).detach().numpy()
    assert want.shape[1] == 3 * TOKENS
    np.testing.assert_allclose(both(got)[:, : 3 * TOKENS], want, rtol=1e-4, atol=1e-4)
    assert np.isnan(both(got)[:, 3 * TOKENS :]).all()
    assert both(got).shape[1] > 3 * TOKENS
    assert reader.cut(prompt) == ""
    assert reader.cut("abcd" * 28 + " the end") == "the end"
    assert reader.cut("x (" + "y" * 111 + " the:1.2) end") == "the end"


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


@pytest.mark.parametrize(
    ("name", "prompt", "found"),
    [
        ("SD 2", "a red dot", (7, 14, 1, False)),
        ("SD 2", "a (red:1.3) dot BREAK a blue lake", (16, 14, 2, False)),
        ("SD 2", "abcdefghijklmn" * 8 + "op", (114, 14, 8, True)),
        ("SDXL", "abcdefghijklmno", (15, 14, 2, False)),
        ("PixArt", "a red dot", None),
    ],
)
def test_the_length_of_a_prompt(name: str, prompt: str, found: tuple[int, int, int, bool] | None) -> None:
    pipeline = CLASSES[name]()
    reader = PromptReader(pipeline, Programs())
    reader.read(ImageRequest("a", **OPTIONS))
    length = reader.length(prompt)
    if found is None:  # T5 has a token of its own for each space, and one at the end
        tokens = len(pipeline.tokenizer(prompt).input_ids) - 1
        found = (tokens, reader.length("").room, 1, False)
        assert reader.length("a" * 300).is_cut
        assert reader.length("").tokens == 0
    assert (length.tokens, length.room, length.pieces, length.is_cut) == found
