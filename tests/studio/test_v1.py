"""The API that OpenAI's clients speak, through real clients, on the studio's server."""

import asyncio
import base64
import io
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import gradio as gr
import httpx
import pytest
from gradio_client import Client
from huggingface_hub import InferenceClient
from openai import APIStatusError, AsyncOpenAI, OpenAI
from PIL import Image
from pydantic import BaseModel, Field

from tests.studio.conftest import LIMIT_S, SECOND, Studio, http

ASKED = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "What is JAX?"}]
WEATHER = {"type": "function", "function": {"name": "weather"}}
STORY = [{"role": "user", "content": "Tell me a long story about a fox."}]


@pytest.fixture(scope="module")
def client(studio: Studio) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{studio.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def post(studio: Studio, path: str, body: Any) -> httpx.Response:
    return http.post(f"{studio.url}{path}", content=json.dumps(body), headers={"Content-Type": "application/json"})


def test_models_are_listed(client: OpenAI) -> None:
    listed = {model.id: model.state for model in client.models.list()}
    assert listed == dict.fromkeys(("chat-gemma", SECOND, "sentiment", "images"), "ready")
    assert client.models.retrieve("sentiment").id == "sentiment"


def test_a_request_picks_its_model(client: OpenAI, studio: Studio) -> None:
    """Each has its own engine, metrics and readiness; Gradio's endpoint picks in the same way."""
    options: dict[str, Any] = {"messages": [STORY[0]], "temperature": 0, "max_tokens": 12}
    first, second = (client.chat.completions.create(**options, model=name) for name in ("chat-gemma", SECOND))
    assert (first.model, second.model) == ("chat-gemma", SECOND)
    texts = [answer.choices[0].message.content for answer in (first, second)]
    assert texts[0] != texts[1]
    gradio = Client(studio.url, verbose=False)
    chosen = {"messages": STORY, "temperature": 0, "max_tokens": 12, "api_name": "/chat"}
    assert gradio.predict(**chosen, model=SECOND)["text"] == texts[1]
    assert gradio.predict(**chosen)["text"] == texts[0], "as before"
    metrics = http.get(f"{studio.url}/metrics").text
    for name in ("chat-gemma", SECOND):
        assert f'hfjax_model_ready{{kind="chat",model="{name}"}} 1.0' in metrics
        assert f'hfjax_tokens_total{{kind="made",model="{name}"}}' in metrics
        assert http.get(f"{studio.url}/ready/chat", params={"model": name}).status_code == 200
    with pytest.raises(APIStatusError, match="'llama' is not loaded; there are: chat-gemma, second") as error:
        client.chat.completions.create(**options, model="llama")
    assert error.value.status_code == 404
    assert http.get(f"{studio.url}/ready/chat", params={"model": "llama"}).status_code == 404
    for name, body in (("chat", {"messages": STORY}), ("generate", {"prompt": "a"})):
        refused = post(studio, f"/gradio_api/call/v2/{name}", body | {"model": "llama"})
        assert refused.status_code == 404
        assert "'llama' is not loaded; there are: " in refused.json()["detail"]


def test_a_stream_says_what_the_whole_answer_says(client: OpenAI, studio: Studio) -> None:
    options: dict[str, Any] = {"model": "chat-gemma", "messages": ASKED, "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**options)
    [choice] = whole.choices
    assert (choice.message.role, choice.finish_reason) == ("assistant", "stop")
    assert "Python" in choice.message.content
    streamed = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    text = "".join(event.choices[0].delta.content or "" for event in streamed if event.choices)
    assert text == choice.message.content
    assert [event.usage.completion_tokens for event in streamed if event.usage] == [whole.usage.completion_tokens]
    assert streamed[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    follow_up = [*ASKED, {"role": "assistant", "content": text}, {"role": "user", "content": "Thank you!"}]
    answered = client.chat.completions.create(**options | {"messages": follow_up})
    assert answered.usage.prompt_tokens_details.cached_tokens > whole.usage.prompt_tokens, "the caller's own"
    tokenized = post(studio, "/tokenize", {"messages": ASKED}).json()
    assert tokenized["count"] == whole.usage.prompt_tokens
    prompt = post(studio, "/detokenize", {"tokens": tokenized["tokens"]}).json()["prompt"]
    assert "What is JAX?" in prompt
    # Four megabytes, which are taken as a conversation, held the event loop for seconds.
    long = [*ASKED, {"role": "assistant", "content": "a! " * 130_000}, {"role": "user", "content": "x"}]
    refused = post(studio, "/tokenize", {"messages": long})
    assert (refused.status_code, "more than 32,768 tokens" in refused.text) == (400, True)


def test_several_choices_and_their_logprobs(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "chat-gemma", "messages": STORY, "max_tokens": 12, "temperature": 1.2}
    made = client.chat.completions.create(**options, n=3, seed=5, logprobs=True, top_logprobs=2)
    texts = [choice.message.content for choice in made.choices]
    assert len(set(texts)) > 1
    alone = client.chat.completions.create(**options, seed=6)
    assert alone.choices[0].message.content == texts[1], "choice i has seed + i"
    content = made.choices[0].logprobs.content
    assert "".join(token.token for token in content).strip().startswith(texts[0].strip()[:10])
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in content)
    streamed: dict[int, str] = {}
    for event in client.chat.completions.create(**options, n=3, seed=5, stream=True):
        for choice in event.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
    assert [streamed[index] for index in range(3)] == texts


def test_a_text_is_continued(client: OpenAI, studio: Studio) -> None:
    options: dict[str, Any] = {"model": "chat-gemma", "max_tokens": 10, "temperature": 0}
    made = client.completions.create(**options, prompt="Once upon a time", logprobs=1)
    assert made.choices[0].text == "".join(made.choices[0].logprobs.tokens)
    assert made.choices[0].finish_reason == "length"
    ids = post(studio, "/tokenize", {"prompt": "Once upon a time"}).json()["tokens"]
    streamed = client.completions.create(**options, prompt=ids, stream=True)
    assert "".join(event.choices[0].text for event in streamed) == made.choices[0].text
    ended = client.completions.create(**options, prompt="Once upon a time", stop=[made.choices[0].text[3:6]])
    assert made.choices[0].text.startswith(ended.choices[0].text)
    assert ended.choices[0].finish_reason == "stop"


def test_several_prompts_and_their_own_logprobs(client: OpenAI, studio: Studio) -> None:
    """As programs that evaluate models ask: the prompt's log-probabilities, and no answer at all."""
    options: dict[str, Any] = {"model": "chat-gemma", "temperature": 0, "logprobs": 1}
    texts = ["Once upon a time", "JAX is a Python library"]
    studio.wait_until(lambda health: health["status"] == "ready", LIMIT_S, "programs")
    ids = [post(studio, "/tokenize", {"prompt": text}).json()["tokens"] for text in texts]
    alone = [client.completions.create(**options, prompt=text, max_tokens=5).choices[0].text for text in texts]
    together = client.completions.create(**options, prompt=ids, max_tokens=5, echo=True, n=2)
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3]
    assert together.usage.prompt_tokens == sum(map(len, ids))
    for choice, text, answer in zip(together.choices[::2], texts, alone, strict=True):
        assert choice.text.endswith(text + answer)
        assert choice.logprobs.token_logprobs[0] is None
        assert max(choice.logprobs.token_logprobs[1:]) < 0
        assert len(choice.logprobs.tokens) == len(choice.logprobs.text_offset) == len(choice.logprobs.top_logprobs)
    scored = client.completions.create(**options, prompt=ids, max_tokens=0, echo=True)
    assert scored.usage.completion_tokens == 0
    for choice, whole, prompt in zip(scored.choices, together.choices[::2], ids, strict=True):
        assert len(choice.logprobs.tokens) == len(prompt)
        assert choice.logprobs.token_logprobs == whole.logprobs.token_logprobs[: len(prompt)]
        assert choice.finish_reason == "length"
    streamed = list(client.completions.create(**options, prompt=ids, max_tokens=5, echo=True, stream=True))
    for index, choice in enumerate(together.choices[::2]):
        parts = [event.choices[0] for event in streamed if event.choices and event.choices[0].index == index]
        assert "".join(part.text for part in parts) == choice.text
        assert [token for part in parts for token in part.logprobs.tokens] == choice.logprobs.tokens
        assert [at for part in parts for at in part.logprobs.text_offset] == choice.logprobs.text_offset
    studio.wait_idle()


def test_an_answer_goes_on_and_ends_as_the_client_says(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "chat-gemma", "temperature": 0, "max_tokens": 12}
    whole = client.chat.completions.create(**options, messages=ASKED).choices[0].message.content
    first = " ".join(whole.split()[:3])
    begun = [*ASKED, {"role": "assistant", "content": first}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    rest = client.chat.completions.create(**options, messages=begun, extra_body=more).choices[0].message.content
    assert (first + rest).startswith(whole)
    for field in ("ignore_eos", "min_tokens"):
        extra = {field: 200} if field == "min_tokens" else {field: True}
        long = client.chat.completions.create(**options | {"max_tokens": 200}, messages=ASKED, extra_body=extra)
        assert (long.usage.completion_tokens, long.choices[0].finish_reason) == (200, "length")


class Colour(BaseModel):
    name: Literal["red", "green", "blue"]
    shade: int = Field(ge=0, le=99)


def test_answers_are_as_the_client_wants_them(client: OpenAI, studio: Studio) -> None:
    """As a schema of the client's own, as JSON, and by a regular expression; several choices, whole and streamed."""
    options: dict[str, Any] = {"model": "chat-gemma", "messages": STORY, "temperature": 1.5, "seed": 4}
    programs = studio.health()["backends"]["chat"]["programs"]
    parsed = client.chat.completions.parse(**options, response_format=Colour, n=3)
    assert all(isinstance(choice.message.parsed, Colour) for choice in parsed.choices)
    assert {choice.finish_reason for choice in parsed.choices} == {"stop"}
    with client.chat.completions.stream(**options, response_format=Colour) as events:
        assert events.get_final_completion().choices[0].message.parsed == parsed.choices[0].message.parsed
    made = client.chat.completions.create(**options, response_format={"type": "json_object"}, max_tokens=30)
    assert made.choices[0].message.content.startswith("{")
    regex = {"guided_regex": "(yes|no), [0-9]{3}"}
    said = client.completions.create(model="chat-gemma", prompt="Is it?", extra_body=regex).choices[0]
    assert re.fullmatch("(yes|no), [0-9]{3}", said.text)
    assert said.finish_reason == "stop"
    assert studio.health()["backends"]["chat"]["programs"] == programs
    assert "shade" not in studio.output.read_text()


@pytest.mark.parametrize("n", [1, 3])
def test_a_reader_who_leaves_frees_the_slots(client: OpenAI, studio: Studio, n: int) -> None:
    stream = client.chat.completions.create(
        model="chat-gemma", messages=STORY, n=n, max_tokens=400, stream=True, logit_bias={1: -100, 5: -100}
    )
    next(iter(stream))
    stream.close()
    studio.wait_idle()


def test_a_caller_who_leaves_before_the_answer_frees_the_slots(studio: Studio) -> None:
    body = {"messages": STORY, "n": 2, "max_tokens": 400, "logit_bias": {"1": -100, "5": -100}}
    with pytest.raises(httpx.ReadTimeout):
        http.post(f"{studio.url}/v1/chat/completions", json=body, timeout=httpx.Timeout(LIMIT_S, read=0.1))
    studio.wait_idle()
    assert "Traceback" not in studio.output.read_text()


def test_many_at_once_say_what_each_says_alone(studio: Studio) -> None:
    questions = ["What is JAX?", "Hello!", "Who are you?", "Tell me a joke.", "What is a TPU?", "Name a colour."]

    async def ask(client: AsyncOpenAI, question: str) -> str:
        made = await client.chat.completions.create(
            model="chat-gemma", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=24
        )
        return str(made.choices[0].message.content)

    async def all_answers() -> tuple[list[str], list[str]]:
        async with AsyncOpenAI(base_url=f"{studio.url}/v1", api_key="none", max_retries=0) as client:
            together = await asyncio.gather(*(ask(client, question) for question in questions))
            return list(together), [await ask(client, question) for question in questions]

    together, alone = asyncio.run(all_answers())
    assert together == alone


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"temperature": 99}, 400, "temperature = 99: must be a number from 0 to 10"),
        ({"temperature": float("nan")}, 400, "temperature = nan"),
        ({"top_p": "much"}, 400, "top_p"),
        ({"n": 9}, 400, "n = 9"),
        ({"max_tokens": 10**6}, 400, "at most 512, the context"),
        ({"stop": ["x"] * 99}, 400, "stop"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, 400, "must end with a message of the user"),
        ({"messages": [*STORY, *ASKED]}, 400, "a system message must come before the conversation"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "image_url: must have the url"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, 400, "content of type 'input_audio'"),
        ({"model": "gpt-4o"}, 404, "chat model 'gpt-4o' is not loaded; there are: chat-gemma"),
        ({"tools": [WEATHER]}, 400, "this model's chat template has no place for them"),
        ({"tools": [{"type": "retrieval"}]}, 400, "tools: each must be"),
        ({"tool_choice": "required"}, 400, "tool_choice: there is no such tool"),
        ({"functions": [{}]}, 400, "functions = [{}]: List should have at most 0 items"),
        ({"audio": {"voice": "ash"}}, 400, "audio: this app does not know this field"),
        ({"min_tokens": 9, "max_tokens": 8}, 400, "min tokens = 9: must be a whole number from 0 to max tokens, 8"),
        ({"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs: messages is not the client's to set"),
        ({"messages": [*STORY, {"role": "tool", "content": "x", "tool_call_id": "a"}]}, 400, "of a call before it"),
        ({"response_format": {"type": "xml"}}, 400, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, 400, "needs json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}}, 400, "json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}}, 400, "Invalid type"),
        ({"guided_regex": "(secret"}, 400, "guided_regex: "),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, 400, "send one of them"),
        ({"top_logprobs": 3}, 400, "logprobs must be true"),
        ({"logit_bias": {"x": 1}}, 400, "a token id must be a whole number"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(studio: Studio, change: dict[str, Any], status: int, said: str) -> None:
    made = post(studio, "/v1/chat/completions", {"model": "chat-gemma", "messages": ASKED, **change})
    assert made.status_code == status
    assert said in made.json()["error"]["message"]


def test_what_is_not_there_is_said(client: OpenAI, studio: Studio) -> None:
    with pytest.raises(APIStatusError) as missing:
        client.embeddings.create(model="chat-gemma", input="x")
    assert missing.value.status_code == 404
    assert "/v1/embeddings: this app has no such route" in missing.value.message
    assert post(studio, "/v1/completions", {"prompt": [1, "x"]}).status_code == 400
    assert http.post(f"{studio.url}/v1/completions", content=b"{").status_code == 400


def test_pictures(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "images", "prompt": "a red circle", "extra_body": {"steps": 3, "seed": 7}}
    made = client.images.generate(**options, n=2)
    files = [base64.b64decode(picture.b64_json) for picture in made.data]
    first = Image.open(io.BytesIO(files[0]))
    assert first.format == "PNG"
    again = client.images.generate(**options)
    assert Image.open(io.BytesIO(base64.b64decode(again.data[0].b64_json))).tobytes() == first.tobytes()
    edited = client.images.edit(model="images", image=("a.png", files[0], "image/png"), prompt="a blue square")
    assert Image.open(io.BytesIO(base64.b64decode(edited.data[0].b64_json))).size == first.size
    with pytest.raises(APIStatusError, match="quality: this app does not know this field"):
        client.images.edit(model="images", image=("a.png", files[0], "image/png"), prompt="a", quality="low")
    with pytest.raises(APIStatusError, match="size = '1024x1024': one of 64x64"):
        client.images.generate(**options, size="1024x1024")


def test_an_edit_keeps_what_the_mask_does_not_mark(client: OpenAI) -> None:
    """At the picture's own resolution; a larger canvas too."""

    def png(picture: Image.Image) -> bytes:
        file = io.BytesIO()
        picture.save(file, "PNG")
        return file.getvalue()

    picture = Image.new("RGB", (192, 96), (10, 200, 30))
    mask = Image.new("RGBA", (192, 96), "black")
    mask.paste((0, 0, 0, 0), (0, 0, 60, 60))
    for region, expand, size in (("whole", "", (192, 96)), ("marked", "0,0,0,32", (192, 128))):
        edited = client.images.edit(
            model="images",
            image=("a.png", png(picture), "image/png"),
            mask=("mask.png", png(mask), "image/png"),
            prompt="a red circle",
            extra_body={"region": region, "expand": expand, "seed": "1", "steps": "3"},
        )
        made = Image.open(io.BytesIO(base64.b64decode(edited.data[0].b64_json))).convert("RGB")
        assert made.size == size
        assert made.crop((120, 0, 192, 60)).getcolors() == [(72 * 60, (10, 200, 30))]
        assert len(made.crop((0, 0, 60, 60)).getcolors(maxcolors=1 << 20)) > 10
    with pytest.raises(APIStatusError, match="region = 'half': must be whole or marked"):
        client.images.edit(
            model="images", image=("a.png", png(picture), "image/png"), prompt="a", extra_body={"region": "half"}
        )


def test_sentiment(studio: Studio) -> None:
    made = post(studio, "/v1/classify", {"input": ["I loved it.", "It was awful."]}).json()
    assert [found["label"] for found in made["data"]] == ["positive", "negative"]
    explained = post(studio, "/v1/explain", {"input": "I loved it."}).json()
    assert "".join(word["text"] for word in explained["words"]) == "I loved it."
    assert type(explained["logit"]) is float
    labels = post(studio, "/v1/zero_shot", {"input": "The goalkeeper saved us.", "labels": ["sports", "politics"]})
    assert labels.json()["scores"].keys() == {"sports", "politics"}
    assert post(studio, "/v1/classify", {"input": " "}).status_code == 400


def test_hugging_face_s_client_and_gradio_s_chat(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # this address is no hub
    client = InferenceClient(base_url=f"{studio.url}/v1", api_key="none")
    made = client.chat_completion(ASKED, model="chat-gemma", max_tokens=20, temperature=0)
    assert made.choices[0].message.content.startswith("JAX")

    async def load() -> gr.ChatInterface:  # without a running loop, Gradio makes its own and never closes it
        return gr.load_chat(f"{studio.url}/v1", model="chat-gemma", token="none", streaming=False)

    assert asyncio.run(load()).fn("Hello!", [])


def test_everything_is_described(studio: Studio) -> None:
    described = http.get(f"{studio.url}/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/images/edits", "/v1/classify", "/tokenize"} <= described["paths"].keys()
    for schema in described["components"]["schemas"].values():
        if (example := schema.get("example")) is not None:
            assert example.keys() <= schema["properties"].keys()
    page = http.get(f"{studio.url}/docs")
    assert "POST /v1/chat/completions" in page.text
    assert "<script" not in page.text
