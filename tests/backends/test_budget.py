"""Whether models fit, at the app's start and in plans, and what would fit: figures that can be checked by hand."""

from pathlib import Path
from typing import Any

import pytest

from hfjax_app.backends import Backends
from hfjax_app.backends.budget import ChipMemory, advise, fits, larger, planner_of, refusals
from hfjax_app.chat.memory import GIB, MemoryEstimate, SlotMemory
from hfjax_app.runtime.topology import MARGIN, Chip, Topology, parse
from hfjax_app.settings import load_settings
from tests.sentiment.conftest import save, word_tokenizer

MIB = 1 << 20
MODELS = {"chat": "chat-llama", "sentiment": "sentiment", "image": "images"}
OPTIONS: dict[str, Any] = {"slots": 4, "context": 512, "dtype": "bfloat16", "quantize": "none"}


def memory_for(size: int) -> int:
    """The memory of a device that has just enough for `size` bytes."""
    return int(size / (1 - MARGIN)) + 1


def test_models_fit_together_or_the_one_that_does_not_is_named() -> None:
    """If 1,000 bytes are missing, one slot less for chat makes room for the last model.

    The copy of chat while one of its four slots decodes must fit too: the only bucket that is worth it here.
    """
    chat = planner_of("chat", MODELS["chat"], **OPTIONS).estimate(2)
    assert chat.held == chat.weights + chat.cache * 5 // 4
    size = chat.held + sum(planner_of(kind, MODELS[kind], **OPTIONS).weights for kind in ("sentiment", "image"))
    assert refusals(MODELS, devices=2, memory=memory_for(size), **OPTIONS) == {}
    refused = refusals(MODELS, devices=2, memory=memory_for(size - 1000), **OPTIONS)
    assert list(refused) == ["image"]
    for words in (
        "image model 'images' does not fit",
        "beside the chat model 'chat-llama'",
        "'sentiment'",
        "slots = 3",
    ):
        assert words in refused["image"]
    assert "\n" not in refused["image"]


def test_a_model_that_can_not_be_read_is_left_out(tmp_path: Path) -> None:
    assert refusals({"image": str(tmp_path)}, devices=1, memory=1, **OPTIONS) == {}


def test_an_error_of_a_library_affects_one_model_only(tmp_path: Path) -> None:
    """A tokenizer that truncates to -1 tokens raises an OverflowError; it kept all models from being loaded."""
    save(tmp_path)
    word_tokenizer(-1).save_pretrained(tmp_path)
    models = {"sentiment": str(tmp_path), "image": "images"}
    assert list(refusals(models, devices=1, memory=1, **OPTIONS)) == ["image"]


def test_models_that_do_not_fit_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator of 1 MB; CPU devices are not checked."""
    monkeypatch.setattr("hfjax_app.backends.registry.accelerator_memory", lambda: 1_000_000)
    backends = Backends(load_settings()).start()
    assert backends.wait(timeout=120)
    assert [(backend.state, backend.reports) for backend in backends.all] == [("failed", [])] * 3
    for backend, model in zip(backends.all, ("chat-gemma", "sentiment", "images"), strict=True):
        assert f"model '{model}' does not fit: it needs " in backend.error
        assert "would fit: " in backend.error


def estimate(weights: int, per_token: int, slots: int, context: int) -> MemoryEstimate:
    slot = SlotMemory(states=0, positions=((per_token, None),))
    return MemoryEstimate(
        weights=weights, cache=slot.cache(slots, context), copied=slot.copied(slots, context), slot=slot
    )


def chip_memory(weights: int, per_token: int, decoding: int, slots: int, context: int, others: int = 0) -> ChipMemory:
    by_shapes = estimate(weights, per_token, slots, context)
    resident = by_shapes.weights + by_shapes.cache
    return ChipMemory(estimate=by_shapes, resident=resident, decoding=decoding, others=others)


def test_whether_a_peak_fits() -> None:
    """A token of each of 8 slots takes 64 KiB: 0.5 GiB for 1,024 of them, and 4 GiB for 8,192."""
    token = GIB // 16 // 1024
    assert fits(chip_memory(10 * GIB, token, GIB, 8, 8192).peak, parse("v5e:1x1"))
    assert not fits(chip_memory(10 * GIB, token, 2 * GIB, 8, 8192).peak, parse("v5e:1x1"))
    assert not fits(chip_memory(10 * GIB, token, GIB, 8, 8192, others=2 * GIB).peak, parse("v5e:1x1"))
    assert fits(chip_memory(10 * GIB, 100 * token, 2 * GIB, 8, 8192).peak, parse("cpu:1"))


def on_devices(count: int, quantize: str = "none") -> MemoryEstimate:
    """10 GiB of weights, or 5 as int8, and 8 slots, each of 1 GiB for 1,024 tokens, split over `count` devices."""
    return estimate((10 if quantize == "none" else 5) * GIB // count, MIB // count, 8, 1024)


def test_advice_is_the_largest_that_fits() -> None:
    """15.04 GiB are usable; 10 of weights and 1 of other temporary memory leave 4.04.

    A slot of 1,024 tokens takes 1, and a program of half of the slots copies their caches. One larger chip comes before
    four. With int8 5 + 8 + 4 + 1 is too much, and 5 + 4 + 2 + 1 for half of the context is not.
    """
    whole = chip_memory(10 * GIB, MIB, 5 * GIB, 8, 1024)
    advice = advise(whole, parse("v5e:1x1"), 8, 1024, on_devices)
    assert (advice.int8, advice.slots, advice.context, advice.topology) == (False, 2, 320, "v6e:1x1")
    assert str(advice) == "slots = 2 or context = 320 or topology v6e:1x1"
    advice = advise(whole, parse("v5e:1x1"), 8, 1024, on_devices, prices={"v5e": 1.0, "v6e": 4.1})
    assert advice.topology == "v5e:2x2"


def test_int8_on_the_same_chip_comes_before_more_chips() -> None:
    """Weights of 30 GiB, or 15 as int8, and a cache of 1: 16 do not fit v5e:1x1, and 31 do not fit v6e:1x1."""

    def on(devices: int, quantize: str) -> MemoryEstimate:
        return estimate((30 if quantize == "none" else 15) * GIB // devices, MIB // 8 // devices, 1, 8192)

    def memory(quantize: str) -> ChipMemory:
        found = on(1, quantize)
        return ChipMemory(estimate=found, resident=found.weights + found.cache, decoding=found.copied)

    advice = advise(memory("none"), parse("v6e:1x1"), 1, 8192, on)
    assert (advice.int8, advice.topology_with_int8, advice.topology) == (True, None, "v5e:2x2")
    assert str(advice).startswith("quantize = int8 or ")
    advice = advise(memory("none"), parse("v5e:1x1"), 1, 8192, on)
    assert (advice.int8, advice.topology_with_int8, advice.topology) == (False, "v6e:1x1", "v5e:2x2")
    assert str(advice).endswith("topology v6e:1x1 with quantize = int8 or topology v5e:2x2")
    advice = advise(memory("int8"), parse("v5e:1x1"), 1, 8192, on, quantize="int8")
    assert (advice.int8, advice.topology_with_int8, advice.topology) == (False, None, "v6e:1x1")


def test_copies_and_other_programs_take_turns() -> None:
    """A prompt's program takes 3 GiB, decoding with its copies 5: with fewer slots the prompt's program is larger."""
    whole = chip_memory(10 * GIB, MIB, 5 * GIB, 8, 1024, others=3 * GIB)
    advice = advise(whole, parse("v5e:1x1"), 8, 1024, on_devices)
    assert (advice.slots, advice.context) == (2, 256)


def test_advice_leaves_room_for_the_other_models() -> None:
    """Another model, on the first chip of every topology, takes 2 of the 4.04 GiB."""
    whole = chip_memory(10 * GIB, MIB, 5 * GIB, 8, 1024)
    advice = advise(whole, parse("v5e:1x1"), 8, 1024, on_devices, beside=2 * GIB)
    assert (advice.slots, advice.context, advice.topology) == (1, 128, "v6e:1x1")
    advice = advise(whole, parse("v5e:1x1"), 8, 1024, on_devices, beside=15 * GIB)
    assert (advice.slots, advice.context, advice.topology) == (0, 0, "v6e:2x2")
    assert larger(parse("v5e:1x1"), lambda devices: 20 * GIB) == "v6e:1x1"
    assert larger(parse("v5e:1x1"), lambda devices: 40 * GIB) == "v5p:2x2x1"
    assert larger(parse("v5e:1x1"), lambda devices: 100 * GIB) is None


def test_a_model_on_one_chip_needs_a_larger_chip() -> None:
    """An image model of 20 GiB does not fit eight chips of 16, and fits one of 32, although that is less in all."""
    assert larger(parse("v5e:2x4"), lambda devices: 20 * GIB) == "v6e:1x1"
    assert larger(parse("v5e:2x4"), lambda devices: 160 * GIB // devices) == "v6e:2x4"
    here = Topology(name="8 devices", devices=8, chip=Chip(hbm=int(15.75 * GIB), bandwidth=0.0))
    assert larger(here, lambda devices: int(14.9 * GIB)) == "v6e:1x1"


def test_weights_that_fit_with_no_number_of_slots() -> None:
    whole = chip_memory(20 * GIB, MIB // 8, GIB, 8, 1024)
    advice = advise(whole, parse("v5e:1x1"), 8, 1024, lambda devices, _: estimate(40 * GIB // devices, 128, 8, 1024))
    assert (advice.slots, advice.context, advice.topology) == (0, 0, "v5e:2x2")
    nowhere = advise(whole, parse("v5e:1x1"), 8, 1024, lambda devices, _: estimate(100 * GIB, 128, 8, 1024))
    assert "a smaller model would" in str(nowhere)
