"""Bodies of requests: a wrong one has one error, however long it is."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from hfjax_app.api.v1.schemas import (
    ChatCompletionRequest,
    ClassifyRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    ZeroShotRequest,
)

MANY = 100_000
USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("schema", "body", "errors"),
    [
        (CompletionRequest, {"prompt": [0.5] * MANY}, 4),  # one for each kind of prompt
        (CompletionRequest, {"prompt": "x", "stop": [None] * MANY}, 2),
        (CompletionRequest, {"prompt": "x", "logit_bias": {str(token): "x" for token in range(MANY)}}, 1),
        (ChatCompletionRequest, {"messages": [{}] * MANY}, 2),  # its two missing fields at most
        (ChatCompletionRequest, {"messages": [USER] * MANY}, 1),
        (ChatCompletionRequest, {"messages": [USER | {"content": [{}] * MANY}]}, 2),
        (ChatCompletionRequest, {"messages": [USER | {"tool_calls": [7] * MANY}]}, 1),
        (ChatCompletionRequest, {"messages": [USER], "tools": [7] * MANY}, 1),
        (ChatCompletionRequest, {"messages": [USER], **{f"unknown{number}": 1 for number in range(MANY)}}, 1),
        (ChatCompletionRequest, {"messages": [USER | {"content": [{"type": "text", "text": ""}] * 999}] * 99}, 1),
        (TokenizeRequest, {"messages": [7] * MANY}, 1),
        (DetokenizeRequest, {"tokens": ["x"] * MANY}, 1),
        (ClassifyRequest, {"input": [7] * MANY}, 2),
        (ZeroShotRequest, {"input": "x", "labels": [7] * MANY}, 1),
    ],
)
def test_a_long_body_has_few_errors(schema: type[BaseModel], body: dict[str, Any], errors: int) -> None:
    with pytest.raises(ValidationError) as raised:
        schema.model_validate(body)
    assert 1 <= len(raised.value.errors()) <= errors
