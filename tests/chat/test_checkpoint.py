"""A whole checkpoint, as people upload them: what its files say reaches an answer.

Its model has one layer that does nothing; its output layer names the token that follows each token.
"""

import asyncio
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM

from hfjax_app.chat import ChatAssistant, ChatEngine, Reply, SamplingParams
from hfjax_app.chat.request import ChatRequest
from tests.chat.conftest import make_tokenizer

PIECES = ["<think>", "A sum.", "</think>", "It is", " 4.", "<|stop|>", "User:", "Thanks."]


def save(
    folder: Path, pieces: Sequence[str], *, special: Sequence[str] = (), end: str | None = None, **generation: Any
) -> None:
    """A checkpoint that answers with these pieces, one token each, over and over. Its generation_config names `end`."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken(text, special=text in special, normalized=False) for text in pieces])
    tokenizer.save_pretrained(folder)
    question = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], add_generation_prompt=True)[
        "input_ids"
    ]
    chain = [question[-1], *tokenizer.convert_tokens_to_ids(list(pieces))]
    size = len(tokenizer)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=size - size % 4 + 4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0 if parameter.ndim == 1 else 0.0)
        model.model.embed_tokens.weight[:, :size] = torch.eye(size)
        for now, following in [*pairwise(chain), (chain[-1], chain[1])]:
            model.lm_head.weight[following, now] = 1.0
    model.save_pretrained(folder)
    ends = {} if end is None else {"eos_token_id": [tokenizer.convert_tokens_to_ids(end)]}
    (folder / "generation_config.json").write_text(json.dumps(generation | ends))


def last_reply(folder: Path, *, stop: Sequence[str] = ()) -> tuple[Reply, ChatAssistant]:
    sizes = {"slots": 1, "context": 64, "prefill_chunk": 16, "buckets": [1], "speculation": "never"}
    engine = ChatEngine.from_pretrained(folder, **sizes).start()
    chat = ChatAssistant(engine)

    async def last() -> Reply:
        params = SamplingParams(max_tokens=12, temperature=0.0)
        request = ChatRequest(messages=[{"role": "user", "content": "Hi"}], sampling=params, stop=stop)
        replies = [reply async for reply in chat.reply(request)]
        return replies[-1]

    try:
        return asyncio.run(last()), chat
    finally:
        engine.stop()


@pytest.mark.parametrize("stop", ["<|stop|>", None])
def test_an_answer_is_apart_from_its_reasoning_and_ends_where_any_file_says(stop: str | None, tmp_path: Path) -> None:
    """The special token ends it as a stop string, or because generation_config names it beside the tokenizer's."""
    end = None if stop else "<|stop|>"
    save(tmp_path, PIECES, special=["<|stop|>"], end=end, do_sample=True, temperature=0.6, top_k=20)
    reply, chat = last_reply(tmp_path, stop=[stop] if stop else [])
    assert (reply.reasoning, reply.text, reply.finish_reason) == ("A sum.", "It is 4.", "stop")
    assert reply.reasoning_s is not None
    assert not reply.is_reasoning
    assert chat.recommended == SamplingParams(temperature=0.6, top_k=20)
    assert chat.notices == []


def test_the_end_of_the_template_counts(tmp_path: Path) -> None:
    """No config names <end_of_turn>, and the tokenizer names another token."""
    save(tmp_path, ["Good", " day!", "<end_of_turn>", "User:"], do_sample=False)
    reply, chat = last_reply(tmp_path)
    assert (reply.text, reply.finish_reason) == ("Good day!", "stop")
    assert "greedy" in chat.notices[0]
