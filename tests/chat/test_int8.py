"""Chat with int8 weights: the tokens of a torch model that has the same rounded weights."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from hfjax_app.chat import ChatEngine, SamplingParams
from hfjax_app.runtime import quantization


def test_greedy_equals_generate_with_the_rounded_weights(
    model_of: Callable[[str], PreTrainedModel], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model_of("gemma3").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    rounded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for name in quantization.sources(rounded):
        weight = rounded.get_parameter(name)
        values, scale = quantization.quantize(weight.detach())
        weight.data = torch.from_numpy(values * scale[:, None])
    prompts = [np.random.default_rng(n).integers(5, 512, n).tolist() for n in (3, 40)]
    want = [
        rounded.generate(torch.tensor([p]), attention_mask=torch.ones(1, len(p)), max_new_tokens=30, do_sample=False)
        for p in prompts
    ]

    options = {"slots": 2, "context": 128, "prefill_chunk": 16, "tiers": (), "speculation": "never"}
    engine = ChatEngine.from_pretrained(tmp_path, quantize="int8", **options).start()
    got = engine.generate(prompts, SamplingParams(max_tokens=30, temperature=0.0))
    weights = engine.runner.weights
    engine.stop()
    assert got == [w[0, len(p) :].tolist() for w, p in zip(want, prompts, strict=True)]
    linears = [weights[name] for name in quantization.sources(rounded)]
    assert len(linears) == 3 * 7 + 1
    assert {weight.dtype.name for weight in linears} == {"int8"}
