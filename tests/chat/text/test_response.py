"""The parts of an answer as it streams, by the templates of known families and by a checkpoint's own."""

from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from hfjax_app.chat.text.chat_template import ChatFormat
from hfjax_app.chat.text.detokenizer import Piece
from hfjax_app.chat.text.messages import checked_messages
from hfjax_app.chat.text.response import Answer
from hfjax_app.chat.text.tools import checked_tools
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
    answer = ChatFormat(tokenizer_of(*tokens, template=template, special=are_special)).answers(HI)()
    assert not answer.is_reasoning
    assert read(answer, text, size, tokens if are_special else ()) == ("A sum.", "It is 4.")


@pytest.mark.parametrize("size", [1, 1000])
def test_a_prompt_that_begins_the_reasoning(size: int) -> None:
    """DeepSeek-R1's template writes <think>, and the answer only its end. What the user types does not count."""
    chat = ChatFormat(tokenizer_of(template=TEMPLATE.replace("model\n{", "model\n<think>\n{") + "{# </think> #}"))
    answer = chat.answers(HI)()
    assert answer.is_reasoning
    assert read(answer, "A sum.\n</think>\n\nIt is 4.", size) == ("A sum.", "It is 4.")
    assert not ChatFormat(tokenizer_of("<think>", "</think>")).answers(HI)().is_reasoning


def test_an_answer_without_reasoning_and_one_that_is_cut() -> None:
    chat = ChatFormat(tokenizer_of("<think>", "</think>"))
    assert read(chat.answers(HI)(), "  The tag <think> opens it.\n", 3) == ("", "  The tag <think> opens it.\n")
    cut = chat.answers(HI)()
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
    assert read(chat.answers(HI)(), "<r>A sum.</r>It is <call>not json</call>", 4) == (
        "A sum.",
        "It is <call>not json</call>",
    )


@pytest.mark.parametrize(
    "broken", ["text", {"fields": {}}, {"start_anchor": "x", "fields": {"content": {"content": "json"}}}]
)
def test_a_broken_response_template_does_not_count(broken: Any) -> None:
    tokenizer = tokenizer_of("<think>", "</think>")
    tokenizer.response_template = broken
    assert read(ChatFormat(tokenizer).answers(HI)(), "<think>A sum.</think>It is 4.", 4) == ("A sum.", "It is 4.")


def test_an_answer_is_never_lost_where_its_template_expects_it_elsewhere() -> None:
    chat = ChatFormat(tokenizer_of("<|start|>", "<|channel|>", "<|message|>"))
    assert read(chat.answers(HI)(), "No channels here.", 4) == ("", "No channels here.")


@pytest.mark.parametrize(("wants", "kept"), [("", False), ("{{ m.reasoning_content }}", True)])
def test_earlier_reasoning_is_in_the_prompt_only_if_the_template_wants_it(wants: str, kept: bool) -> None:
    tokenizer = tokenizer_of("<think>", "</think>", template=TEMPLATE.replace("{{ m.content", wants + "{{ m.content"))
    messages = checked_messages(
        [*HI, {"role": "assistant", "content": "4.", "reasoning": "A sum <eos>."}, {"role": "user", "content": "Why?"}]
    )
    ids = ChatFormat(tokenizer).encode(messages)
    assert ("A sum <eos>." in tokenizer.decode(ids)) is kept
    assert tokenizer.eos_token_id not in ids  # typed special tokens stay text here too


TOOLS = checked_tools(
    [{"type": "function", "function": {"name": "weather", "parameters": {"properties": {"days": {"type": "integer"}}}}}]
)
CALLS = {
    "Qwen 3": (
        ("<think>", "</think>", "<tool_call>", "</tool_call>"),
        "<think>\nA call.\n</think>\n\nLet me look.\n<tool_call>\n{ARGS}\n</tool_call>\n"
        "<tool_call>\n{ARGS}\n</tool_call>",
    ),
    "Qwen 2.5": (("<tool_call>", "</tool_call>"), "Let me look.\n<tool_call>\n{ARGS}\n</tool_call>"),
    "Qwen 3 Coder": (
        ("<tool_call>", "</tool_call>", "<function=", "<parameter="),
        "Let me look.\n<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>",
    ),
    "Llama 3": (("<|python_tag|>", "<|eom_id|>"), '<|python_tag|>{"name": "weather", "parameters": {INNER}}'),
    "Mistral": (("[TOOL_CALLS]", "[AVAILABLE_TOOLS]"), "[TOOL_CALLS] [{ARGS}, {ARGS}]"),
    "Mistral Small 3": (
        ("[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[ARGS]"),
        "Let me look.[TOOL_CALLS]weather[ARGS]{INNER}[TOOL_CALLS]weather[ARGS]{INNER}",
    ),
    "Magistral": (
        ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[ARGS]"),
        "[THINK]A call.[/THINK][TOOL_CALLS]weather[ARGS]{INNER}",
    ),
    "Gemma 4": (
        ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
        '<|channel>thought\nA call.\n<channel|><|tool_call>call:weather{city:<|"|>Ulm<|"|>,days:3}<tool_call|>',
    ),
    "FunctionGemma": (
        ("<start_function_call>", "<end_function_call>", "<escape>"),
        "<start_function_call>call:weather{city:<escape>Ulm<escape>,days:3}<end_function_call>",
    ),
    "gpt-oss": (
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|call|>"),
        "<|channel|>analysis<|message|>A call.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        "<|constrain|>json<|message|>{INNER}<|call|>",
    ),
}
INNER = '{"city": "Ulm", "days": 3}'


@pytest.mark.parametrize("family", CALLS)
@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("are_special", [True, False])
def test_the_calls_of_known_families(family: str, size: int, are_special: bool) -> None:
    tokens, text = CALLS[family]
    text = text.replace("{ARGS}", f'{{"name": "weather", "arguments": {INNER}}}').replace("{INNER}", INNER)
    template = TEMPLATE.replace("<start_of_turn>model\n", "<|start|>assistant") if family == "gpt-oss" else TEMPLATE
    chat = ChatFormat(tokenizer_of(*tokens, template=template, special=are_special))
    answer = chat.answers(HI, tools=TOOLS)()
    reasoning, said = read(answer, text, size, tokens if are_special else ())
    assert {(call.name, call.arguments) for call in answer.calls} == {("weather", INNER)}
    assert len(answer.calls) == len({call.id for call in answer.calls}) == text.count("Ulm")
    assert reasoning == ("A call." if "A call." in text else "")
    assert said == ("Let me look." if "Let me look." in text else "")
    assert chat.response.calls_tools


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    "wrong",
    [
        "{no json}",
        '{"name": "weather"}',
        '{"name": 3, "arguments": {}}',
        '{"name": "a", "arguments": "{}"}',
        "[1, 2]",
        "",
    ],
)
def test_what_is_no_call_stays_text(wrong: str, size: int) -> None:
    chat = ChatFormat(tokenizer_of("<tool_call>", "</tool_call>"))
    answer = chat.answers(HI, tools=TOOLS)()
    assert wrong in read(answer, f"So: <tool_call>{wrong}</tool_call> Bye.", size)[1]
    assert answer.text.endswith("Bye.")
    assert answer.calls == []


@pytest.mark.parametrize("size", [1, 1000])
def test_a_template_that_fails_on_a_call_leaves_it_as_text(size: int) -> None:
    chat = ChatFormat(tokenizer_of("<|python_tag|>", "<|eom_id|>"))
    answer = chat.answers(HI, tools=TOOLS)()
    assert read(answer, '{"name": "weather"}', size) == ("", '{"name": "weather"}')


def test_without_tools_nothing_is_a_call() -> None:
    text = f'<tool_call>{{"name": "weather", "arguments": {INNER}}}</tool_call>'
    assert read(ChatFormat(tokenizer_of("<tool_call>", "</tool_call>")).answers(HI)(), text, 5) == ("", text)
