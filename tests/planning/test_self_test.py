"""The comparison with PyTorch that users run on their machine."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from hfjax_app.__main__ import main
from hfjax_app.chat.torch_reference import compare, reference
from hfjax_app.embedded import resolve

SMALL = ["--model", "chat-llama", "--slots", "2", "--context", "64", "--tokens", "8"]


@pytest.mark.slow
def test_the_report_of_the_served_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--model", "chat-llama", "--slots", "1", "--context", "64", "--tokens", "4"]) == 0
    report = capsys.readouterr().out
    assert "| tokens | 12 of 12 tokens are PyTorch's |" in report
    assert "| users | ms a step | compiler's estimate | floor |" in report


@pytest.mark.slow
def test_int8_is_compared_with_the_same_rounded_weights() -> None:
    command = [sys.executable, "-m", "hfjax_app", "selftest", *SMALL, "--quantize", "int8", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["agreement"]
    assert found["equal"] == found["tokens"] == 24


@pytest.mark.parametrize("tokens", [1, 33])
def test_too_few_or_many_tokens_are_refused(tokens: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", *SMALL[:-1], str(tokens)]) == 2
    assert capsys.readouterr().err == f"error: tokens = {tokens}: 2 to 32, half of the context\n"


def test_a_token_that_is_not_pytorchs_is_found() -> None:
    source = resolve("chat-llama")
    model = reference(source, "none")
    usual = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    prompt = [5, 6, 7]
    ids = torch.tensor([prompt])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, usual(ids).logits)
    made = usual.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False)[0, len(prompt) :].tolist()
    ends = [usual.generation_config.eos_token_id]
    right = compare(model, [prompt], [made], never=ends, dtype=torch.float32)
    assert (right.equal, right.tokens, right.holds) == (6, 6, True)
    wrong = compare(model, [prompt], [[*made[:5], (made[5] + 1) % 512]], never=ends, dtype=torch.float32)
    assert (wrong.equal, wrong.holds) == (5, False)
    with torch.no_grad():
        assert not torch.equal(reference(source, "int8")(ids).logits, usual(ids).logits)
