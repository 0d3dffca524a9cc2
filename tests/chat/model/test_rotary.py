"""Positions that are scaled by the length of the sequence: chosen once by the context, with `generate`'s tokens."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hfjax_app.chat import ChatEngine, EngineOptions, SamplingParams
from hfjax_app.chat.model.rotary import positions_of
from tests.chat.conftest import SMALL

SIZES = SMALL | {"head_dim": 16, "num_hidden_layers": 2, "max_position_embeddings": 256}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0 + i / 50 for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "phi3": {"rope_scaling": LONG, "original_max_position_embeddings": 64, "sliding_window": None},
    "phimoe": {"rope_scaling": LONG | {"short_mscale": 1.24, "long_mscale": 1.3}, "num_local_experts": 4},
    "minicpm3": {"rope_scaling": LONG, **LATENT},
    "llama": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "phimoe", "minicpm3")]


def config_of(name: str) -> Any:
    return AutoConfig.for_model(name, **{**SIZES, **CONFIGS[name]})


@pytest.mark.parametrize("name", ["phi3", *SLOW])
@pytest.mark.parametrize(("context", "length"), [(64, 20), (160, 90)], ids=["short", "long"])
def test_the_context_decides_once(name: str, context: int, length: int) -> None:
    """Phi-3-mini-128k, Phi-3.5 and their like were refused: their code chooses in each forward. Here a prompt that is
    longer than the original positions is served with a context that is, a short one with one that is not."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(name), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.15)
    prompt = torch.randint(1, 512, (1, length))
    expected = model.generate(prompt, do_sample=False, max_new_tokens=12, eos_token_id=None)[0, length:].tolist()
    engine = ChatEngine(
        model, options=EngineOptions(slots=1, context=context, prefill_chunk=16, buckets=[1], speculation="never")
    ).start()
    try:
        assert engine.generate([prompt[0].tolist()], SamplingParams(max_tokens=12, temperature=0.0)) == [expected]
    finally:
        engine.stop()


@pytest.mark.parametrize(("name", "positions"), [("phi3", 256), ("llama", 512)])
def test_the_positions_of_a_model(name: str, positions: int) -> None:
    """Dynamic NTK scaling adds to them, LongRoPE's are in the config."""
    assert positions_of(config_of(name)) == positions
