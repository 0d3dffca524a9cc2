"""The bodies of requests, as OpenAI's clients send them, with what vLLM's and this app's have besides.

Ranges of sampling parameters are checked where they are used (`chat/sampling/params.py`); here only types are. A field
that this app does not know is refused by its name, because an answer that silently ignores it would be wrong.

A wrong body has few errors, however long it is: pydantic collects all of them, and a list of four million wrong items
took 8 GB and stopped the event loop for a minute. So lists fail at their first wrong item, and objects have few fields.
"""

from typing import Annotated, Any, Literal, TypeVar

from fastapi import UploadFile
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)
from typing_extensions import TypeAliasType

from hfjax_app.limits import CHAT_MAX_MESSAGES, CHAT_MAX_PARTS, HTTP_MAX_JSON_FIELDS, TOOLS_MAX

MOST_CHOICES = 4

T = TypeVar("T")
Number = StrictInt | StrictFloat
# Named types, because a union can't have annotated members that are not hashable.
Items = TypeAliasType("Items", Annotated[list[T], FailFast()], type_params=(T,))


def _few(value: object) -> object:
    """Refuses an object of more fields than any route has."""
    if isinstance(value, dict) and len(value) > HTTP_MAX_JSON_FIELDS:
        raise ValueError(f"{len(value):,} fields: at most {HTTP_MAX_JSON_FIELDS}")
    return value


def _few_parts(messages: object) -> object:
    """Refuses a conversation of more parts than any has: each becomes an object of its own."""
    contents = (
        [each.get("content") for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
    )
    if (parts := sum(len(content) for content in contents if isinstance(content, list))) > CHAT_MAX_PARTS:
        raise ValueError(f"{parts:,} parts: at most {CHAT_MAX_PARTS:,}")
    return messages


class Fields(BaseModel):
    """A JSON object whose fields are known."""

    model_config = ConfigDict(extra="forbid")

    _are_few = model_validator(mode="before")(_few)


class Body(Fields):
    """A request's JSON object."""

    model: StrictStr | None = Field(default=None, description="one of /v1/models; left out: the first of its kind")
    user: StrictStr | None = Field(
        default=None, description="accepted and ignored, as are metadata, store and service_tier"
    )
    metadata: dict[str, Any] | None = None
    store: StrictBool | None = None
    service_tier: StrictStr | None = None
    safety_identifier: StrictStr | None = None
    prompt_cache_key: StrictStr | None = None


class StreamOptions(Fields):
    include_usage: StrictBool = False


class JsonSchema(Fields):
    """OpenAI's envelope of a schema. `strict` makes no difference: the answer is always as the schema says."""

    name: StrictStr | None = None
    description: StrictStr | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: StrictBool | None = None


class AnswerFormat(Fields):
    """What the answer must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Sampling(Body):
    """What both completion routes take."""

    temperature: Number | None = None
    top_p: Number | None = None
    top_k: StrictInt | None = None
    min_p: Number | None = None
    seed: StrictInt | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    logit_bias: Annotated[dict[str, Number], BeforeValidator(_few)] | None = None
    stop: StrictStr | Items[StrictStr] | None = None
    guided_regex: StrictStr | None = Field(
        default=None, description="a regular expression that the whole answer matches, in the syntax of Rust's crate"
    )
    n: Annotated[StrictInt, Field(ge=1, le=MOST_CHOICES)] = 1
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    max_tokens: StrictInt | None = None


class ImageUrl(Fields):
    """A picture in a data URL. `detail` chooses its size, and so its tokens, for models that leave a choice."""

    url: StrictStr = Field(description="data:image/...;base64,...; no address is fetched")
    detail: Literal["auto", "low", "high"] | None = None


class Part(Fields):
    """A part of a message: a text, or of the user's a picture; others are refused by their type."""

    model_config = ConfigDict(extra="allow")

    type: StrictStr
    text: StrictStr | None = None
    image_url: ImageUrl | None = None


class Message(Fields):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: StrictStr | Items[Part] | None = None
    tool_calls: Annotated[Items[dict[str, Any]], Field(max_length=TOOLS_MAX)] | None = None
    tool_call_id: StrictStr | None = None
    reasoning_content: StrictStr | None = None
    name: StrictStr | None = None
    refusal: None = None


class ToolName(Fields):
    name: StrictStr


class NamedTool(Fields):
    """The tool that is called."""

    type: Literal["function"]
    function: ToolName


class ChatCompletionRequest(Sampling):
    model_config = ConfigDict(
        json_schema_extra={"example": {"messages": [{"role": "user", "content": "What is JAX?"}], "temperature": 0}}
    )

    messages: Annotated[Items[Message], Field(min_length=1, max_length=CHAT_MAX_MESSAGES), BeforeValidator(_few_parts)]
    max_completion_tokens: StrictInt | None = None
    logprobs: StrictBool = False
    top_logprobs: StrictInt | None = None
    tools: Items[dict[str, Any]] | None = Field(
        default=None, description='functions that the model may call, {"type": "function", "function": {...}}'
    )
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = Field(
        default=None, description="left out: auto; required, or a tool's name: the answer is a call"
    )
    parallel_tool_calls: StrictBool | None = Field(default=None, description="false: one call at most")
    response_format: AnswerFormat | None = Field(
        default=None, description="text, a JSON object, or JSON of a schema, without white space between its parts"
    )


class CompletionRequest(Sampling):
    model_config = ConfigDict(json_schema_extra={"example": {"prompt": "Once upon a time", "max_tokens": 32}})

    prompt: StrictStr | Items[StrictInt] | Items[StrictStr]
    logprobs: StrictInt | None = None
    echo: Literal[False] = False


class DrawingOptions(Fields):
    """Fields of an `ImageRequest` that both routes for pictures have."""

    prompt: str
    negative_prompt: str = ""
    steps: int | None = None
    guidance_scale: float | None = None
    seed: int | None = None
    scheduler: str | None = None
    clip_skip: int = Field(
        default=0, description="layers of the text encoder left out at its end, as in diffusers; web UIs count one more"
    )


class ImageBody(DrawingOptions, Body):
    __qualname__ = "ImageRequest"  # its name in /openapi.json
    model_config = ConfigDict(
        strict=True, title="ImageRequest", json_schema_extra={"example": {"prompt": "a red circle", "seed": 7}}
    )

    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    size: str | None = Field(default=None, description="WIDTHxHEIGHT, one of the warm sizes; left out: the model's own")
    response_format: Literal["b64_json"] = "b64_json"
    output_format: Literal["png"] = "png"


class EditBody(DrawingOptions):
    """A form; its fields are text, and numbers are read from it."""

    image: UploadFile
    mask: UploadFile | None = None
    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    size: str | None = None
    response_format: Literal["b64_json"] = "b64_json"
    user: str | None = None
    strength: float = 0.8


class ClassifyRequest(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"input": "I loved it."}})

    input: StrictStr | Items[StrictStr]


class ExplainRequest(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"input": "I loved it."}})

    input: StrictStr
    label: StrictStr | None = None


class ZeroShotRequest(Body):
    model_config = ConfigDict(
        json_schema_extra={"example": {"input": "The goalkeeper saved us.", "labels": ["sports", "politics"]}}
    )

    input: StrictStr
    labels: Items[StrictStr]


class TokenizeRequest(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"prompt": "What is JAX?"}})

    prompt: StrictStr | None = None
    messages: Annotated[Items[Message], Field(max_length=CHAT_MAX_MESSAGES), BeforeValidator(_few_parts)] | None = None


class DetokenizeRequest(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"tokens": [5, 6, 7]}})

    tokens: Items[StrictInt]
