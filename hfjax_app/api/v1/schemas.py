"""The bodies of requests, as OpenAI's clients send them, with what vLLM's and this app's have besides.

Ranges of sampling parameters are checked where they are used (`chat/sampling/params.py`); here only types are. A field
that this app does not know is refused by its name, because an answer that silently ignores it would be wrong.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

MOST_CHOICES = 4

Number = StrictInt | StrictFloat


class Body(BaseModel):
    """A request's JSON object."""

    model_config = ConfigDict(extra="forbid")

    model: StrictStr | None = Field(default=None, description="one of /v1/models; left out: the first of its kind")
    user: StrictStr | None = Field(
        default=None, description="accepted and ignored, as are metadata, store and service_tier"
    )
    metadata: dict[str, Any] | None = None
    store: StrictBool | None = None
    service_tier: StrictStr | None = None
    safety_identifier: StrictStr | None = None
    prompt_cache_key: StrictStr | None = None


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: StrictBool = False


class JsonSchema(BaseModel):
    """OpenAI's envelope of a schema. `strict` makes no difference: the answer is always as the schema says."""

    model_config = ConfigDict(extra="forbid")

    name: StrictStr | None = None
    description: StrictStr | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: StrictBool | None = None


class AnswerFormat(BaseModel):
    """What the answer must be."""

    model_config = ConfigDict(extra="forbid")

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
    logit_bias: dict[str, Number] | None = None
    stop: StrictStr | list[StrictStr] | None = None
    guided_regex: StrictStr | None = Field(
        default=None, description="a regular expression that the whole answer matches, in the syntax of Rust's crate"
    )
    n: Annotated[StrictInt, Field(ge=1, le=MOST_CHOICES)] = 1
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    max_tokens: StrictInt | None = None


class ImageUrl(BaseModel):
    """A picture in a data URL. `detail` makes no difference: a picture is seen as a whole."""

    model_config = ConfigDict(extra="forbid")

    url: StrictStr = Field(description="data:image/...;base64,...; no address is fetched")
    detail: Literal["auto", "low", "high"] | None = None


class Part(BaseModel):
    """A part of a message: a text, or of the user's a picture; others are refused by their type."""

    model_config = ConfigDict(extra="allow")

    type: StrictStr
    text: StrictStr | None = None
    image_url: ImageUrl | None = None


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: StrictStr | list[Part] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: StrictStr | None = None
    reasoning_content: StrictStr | None = None
    name: StrictStr | None = None
    refusal: None = None


class ToolName(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: StrictStr


class NamedTool(BaseModel):
    """The tool that is called."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["function"]
    function: ToolName


class ChatCompletionRequest(Sampling):
    model_config = ConfigDict(
        json_schema_extra={"example": {"messages": [{"role": "user", "content": "What is JAX?"}], "temperature": 0}}
    )

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: StrictInt | None = None
    logprobs: StrictBool = False
    top_logprobs: StrictInt | None = None
    tools: list[dict[str, Any]] | None = Field(
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

    prompt: StrictStr | list[StrictInt] | list[StrictStr]
    logprobs: StrictInt | None = None
    echo: Literal[False] = False


class ImageRequest(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"prompt": "a red circle", "seed": 7}})

    prompt: StrictStr
    n: Annotated[StrictInt, Field(ge=1, le=MOST_CHOICES)] = 1
    size: StrictStr | None = Field(
        default=None, description="WIDTHxHEIGHT, one of the warm sizes; left out: the model's own"
    )
    response_format: Literal["b64_json"] = "b64_json"
    output_format: Literal["png"] = "png"
    negative_prompt: StrictStr = ""
    steps: StrictInt | None = None
    guidance_scale: Number | None = None
    seed: StrictInt | None = None
    scheduler: StrictStr | None = None


class ClassifyRequest(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"input": "I loved it."}})

    input: StrictStr | list[StrictStr]


class ExplainRequest(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"input": "I loved it."}})

    input: StrictStr
    label: StrictStr | None = None


class ZeroShotRequest(Body):
    model_config = ConfigDict(
        json_schema_extra={"example": {"input": "The goalkeeper saved us.", "labels": ["sports", "politics"]}}
    )

    input: StrictStr
    labels: list[StrictStr]


class TokenizeRequest(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"prompt": "What is JAX?"}})

    prompt: StrictStr | None = None
    messages: list[Message] | None = None


class DetokenizeRequest(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"tokens": [5, 6, 7]}})

    tokens: list[StrictInt]
