"""The sampling parameters from which page, API and command line start."""

from typing import Any

import pytest
from transformers import GenerationConfig

from hfjax_app.chat import SamplingParams
from hfjax_app.chat.sampling.params import recommended

OWN = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.05}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (OWN | {"do_sample": True}, OWN),
        (OWN, OWN),
        ({}, {}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": False}, {"temperature": 0.0}),
        (
            {"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1},
            {"temperature": 0.0, "repetition_penalty": 1.1},
        ),
        ({"do_sample": True, "temperature": 0.6, "top_p": None, "top_k": -1, "min_p": "much"}, {"temperature": 0.6}),
    ],
)
def test_what_a_generation_config_recommends(written: dict[str, Any], expected: dict[str, float]) -> None:
    """Greedy only if it says so: without `do_sample` the app samples. Values out of range do not count."""
    config = GenerationConfig()
    for name, value in written.items():
        setattr(config, name, value)
    assert recommended(config) == SamplingParams(**expected)


def test_a_model_without_a_generation_config() -> None:
    assert recommended(None) == SamplingParams()
