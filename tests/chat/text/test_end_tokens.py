"""The ends of an answer: all that a checkpoint names, wherever it names them."""

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from hfjax_app.chat.text.tokenizer import end_tokens
from tests.chat.conftest import SMALL, TEMPLATE, make_tokenizer

LAST_DIFFERS = (
    "{% for m in messages %}{{ m.role }} {{ m.content }}"
    "{{ '<eos>' if loop.last and not add_generation_prompt else '<end_of_turn>' }}{% endfor %}"
)
ROLES_END = "{% for m in messages %}{{ '<start_of_turn>' if m.role == 'user' else '<pad>' }}{{ m.content }}{% endfor %}"


def model(**config: object) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **{**SMALL, **config}))


def test_all_configs_and_the_tokenizer_count() -> None:
    """A fine-tune's tokenizer named <|eot_id|>, its configs the base's end: answers ran on into a user's turn."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    made = model(eos_token_id=7)
    made.generation_config.eos_token_id = [8, 9]
    assert end_tokens(made) == (7, 8, 9)
    assert end_tokens(made, tokenizer) == (tokenizer.eos_token_id, 7, 8, 9)
    tokenizer.eos_token = None
    assert end_tokens(model(), tokenizer) == ()
    assert end_tokens(model(eos_token_id=512)) == ()  # not in the vocabulary


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (TEMPLATE, "<end_of_turn>"),
        (LAST_DIFFERS, "<eos>"),  # gpt-oss: the other one ends a part of an answer
        (ROLES_END, "<start_of_turn>"),  # GLM: the next turn's beginning
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", None),
    ],
)
def test_the_token_with_which_a_template_ends_an_answer_counts(template: str, text: str | None) -> None:
    tokenizer = make_tokenizer()
    tokenizer.eos_token, tokenizer.chat_template = None, template
    expected = () if text is None else (tokenizer.convert_tokens_to_ids(text),)
    assert end_tokens(model(), tokenizer) == expected
