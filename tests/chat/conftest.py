"""Tiny chat models with random weights, made by the tests."""

from collections.abc import Callable, Iterator

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from hfjax_app.chat import ChatEngine, EngineOptions

# No end token: `generate` would stop there, and the tests compare lengths.
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(num_hidden_layers=2, **SMALL),
    "gemma3": lambda: Gemma3TextConfig(
        num_hidden_layers=2,
        sliding_window=32,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=16,
        tie_word_embeddings=False,  # tied random weights only repeat the last token
        **SMALL,
    ),
}

TEMPLATE = (
    "<bos>{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def make_model(architecture: str) -> PreTrainedModel:
    """Normal weights of std 0.15, so that greedy tokens are diverse and equality is meaningful."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[architecture](), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.15)
    return model


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of 512 tokens with Gemma's turn tokens."""
    special = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(
        ["What is the name of the turn? The user and the model start and end it."] * 20, trainer
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", chat_template=TEMPLATE
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"]})
    return tokenizer


@pytest.fixture(scope="session")
def model_of() -> Callable[[str], PreTrainedModel]:
    made: dict[str, PreTrainedModel] = {}
    return lambda architecture: made.setdefault(architecture, make_model(architecture))


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="session")
def engine_of(
    model_of: Callable[[str], PreTrainedModel], tokenizer: PreTrainedTokenizerFast
) -> Iterator[Callable[[str], ChatEngine]]:
    """Started engines of 4 slots and 256 tokens that never draft, shared by the tests; no test stops one."""
    started: dict[str, ChatEngine] = {}

    def get(architecture: str) -> ChatEngine:
        if architecture not in started:
            options = EngineOptions(slots=4, context=256, prefill_chunk=16, buckets=[1], speculation="never")
            started[architecture] = ChatEngine(model_of(architecture), tokenizer, options).start()
        return started[architecture]

    yield get
    for engine in started.values():
        engine.stop()


@pytest.fixture(scope="module", autouse=True)
def compiled_quickly(quick_compiler: None) -> None:
    """These tests check results, not speed. Only the embedded models are compiled as in the app."""
