"""What a chat model needs of a device, and the refusal before anything of it is loaded."""

from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from hfjax_app.chat import ChatEngine
from hfjax_app.chat.memory import MemoryEstimate, SlotMemory, check_memory, estimate_memory
from hfjax_app.chat.model.buckets import length_buckets, slot_buckets, take
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.errors import ModelUnavailable

MIB = 1 << 20


def test_the_need_is_what_is_held(model_of: Callable[[str], PreTrainedModel]) -> None:
    """Gemma 3: one of three layers keeps all 64 tokens; 2 heads of 16 numbers, keys and values, float32."""
    model = model_of("gemma3")
    engine = ChatEngine(model, slots=3, context=64, prefill_chunk=16)
    engine.runner.reset()
    need = estimate_memory(engine.runner, model)
    assert need.weights == sum(weight.nbytes for weight in engine.runner.weights.values())
    assert need.cache == sum(leaf.nbytes for leaf in jax.tree.leaves(engine.runner._cache))
    assert need.slot.cache(3, 64) - need.slot.cache(3, 63) == 3 * 2 * 2 * 16 * 4
    assert need.read == need.weights - model.get_input_embeddings().weight.nbytes


@pytest.mark.parametrize(("slots", "context"), [(5, 2048), (1, 2048), (4, 512), (1, 256)])
def test_what_programs_copy_is_counted(slots: int, context: int, model_of: Callable[[str], PreTrainedModel]) -> None:
    """Of 5 slots 4 are copied while they decode, with all their rows: 80 % of the cache beside the cache."""
    model = model_of("gemma3")
    runner = ModelRunner(model, slots=slots, context=context, end_tokens=())

    def copy(count: int, rows: int) -> int:
        which = jax.ShapeDtypeStruct((count,), "int32")
        part = jax.eval_shape(lambda cache, which: take(cache, rows, which), runner.cache_shape, which)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(part))

    parts = [(count, rows) for count in slot_buckets(slots) for rows in length_buckets(context)]
    need = estimate_memory(runner, model)
    assert need.copied == max((copy(*part) for part in parts if part != (slots, context)), default=0)
    assert need.copied == need.slot.copied(slots, context)
    assert need.cache == copy(slots, context)
    assert need.held == need.weights + need.cache + need.copied


@pytest.mark.parametrize("int8", [False, True])
def test_a_tied_embedding_is_read_by_the_output_layer_unless_that_is_int8(int8: bool) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, tie_word_embeddings=True, **sizes))
    runner = ModelRunner(model, quantize="int8" if int8 else "none", slots=1, context=64, end_tokens=())
    need = estimate_memory(runner, model)
    assert need.weights - need.read == (64 * 32 * 4 if int8 else 0)


def need_of_slots(slots: int, context: int) -> MemoryEstimate:
    """6 MiB of weights, and 1 KiB for each token of each slot."""
    slot = SlotMemory(states=0, rows=((1024, None),))
    return MemoryEstimate(
        weights=6 * MIB, cache=slot.cache(slots, context), copied=slot.copied(slots, context), read=0, slot=slot
    )


def test_what_fits_is_not_refused() -> None:
    """4 MiB for 4 slots of 1,024 tokens, and 2 for the copies of two of them."""
    for memory in (12 * MIB, None):
        check_memory("m", need_of_slots(4, 1024), memory=memory, slots=4, context=1024)


def test_a_refusal_says_what_would_fit() -> None:
    """Beside 6 MiB of weights 3 are left: for 2 slots and a copy of one, or for 4 of 512 tokens and copies of two."""
    need = need_of_slots(4, 1024)
    with pytest.raises(
        ModelUnavailable, match=r"chat model 'm' needs .* fit: slots = 2, context = 512, quantize"
    ) as error:
        check_memory("m", need, memory=9 * MIB, slots=4, context=1024)
    assert "\n" not in str(error.value)
    with pytest.raises(ModelUnavailable, match="fit: quantize = int8, more devices, a smaller model"):
        check_memory("m", need, memory=6 * MIB, slots=4, context=1024)
    check_memory("m", need_of_slots(2, 1024), memory=9 * MIB, slots=2, context=1024)
    check_memory("m", need_of_slots(4, 512), memory=9 * MIB, slots=4, context=512)


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
