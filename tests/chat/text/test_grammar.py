"""Grammars: what they allow, and what hostile ones cost."""

import contextlib
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hfjax_app.chat.text.answer_grammar import AnswerGrammar
from hfjax_app.chat.text.grammar import Grammars
from hfjax_app.embedded import resolve
from hfjax_app.errors import ConstraintFailed, RequestRejected

ENDS = (1, 5)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(resolve("chat-gemma"))


@pytest.fixture(scope="module")
def grammars(tokenizer: PreTrainedTokenizerFast) -> Grammars:
    return Grammars(tokenizer, len(tokenizer), ENDS)


def walk(grammars: Grammars, grammar: AnswerGrammar, *, seed: int = 0, most: int = 200) -> tuple[list[int], bool]:
    """Tokens of a random answer, and whether it ended."""
    random, constraint, tokens = np.random.default_rng(seed), grammars.compiled(grammar).constraint(), []
    while not constraint.is_complete and len(tokens) < most:
        allowed = np.flatnonzero(np.unpackbits(constraint.allowed.view(np.uint8), bitorder="little"))
        token = int(random.choice(allowed))
        if token in ENDS:
            return tokens, True
        tokens.append(token)
        constraint.accept(token)
    return tokens, constraint.is_complete


def schema(value: Any) -> AnswerGrammar:
    return AnswerGrammar.of_schema(value, "response_format")


def regex(value: Any) -> AnswerGrammar:
    return AnswerGrammar.of_regex(value, "guided_regex")


def test_json_has_no_white_space_between_its_parts(grammars: Grammars, tokenizer: PreTrainedTokenizerFast) -> None:
    """Also where the schema asks for it in llguidance's own words."""
    kinds = {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}}
    wanted = {"type": "object", "properties": kinds, "required": ["a", "b"], "additionalProperties": False}
    for seed in range(5):
        tokens, ended = walk(grammars, schema(wanted | {"x-guidance": {"whitespace_flexible": True}}), seed=seed)
        text = tokenizer.decode(tokens)
        assert ended or len(tokens) == 200
        assert " " not in text
        if ended:
            assert json.loads(text).keys() == {"a", "b"}


def test_reasoning_stays_free(grammars: Grammars, tokenizer: PreTrainedTokenizerFast) -> None:
    for end in ("</think>", "<start_of_turn>"):  # a text, and a token
        constraint = grammars.compiled(regex("[0-9]+!"), end).constraint()
        said = tokenizer.encode("The sum of 2 and 2.", add_special_tokens=False)
        closing = [tokenizer.unk_token_id] if end == "<unk>" else tokenizer.encode(end, add_special_tokens=False)
        for token in [*said, *closing, *tokenizer.encode("\n\n4!", add_special_tokens=False)]:
            assert constraint.allowed[token // 32] >> token % 32 & 1
            constraint.accept(token)
        assert constraint.is_complete


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        found = {"properties": {"title": found}}
    return found


INSIDE = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: regex("(a"), "guided_regex: .*unclosed|invalid regex"),
        (lambda: regex("(?=a)b"), "invalid regex"),
        (lambda: regex("a" * 5_000), "guided_regex of 5,000 characters: at most 4,000"),
        (lambda: regex("(" * 1_900 + "a" + ")" * 1_900), "invalid regex"),
        (lambda: regex(7), "guided_regex: must be text, not int"),
        (lambda: schema([1]), "must be a JSON schema, an object, not list"),
        (lambda: schema({"type": "text"}), "Invalid type: text"),
        (lambda: schema({"type": 3}), "type must be a string"),
        (lambda: schema({"not": {}}), "Unimplemented keys"),
        (lambda: schema({"$ref": "http://127.0.0.1:9/schema"}), "is not present"),
        (lambda: schema({"$ref": "#"}), "too complex, or can't be fulfilled"),
        (lambda: schema({"$defs": {"n": INSIDE}, "$ref": "#/$defs/n"}), "too complex, or can't be fulfilled"),
        (lambda: schema(nested(100_000)), "nested more than 64 levels deep"),
        (lambda: schema({"const": "x" * 5_000}), "a text of 5,000 characters: at most 4,000"),
        (lambda: schema({"enum": [f"{n:0100}" for n in range(2_000)]}), "characters: at most 100,000"),
        (lambda: schema({"type": "object", "properties": {f"p{n}": {} for n in range(4_000)}}), "too complex"),
        (lambda: schema({"x": [{}] * 200_000}), "response_format of more than 100,000 values"),
        (
            lambda: schema({"multipleOf": 1e9 + 7}),
            "multiple of all multipleOf, without the decimal point, is more than",
        ),
        (lambda: schema({"anyOf": [{"multipleOf": 9_973}, {"multipleOf": 99.67}]}), "multiple of all multipleOf"),
        (lambda: schema({"multipleOf": 1e300}), "too many digits"),
        (lambda: schema({"const": "\ud800"}), "response_format: a text is not valid Unicode"),
    ],
)
def test_what_is_wrong_is_refused_soon(
    make: Callable[[], AnswerGrammar], said: str, grammars: Grammars, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        began = time.thread_time()
        with pytest.raises(RequestRejected, match=said) as refused:
            grammars.compiled(make())
    assert time.thread_time() - began < 60
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)
    assert caplog.text == ""


@pytest.mark.parametrize(
    "make",
    [
        lambda: regex(r"(.*a.{300}|.*b.{299}|.*c.{200})+"),
        lambda: regex("a" * 4_000),
        lambda: schema({"type": "string", "pattern": "^(([a-z]{1,100}){1,100}){1,100}$"}),
        lambda: schema({"type": "array", "items": {"type": "integer"}, "minItems": 50_000}),
        lambda: schema({"anyOf": [{"multipleOf": 0.25}, {"multipleOf": 512}, {"multipleOf": 1e6}]}),
    ],
)
def test_what_is_costly_ends_or_fails_by_itself(make: Callable[[], AnswerGrammar], grammars: Grammars) -> None:
    began = time.thread_time()
    with contextlib.suppress(ConstraintFailed):
        assert walk(grammars, make())[0]
    assert time.thread_time() - began < 60


def test_a_tokenizer_without_grammars_says_so() -> None:
    with pytest.raises(RequestRejected, match="tokenizer can't constrain answers"):
        Grammars(object(), 100, ()).compiled(regex("a"))
