"""What a chat model needs of a device, and the refusal before anything of it is loaded."""

from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from hfjax_app.chat import ChatEngine
from hfjax_app.chat.model_runner import ModelRunner
from hfjax_app.chat.need import Need, check_memory, need_of
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.weights import shapes

MIB = 1 << 20


def test_the_need_is_what_is_held(model_of: Callable[[str], PreTrainedModel]) -> None:
    """Gemma 3: one of three layers keeps all 64 tokens; 2 heads of 16 numbers, keys and values, float32."""
    model = model_of("gemma3")
    engine = ChatEngine(model, slots=3, context=64, prefill_chunk=16)
    engine.runner.reset()
    need = need_of(engine.runner, model)
    assert need.weights == sum(weight.nbytes for weight in engine.runner.weights.values())
    assert need.cache == sum(leaf.nbytes for leaf in jax.tree.leaves(engine.runner._cache))
    assert need.per_slot_token == 2 * 2 * 16 * 4
    assert need.read == need.weights - model.get_input_embeddings().weight.nbytes


@pytest.mark.parametrize("int8", [False, True])
def test_a_tied_embedding_is_read_by_the_output_layer_unless_that_is_int8(int8: bool) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, tie_word_embeddings=True, **sizes))
    runner = ModelRunner(model, weights=shapes(model, quantize=int8), slots=1, context=64, end_tokens=())
    need = need_of(runner, model)
    assert need.weights - need.read == (64 * 32 * 4 if int8 else 0)


def test_what_fits_is_not_refused() -> None:
    need = Need(weights=6 * MIB, cache=4 * MIB, per_slot_token=1024, read=0)
    for memory in (10 * MIB, None):
        check_memory("m", need, memory=memory, slots=4, context=1024)


def test_a_refusal_says_what_would_fit() -> None:
    """Beside 6 MiB of weights 2 are left: half of the 4 slots, or half of the 1,024 tokens."""
    need = Need(weights=6 * MIB, cache=4 * MIB, per_slot_token=1024, read=0)
    with pytest.raises(
        ModelUnavailable, match=r"chat model 'm' needs .* fit: slots = 2, context = 511, quantize"
    ) as error:
        check_memory("m", need, memory=8 * MIB, slots=4, context=1024)
    assert "\n" not in str(error.value)
    with pytest.raises(ModelUnavailable, match="fit: quantize = int8, more devices, a smaller model"):
        check_memory("m", need, memory=5 * MIB, slots=4, context=1024)


def test_nothing_is_loaded_of_a_model_that_does_not_fit(
    model_of: Callable[[str], PreTrainedModel],
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model_of("llama").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_text("not read")
    monkeypatch.setattr("hfjax_app.chat.engine.device_memory", lambda: 100_000)
    with pytest.raises(ModelUnavailable, match=r"chat model .* needs .* on each device"):
        ChatEngine.from_pretrained(tmp_path, slots=2, context=64)
