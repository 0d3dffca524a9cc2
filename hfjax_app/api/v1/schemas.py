"""The bodies of requests, as OpenAI's clients send them, with what vLLM's and this app's have besides.

Ranges of sampling parameters are checked where they are used (`chat/sampling/params.py`); here only types are. null is
as if the field were absent. A field that this app does not know is refused by its name, because an answer that silently
ignores it would be wrong; one that others know is taken with the values that ask for nothing.

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


def _set(value: object) -> object:
    """The fields of an object that are not null."""
    _few(value)
    return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value


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

    _are_set = model_validator(mode="before")(_set)


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
    prompt_cache_retention: StrictStr | None = None


class StreamOptions(Fields):
    include_usage: StrictBool = False
    include_obfuscation: StrictBool | None = None
    continuous_usage_stats: Literal[False] | None = None


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


class StructuredOutputs(Fields):
    """vLLM's envelope of what the answer must be: one of these."""

    json_: dict[str, Any] | StrictStr | None = Field(default=None, alias="json")
    regex: StrictStr | None = None
    choice: Items[StrictStr] | None = None


Nothing = Annotated[Number, Field(ge=0, le=0)]
One = Annotated[Number, Field(ge=1, le=1)]
Empty = Annotated[list[Any], Field(max_length=0)]


class AsksForNothing(Body):
    """Fields of OpenAI, vLLM, SGLang and llama.cpp with the values by which they ask for nothing that is not here."""

    verbosity: Literal["low", "medium", "high"] | None = Field(default=None, description="makes no difference")
    best_of: StrictInt | None = Field(default=None, description="as many as n")
    suffix: Literal[""] | None = None
    # vLLM and SGLang
    use_beam_search: Literal[False] | None = None
    length_penalty: One | None = None
    skip_special_tokens: Literal[True] | None = None
    spaces_between_special_tokens: StrictBool | None = None
    include_stop_str_in_output: Literal[False] | None = None
    no_stop_trim: Literal[False] | None = None
    bad_words: Empty | None = None
    logits_processors: Empty | None = None
    return_token_ids: Literal[False] | None = None
    return_tokens_as_token_ids: Literal[False] | None = None
    return_hidden_states: Literal[False] | None = None
    guided_decoding_backend: StrictStr | None = None
    priority: Nothing | None = None
    request_id: StrictStr | None = None
    rid: StrictStr | None = None
    cache_salt: StrictStr | None = None
    # llama.cpp
    cache_prompt: StrictBool | None = None
    typical_p: One | None = None
    tfs_z: One | None = None
    mirostat: Nothing | None = None
    mirostat_tau: Number | None = None
    mirostat_eta: Number | None = None
    dynatemp_range: Nothing | None = None
    xtc_probability: Nothing | None = None
    dry_multiplier: Nothing | None = None
    n_probs: Nothing | None = None
    timings_per_token: Literal[False] | None = None


class Sampling(AsksForNothing):
    """What both completion routes take."""

    temperature: Number | None = None
    top_p: Number | None = None
    top_k: StrictInt | None = None
    min_p: Number | None = None
    seed: StrictInt | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    repeat_penalty: Number | None = Field(default=None, description="repetition_penalty, as llama.cpp calls it")
    min_tokens: StrictInt | None = Field(default=None, description="before these, nothing ends an answer")
    ignore_eos: StrictBool | None = Field(default=None, description="true: no end token ends it")
    stop_token_ids: Items[StrictInt] | None = Field(default=None, description="more tokens that end it")
    logit_bias: Annotated[dict[str, Number], BeforeValidator(_few)] | None = None
    stop: StrictStr | Items[StrictStr] | None = None
    guided_regex: StrictStr | None = Field(
        default=None, description="a regular expression that the whole answer matches, in the syntax of Rust's crate"
    )
    guided_json: dict[str, Any] | StrictStr | None = Field(default=None, description="a JSON schema, also as text")
    guided_choice: Items[StrictStr] | None = Field(default=None, description="the answer is one of these texts")
    regex: StrictStr | None = Field(default=None, description="guided_regex, as SGLang calls it")
    json_schema: dict[str, Any] | StrictStr | None = Field(default=None, description="guided_json, as others call it")
    structured_outputs: StructuredOutputs | None = None
    n: Annotated[StrictInt, Field(ge=1, le=MOST_CHOICES)] = 1
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    max_tokens: StrictInt | None = None
    n_predict: StrictInt | None = Field(default=None, description="max_tokens, as llama.cpp calls it")


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
    reasoning: StrictStr | None = Field(default=None, description="reasoning_content, as others call it")
    name: StrictStr | None = None
    annotations: Empty | None = None


class ToolName(Fields):
    name: StrictStr


class NamedTool(Fields):
    """The tool that is called."""

    type: Literal["function"]
    function: ToolName


class OfTemplate(BaseModel):
    """What a conversation says to the model's chat template."""

    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None, description="variables of the model's chat template, such as enable_thinking"
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        default=None, description="none: without reasoning, where the template can switch it off"
    )
    add_generation_prompt: StrictBool | None = Field(
        default=None, description="false: the prompt does not begin the assistant's turn"
    )
    continue_final_message: StrictBool | None = Field(
        default=None, description="true: the last message is the beginning of the answer, which goes on from it"
    )
    tools: Items[dict[str, Any]] | None = Field(
        default=None, description='functions that the model may call, {"type": "function", "function": {...}}'
    )


class ChatCompletionRequest(Sampling, OfTemplate):
    model_config = ConfigDict(
        json_schema_extra={"example": {"messages": [{"role": "user", "content": "What is JAX?"}], "temperature": 0}}
    )

    messages: Annotated[Items[Message], Field(min_length=1, max_length=CHAT_MAX_MESSAGES), BeforeValidator(_few_parts)]
    max_completion_tokens: StrictInt | None = None
    logprobs: StrictBool = False
    top_logprobs: StrictInt | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = Field(
        default=None, description="left out: auto; required, or a tool's name: the answer is a call"
    )
    parallel_tool_calls: StrictBool | None = Field(default=None, description="false: one call at most")
    response_format: AnswerFormat | None = Field(
        default=None, description="text, a JSON object, or JSON of a schema, without white space between its parts"
    )
    # these ask for nothing
    modalities: Annotated[Items[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    functions: Empty | None = None
    function_call: Literal["none", "auto"] | None = None
    echo: Literal[False] | None = None
    add_special_tokens: Literal[False] | None = None
    include_reasoning: Literal[True] | None = None
    separate_reasoning: Literal[True] | None = None
    stream_reasoning: Literal[True] | None = None
    parse_tool_calls: Literal[True] | None = None
    documents: Empty | None = None


class CompletionRequest(Sampling):
    model_config = ConfigDict(json_schema_extra={"example": {"prompt": "Once upon a time", "max_tokens": 32}})

    prompt: StrictStr | Items[StrictInt] | Items[StrictStr] | Items[Items[StrictInt]] = Field(
        description="a text or its token ids, or a list of them, each of which has its own choices"
    )
    logprobs: StrictInt | None = None
    echo: StrictBool = Field(
        default=False, description="the prompt before the answer, also its logprobs; max_tokens may be 0 then"
    )
    add_special_tokens: Literal[True] | None = None


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
    loras: str | None = Field(
        default=None,
        description="LoRAs with their weights, of those that the server offers, such as style:0.8,other:0.5; empty: "
        "none; left out: the server's own",
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
    # these ask for nothing
    quality: Literal["auto", "standard"] | None = None
    background: Literal["auto", "opaque"] | None = None
    moderation: Literal["auto", "low"] | None = None
    output_compression: Literal[100] | None = None
    partial_images: Literal[0] | None = None
    stream: Literal[False] | None = None


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
    softness: float = Field(default=1.0, description="width of the seam around what is drawn, 0 to 8 latents")
    region: str = Field(default="whole", description="marked: only what the mask marks is drawn, and so larger")
    expand: str = Field(default="", description='"left,right,up,down": pixels that are drawn around the picture')


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


class TokenizeRequest(Body, OfTemplate):
    model_config = ConfigDict(json_schema_extra={"example": {"prompt": "What is JAX?"}})

    prompt: StrictStr | None = None
    messages: Annotated[Items[Message], Field(max_length=CHAT_MAX_MESSAGES), BeforeValidator(_few_parts)] | None = None
    add_special_tokens: Literal[True] | None = None
    return_token_strs: Literal[False] | None = None


class DetokenizeRequest(Body):
    model_config = ConfigDict(json_schema_extra={"example": {"tokens": [5, 6, 7]}})

    tokens: Items[StrictInt]
