"""Reasoning apart from the answer, as it streams, by the templates of known families and by a checkpoint's own."""

from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from hfjax_app.chat.text.chat_template import ChatFormat, checked_messages
from hfjax_app.chat.text.detokenizer import Piece
from hfjax_app.chat.text.reasoning import Answer
from tests.chat.conftest import TEMPLATE, make_tokenizer

HI = [{"role": "user", "content": "Hi, what is <think>?"}]


def tokenizer_of(*tokens: str, template: str = TEMPLATE, special: bool = False) -> PreTrainedTokenizerFast:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken(text, special=special, normalized=False) for text in tokens])
    tokenizer.chat_template = template
    return tokenizer


def read(answer: Answer, text: str, size: int, special: tuple[str, ...] = ()) -> tuple[str, str]:
    """The reasoning and the text of an answer that arrives in pieces of this size, special tokens whole."""
    while text:
        token = next((token for token in special if text.startswith(token)), None)
        end = min([size, *(at for token in special if (at := text.find(token)) > 0)])
        piece = Piece(text[:end]) if token is None else Piece(token, special=True)
        before = answer.reasoning, answer.text
        answer.push([piece])
        assert answer.reasoning.startswith(before[0])
        assert answer.text.startswith(before[1])
        text = text[len(piece.text) :]
    answer.end()
    return answer.reasoning, answer.text


FAMILIES = {
    "Qwen 3": (("<think>", "</think>"), "<think>\nA sum.\n</think>\n\nIt is 4."),
    "Seed-OSS": (("<seed:think>", "</seed:think>"), "<seed:think>A sum.</seed:think>It is 4."),
    "Magistral": (("[THINK]", "[/THINK]"), "[THINK]A sum.[/THINK]It is 4."),
    "Command A": (
        ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        "<|START_THINKING|>A sum.<|END_THINKING|><|START_RESPONSE|>It is 4.<|END_RESPONSE|>",
    ),
    "Apertus": (("<|inner_prefix|>", "<|inner_suffix|>"), "<|inner_prefix|>A sum.<|inner_suffix|>It is 4."),
    "Gemma 4": (("<|channel>", "<channel|>"), "<|channel>thought\nA sum.\n<channel|>It is 4."),
    "Hunyuan": (
        ("<think>", "</think>", "<answer>", "</answer>"),
        "<think>\nA sum.\n</think>\n<answer>\nIt is 4.\n</answer>",
    ),
    "gpt-oss": (
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
        "<|channel|>analysis<|message|>A sum.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.",
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("are_special", [True, False])
def test_the_reasoning_of_known_families(family: str, size: int, are_special: bool) -> None:
    tokens, text = FAMILIES[family]
    template = TEMPLATE.replace("<start_of_turn>model\n", "<|start|>assistant") if family == "gpt-oss" else TEMPLATE
    answer = ChatFormat(tokenizer_of(*tokens, template=template, special=are_special)).answer(HI)
    assert not answer.is_reasoning
    assert read(answer, text, size, tokens if are_special else ()) == ("A sum.", "It is 4.")


@pytest.mark.parametrize("size", [1, 1000])
def test_a_prompt_that_begins_the_reasoning(size: int) -> None:
    """DeepSeek-R1's template writes <think>, and the answer only its end. What the user types does not count."""
    chat = ChatFormat(tokenizer_of(template=TEMPLATE.replace("model\n{", "model\n<think>\n{") + "{# </think> #}"))
    answer = chat.answer(HI)
    assert answer.is_reasoning
    assert read(answer, "A sum.\n</think>\n\nIt is 4.", size) == ("A sum.", "It is 4.")
    assert not ChatFormat(tokenizer_of("<think>", "</think>")).answer(HI).is_reasoning


def test_an_answer_without_reasoning_and_one_that_is_cut() -> None:
    chat = ChatFormat(tokenizer_of("<think>", "</think>"))
    assert read(chat.answer(HI), "  The tag <think> opens it.\n", 3) == ("", "  The tag <think> opens it.\n")
    cut = chat.answer(HI)
    assert read(cut, "<think>\nA long sum of", 4) == ("A long sum of", "")


def test_the_checkpoints_own_template_comes_first_and_its_other_fields_stay_text() -> None:
    tokenizer = tokenizer_of("<think>", "</think>")
    tokenizer.response_template = {
        "start_anchor": "<start_of_turn>model\n",
        "fields": {
            "thinking": {"open": "<r>", "close": "</r>"},
            "tool_calls": {"open": "<call>", "close": "</call>", "content": "json"},
            "content": {},
        },
    }
    chat = ChatFormat(tokenizer)
    assert chat.response.reasoning_field == "thinking"
    assert read(chat.answer(HI), "<r>A sum.</r>It is <call>not json</call>", 4) == (
        "A sum.",
        "It is <call>not json</call>",
    )


@pytest.mark.parametrize(
    "broken", ["text", {"fields": {}}, {"start_anchor": "x", "fields": {"content": {"content": "json"}}}]
)
def test_a_broken_response_template_does_not_count(broken: Any) -> None:
    tokenizer = tokenizer_of("<think>", "</think>")
    tokenizer.response_template = broken
    assert read(ChatFormat(tokenizer).answer(HI), "<think>A sum.</think>It is 4.", 4) == ("A sum.", "It is 4.")


def test_an_answer_is_never_lost_where_its_template_expects_it_elsewhere() -> None:
    chat = ChatFormat(tokenizer_of("<|start|>", "<|channel|>", "<|message|>"))
    assert read(chat.answer(HI), "No channels here.", 4) == ("", "No channels here.")


@pytest.mark.parametrize(("wants", "kept"), [("", False), ("{{ m.reasoning_content }}", True)])
def test_earlier_reasoning_is_in_the_prompt_only_if_the_template_wants_it(wants: str, kept: bool) -> None:
    tokenizer = tokenizer_of("<think>", "</think>", template=TEMPLATE.replace("{{ m.content", wants + "{{ m.content"))
    messages = checked_messages(
        [*HI, {"role": "assistant", "content": "4.", "reasoning": "A sum <eos>."}, {"role": "user", "content": "Why?"}]
    )
    ids = ChatFormat(tokenizer).encode(messages)
    assert ("A sum <eos>." in tokenizer.decode(ids)) is kept
    assert tokenizer.eos_token_id not in ids  # typed special tokens stay text here too
