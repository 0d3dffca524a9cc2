"""What clients send: nulls, fields that ask for nothing, names of other servers, and how they become a request."""

import random
from typing import Any

import pytest
from pydantic import ValidationError

from hfjax_app.api.v1.conversation import conversation_of, request_of_chat, requests_of_texts
from hfjax_app.api.v1.schemas import (
    ChatCompletionRequest,
    CompletionRequest,
    ImageBody,
    TokenizeRequest,
)
from hfjax_app.errors import RequestRejected

HI = {"messages": [{"role": "user", "content": "Hi"}]}
ONCE = {"prompt": "Once"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def chat(**fields: Any) -> Any:
    return request_of_chat(ChatCompletionRequest.model_validate(HI | fields), "")


def text(**fields: Any) -> Any:
    [request] = requests_of_texts(CompletionRequest.model_validate(ONCE | fields), "")
    return request


@pytest.mark.parametrize(
    ("schema", "body"),
    [(ChatCompletionRequest, HI), (CompletionRequest, ONCE), (ImageBody, ONCE), (TokenizeRequest, ONCE)],
)
def test_null_is_as_if_the_field_were_absent(schema: Any, body: dict[str, Any]) -> None:
    """For each field alone, and for all of them and some more at once."""
    plain = schema.model_validate(body)
    fields = {field.alias or name for name, field in schema.model_fields.items()} - body.keys()
    for name in fields:
        assert schema.model_validate(body | {name: None}) == plain, name
    others = ("audio", "prediction", "web_search_options", "min_keep", "grammar", "ebnf", "lora_path")
    assert schema.model_validate(body | dict.fromkeys([*fields, *others])) == plain


def test_what_is_needed_can_t_be_null() -> None:
    with pytest.raises(ValidationError, match="Field required"):
        ChatCompletionRequest.model_validate({"messages": None})


def test_null_inside_of_fields() -> None:
    """As the SDKs write an answer of before, and a tool."""
    message = {
        "role": "assistant",
        "content": "Hm.",
        "refusal": None,
        "audio": None,
        "tool_calls": None,
        "annotations": [],
    }
    tool = {
        "type": "function",
        "function": {"name": "a", "description": None, "parameters": None, "strict": None, "x": None},
    }
    made = chat(
        messages=[*HI["messages"], message, *HI["messages"]], tools=[tool], stream_options={"include_usage": None}
    )
    assert [turn["content"] for turn in made.messages] == ["Hi", "Hm.", "Hi"]
    assert made.form.tools[0]["function"]["name"] == "a"


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("modalities", ["text"], ["text", "audio"]),
        ("functions", [], [{}]),
        ("function_call", "none", {"name": "a"}),
        ("best_of", 1, 2),
        ("verbosity", "high", "loud"),
        ("use_beam_search", False, True),
        ("length_penalty", 1.0, 1.5),
        ("skip_special_tokens", True, False),
        ("include_stop_str_in_output", False, True),
        ("priority", 0, 1),
        ("typical_p", 1, 0.5),
        ("mirostat", 0, 2),
        ("suffix", "", "end"),
        ("echo", False, True),
        ("bad_words", [], ["x"]),
    ],
)
def test_a_field_is_taken_where_it_asks_for_nothing(name: str, taken: Any, refused: Any) -> None:
    assert chat(**{name: taken}) == chat()
    with pytest.raises((ValidationError, RequestRejected), match=name):
        chat(**{name: refused})


@pytest.mark.parametrize("name", ["temprature", "audio", "prediction", "web_search_options", "grammar"])
def test_a_field_that_nobody_knows_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted") as raised:
        chat(**{name: {"a": 1}})
    assert raised.value.errors()[0]["loc"] == (name,)


def test_names_of_other_servers() -> None:
    made = chat(repeat_penalty=1.1, min_tokens=3, n_predict=9, ignore_eos=True, stop_token_ids=[5, 6]).sampling
    assert (made.repetition_penalty, made.min_tokens, made.max_tokens, made.ignore_eos) == (1.1, 3, 9, True)
    assert chat(stop_token_ids=[5, 6]).stop_tokens == (5, 6)
    assert chat(top_k=-1).sampling.top_k == 0
    assert chat(seed=-1, n_predict=-1, max_tokens=-1) == chat()
    with pytest.raises(RequestRejected, match="temperature = -1"):
        chat(temperature=-1)
    with pytest.raises(RequestRejected, match="stop token -1"):
        chat(stop_token_ids=[-1])
    with pytest.raises(RequestRejected, match="65 stop tokens: at most 64"):
        chat(stop_token_ids=[1] * 65)


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"guided_json": SCHEMA}, "json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}'),
        ({"guided_json": '{"type": "object"}'}, "json_schema", '{"type": "object"}'),
        ({"json_schema": {"type": "object"}}, "json_schema", '{"type": "object"}'),
        ({"structured_outputs": {"json": {"type": "object"}}}, "json_schema", '{"type": "object"}'),
        ({"regex": "a+"}, "regex", "a+"),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"guided_choice": ["yes", "no (1.5-2)"]}, "regex", r"yes|no \(1\.5\-2\)"),
        ({"structured_outputs": {"choice": ["a|b"]}}, "regex", r"a\|b"),
    ],
)
def test_the_answer_s_form_under_other_names(fields: dict[str, Any], kind: str, source: str) -> None:
    for made in (chat(**fields), text(**fields)):
        assert (made.form.grammar.kind, made.form.grammar.source) == (kind, source)
    with pytest.raises(RequestRejected, match="send one of them"):
        chat(**fields, guided_regex="b")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"guided_json": "{"}, "guided_json: must be a JSON schema"),
        ({"guided_json": "[" * 5000}, "guided_json: must be a JSON schema"),
        ({"guided_choice": []}, "guided_choice: must be a list of texts"),
        ({"guided_choice": [""]}, "guided_choice: must be a list of texts"),
        ({"guided_choice": ["x" * 5000]}, "guided_choice of 5,000 characters: at most 4,000"),
        ({"chat_template_kwargs": {"messages": []}}, "messages is not the client's to set"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "bos_token is not the client's to set"),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template is not the client's"),
        ({"chat_template_kwargs": {"raise_exception": 1}}, "raise_exception is not the client's"),
        ({"chat_template_kwargs": {"a b": 1}}, "no name of a variable"),
        ({"chat_template_kwargs": {f"a{at}": 1 for at in range(33)}}, "33 variables: at most 32"),
        ({"chat_template_kwargs": {"a": "x" * 30_000}}, "at most 20,000"),
        ({"continue_final_message": True}, "the last message must be the assistant's"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "one of them must be false"),
    ],
)
def test_what_is_wrong_is_said(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestRejected, match=said):
        chat(**fields)


def test_what_a_conversation_says_to_the_template() -> None:
    made = chat(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    assert (made.variables, made.effort, made.opens) == ({"enable_thinking": False}, "low", True)
    assert chat(add_generation_prompt=False).opens is False
    begun = chat(
        messages=[*HI["messages"], {"role": "assistant", "content": [{"type": "text", "text": "Once "}]}],
        continue_final_message=True,
        add_generation_prompt=False,
    )
    assert (begun.form.beginning, begun.opens, len(begun.messages)) == ("Once ", True, 1)
    body = TokenizeRequest.model_validate(HI | {"chat_template_kwargs": {"a": 1}})
    assert conversation_of(body, body.messages or [])[0]["variables"] == {"a": 1}


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([5, 6], [[5, 6]]), ([[5, 6], [7]], [[5, 6], [7]])],
)
def test_prompts(prompt: Any, texts: list[Any]) -> None:
    requests = requests_of_texts(CompletionRequest(prompt=prompt, echo=True, logprobs=1, max_tokens=0), "")
    assert [request.text for request in requests] == texts
    assert {(request.sampling.max_tokens, request.sampling.prompt_logprobs) for request in requests} == {(1, 1)}
    with pytest.raises(RequestRejected, match="max tokens = 0"):
        requests_of_texts(CompletionRequest(prompt=prompt, max_tokens=0), "")


@pytest.mark.parametrize("prompt", [[], ["a"] * 33])
def test_too_few_or_too_many_prompts(prompt: list[str]) -> None:
    with pytest.raises(RequestRejected, match=f"prompt: a list of {len(prompt)}; send 1 to 32"):
        requests_of_texts(CompletionRequest(prompt=prompt), "")


@pytest.mark.slow
def test_any_body_is_taken_or_refused_in_one_line() -> None:
    """Values of all kinds in the fields that are known, drawn at random."""
    draw = random.Random(0)
    values: list[Any] = [
        None,
        True,
        0,
        -1,
        1.5,
        1e300,
        "",
        "x",
        "{",
        [],
        ["x"],
        [1],
        [[1]],
        {},
        {"a": None},
        {"json": 1},
    ]
    values += [{"type": "json_schema", "json_schema": {"schema": {"a": 1}}}, {"enable_thinking": [[[]]]}, 10**400]
    said: list[Exception] = []
    for schema, start in ((ChatCompletionRequest, HI), (CompletionRequest, ONCE)):
        for _ in range(20_000):
            names = draw.sample([*schema.model_fields], draw.randint(1, 6))
            body = start | {name: draw.choice(values) for name in names}
            try:
                made = schema.model_validate(body)
                if isinstance(made, ChatCompletionRequest):
                    request_of_chat(made, "")
                else:
                    requests_of_texts(made, "")
            except (ValidationError, RequestRejected) as error:
                said.append(error)
    assert all("\n" not in str(error) for error in said if isinstance(error, RequestRejected))
    assert max(len(error.errors()) for error in said if isinstance(error, ValidationError)) <= 30
