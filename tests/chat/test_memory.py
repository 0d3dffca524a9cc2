"""The memory that a chat model takes on a device, and the error before anything of it is loaded."""

from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hfjax_app.chat import ChatEngine, EngineOptions
from hfjax_app.chat.memory import MemoryEstimate, SlotMemory, check_memory, estimate_memory
from hfjax_app.chat.model.buckets import length_buckets, slot_buckets
from hfjax_app.chat.model.kv_cache import take
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.errors import ModelUnavailable

MIB = 1 << 20


def test_the_estimate_equals_the_bytes_held(model_of: Callable[[str], PreTrainedModel]) -> None:
    """Gemma 3: one of three layers keeps all 64 tokens; 2 heads of 16 numbers, keys and values, float32."""
    model = model_of("gemma3")
    engine = ChatEngine(model, options=EngineOptions(slots=3, context=64, prefill_chunk=16))
    engine.runner.reset()
    estimate = estimate_memory(engine.runner)
    assert estimate.weights == sum(weight.nbytes for weight in engine.runner.weights.values())
    assert estimate.cache == sum(leaf.nbytes for leaf in jax.tree.leaves(engine.runner._cache))
    assert estimate.slot.cache(3, 64) - estimate.slot.cache(3, 63) == 3 * 2 * 2 * 16 * 4


@pytest.mark.parametrize(("slots", "context"), [(5, 2048), (1, 2048), (4, 512), (1, 256)])
def test_copies_made_by_programs_are_counted(
    slots: int, context: int, model_of: Callable[[str], PreTrainedModel]
) -> None:
    """Of 5 slots 4 are copied while they decode, with all their positions: another 80 % of the cache."""
    model = model_of("gemma3")
    runner = ModelRunner(model, EngineOptions(slots=slots, context=context, end_tokens=()))

    def copy(count: int, length: int) -> int:
        which = jax.ShapeDtypeStruct((count,), "int32")
        part = jax.eval_shape(lambda cache, which: take(cache, length, which), runner.cache_shape, which)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(part))

    parts = [(count, length) for count in slot_buckets(slots) for length in length_buckets(context)]
    estimate = estimate_memory(runner)
    assert estimate.copied == max((copy(*part) for part in parts if part != (slots, context)), default=0)
    assert estimate.copied == estimate.slot.copied(slots, context)
    assert estimate.cache == copy(slots, context)
    assert estimate.held == estimate.weights + estimate.cache + estimate.copied


def estimate_of(slots: int, context: int) -> MemoryEstimate:
    """6 MiB of weights, and 1 KiB for each token of each slot."""
    slot = SlotMemory(states=0, positions=((1024, None),))
    return MemoryEstimate(
        weights=6 * MIB, cache=slot.cache(slots, context), copied=slot.copied(slots, context), slot=slot
    )


def test_a_model_that_fits_is_accepted() -> None:
    """4 MiB for 4 slots of 1,024 tokens, and 2 for the copies of two of them."""
    for memory in (12 * MIB, None):
        check_memory("m", estimate_of(4, 1024), EngineOptions(slots=4, context=1024), memory=memory)


def test_the_error_says_what_would_fit() -> None:
    """Beside 6 MiB of weights 3 are left: for 2 slots and a copy of one, or for 4 of 512 tokens and copies of two."""
    estimate, options = estimate_of(4, 1024), EngineOptions(slots=4, context=1024)
    with pytest.raises(
        ModelUnavailable, match=r"chat model 'm' needs .* fit: slots = 2, context = 512, quantize"
    ) as error:
        check_memory("m", estimate, options, memory=9 * MIB)
    assert "\n" not in str(error.value)
    with pytest.raises(ModelUnavailable, match="fit: quantize = int8, more devices, a smaller model"):
        check_memory("m", estimate, options, memory=6 * MIB)
    check_memory("m", estimate_of(2, 1024), EngineOptions(slots=2, context=1024), memory=9 * MIB)
    check_memory("m", estimate_of(4, 512), EngineOptions(slots=4, context=512), memory=9 * MIB)


def test_nothing_is_loaded_of_a_model_that_does_not_fit(
    model_of: Callable[[str], PreTrainedModel],
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model_of("llama").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_text("not read")
    monkeypatch.setattr("hfjax_app.chat.engine.llm_engine.device_memory", lambda: 100_000)
    with pytest.raises(ModelUnavailable, match=r"chat model .* needs .* on each device"):
        ChatEngine.from_pretrained(tmp_path, slots=2, context=64)
