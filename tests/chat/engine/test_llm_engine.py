"""The engine's public interface: tokens as by `generate`, many at once, cancel, limits, no compilation in service."""

import dataclasses
import math
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hfjax_app.chat import ChatEngine, EngineOptions, SamplingParams
from hfjax_app.chat.engine.request import Progress
from hfjax_app.errors import EngineStopped, Overloaded, RequestRejected
from hfjax_app.limits import CHAT_QUEUE
from hfjax_app.runtime.module import weights_of

GREEDY = SamplingParams(max_tokens=40, temperature=0.0)
ARCHITECTURES = ["llama", "gemma3"]


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(5, 512, length).tolist()


def idle(engine: ChatEngine) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        stats = engine.stats()
        if stats.busy == stats.waiting == 0:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_equals_generate(
    architecture: str, engine_of: Callable[[str], ChatEngine], model_of: Callable[[str], PreTrainedModel]
) -> None:
    """Six prompts over four slots, shorter and longer than the chunk (16) and the window (32)."""
    prompts = [prompt_of(length) for length in (1, 3, 16, 20, 75, 150)]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        out = model_of(architecture).generate(ids, attention_mask=mask, max_new_tokens=40, do_sample=False)
        expected.append(out[0, len(prompt) :].tolist())
    assert min(len(set(tokens)) for tokens in expected) > 5
    assert engine_of(architecture).generate(prompts, GREEDY) == expected


def test_heads_that_share_a_row_of_the_cache_change_no_token(
    model_of: Callable[[str], PreTrainedModel], engine_of: Callable[[str], ChatEngine]
) -> None:
    """As on a TPU, where one of these heads would not fill the lanes: with and without drafts, alone and together.
    Drafts are shorter than the chunk of 4: longer ones would overwrite the first token's window in a ring of 32 + 4
    positions."""
    prompts = [prompt_of(3), [*prompt_of(40), *prompt_of(40)], prompt_of(75)]
    options = EngineOptions(slots=3, context=256, prefill_chunk=4, buckets=[1], speculation="always", lanes=32)
    engine = ChatEngine(model_of("gemma3"), options=options).start()
    assert {leaf.shape[1:] for layer in engine.runner.cache_shape for leaf in layer.values()} == {
        (1, 36, 32),
        (1, 256, 32),
    }
    got = [*engine.generate(prompts, GREEDY), *(engine.generate([prompt], GREEDY)[0] for prompt in prompts)]
    engine.stop()
    assert engine.stats().drafted_tokens > 0
    assert got == engine_of("gemma3").generate(prompts, GREEDY) * 2


def test_more_prompts_than_the_queue_has_room_for(engine_of: Callable[[str], ChatEngine]) -> None:
    """They were all queued at once: the 261st was refused, and the work of all the others was lost."""
    engine, short = engine_of("llama"), SamplingParams(max_tokens=2, temperature=0.0)
    lengths = [1 + n % 7 for n in range(CHAT_QUEUE + 20)]
    few = dict(zip(range(1, 8), engine.generate([prompt_of(n) for n in range(1, 8)], short), strict=True))
    assert engine.generate([prompt_of(n) for n in lengths], short) == [few[n] for n in lengths]
    assert idle(engine)


def test_the_model_of_the_caller_is_not_changed(model_of: Callable[[str], PreTrainedModel]) -> None:
    """Building an engine must not change the torch model's attention or weights: it still generates by itself."""
    model = model_of("gemma3")
    ids = torch.tensor([prompt_of(20)])
    before = model(ids).logits
    ChatEngine(model, options=EngineOptions(slots=1, context=64))
    assert torch.equal(model(ids).logits, before)


def test_a_started_engine_has_nothing_left_to_compute(model_of: Callable[[str], PreTrainedModel]) -> None:
    """The calls of the warm-up were only dispatched: the first request to a 270M model waited five seconds for them."""
    engine = ChatEngine(
        model_of("llama"), options=EngineOptions(slots=2, context=512, buckets=(), speculation="never")
    ).start()
    try:
        assert all(leaf.is_ready() for leaf in jax.tree.leaves((engine.runner._cache, engine.runner._state)))
    finally:
        engine.stop()


def test_the_weights_of_the_caller_are_not_changed(model_of: Callable[[str], PreTrainedModel]) -> None:
    """The engine fuses some of them; a second engine can be made from the same model."""
    model = model_of("llama")
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    for _ in range(2):
        engine = ChatEngine(model, options=EngineOptions(slots=1, context=64))
        assert len(engine.runner.weights) < len(weights_of(model))
        assert {name: id(parameter) for name, parameter in model.named_parameters()} == before


def test_a_seed_gives_the_same_tokens_with_any_neighbours(engine_of: Callable[[str], ChatEngine]) -> None:
    """Another seed gives other tokens, also if only the upper 32 bits differ."""
    engine = engine_of("llama")
    params = SamplingParams(max_tokens=30, temperature=1.0, top_p=0.95, seed=7)
    alone = list(engine.stream(prompt_of(9), params))
    crowd = engine.generate([prompt_of(n) for n in (30, 9, 5, 60, 9)], params)
    assert crowd[1] == crowd[4] == alone
    for seed in (8, 7 + 2**32):
        assert list(engine.stream(prompt_of(9), dataclasses.replace(params, seed=seed))) != alone


def test_end_token_stops_and_is_not_handed_out(
    model_of: Callable[[str], PreTrainedModel], engine_of: Callable[[str], ChatEngine]
) -> None:
    """Every id of generation_config's list ends an answer; here, the fifth greedy token is one of three. If it is the
    first token of an answer, the device makes nothing after it, although the next call was already dispatched."""
    model = model_of("llama")
    prompt = prompt_of(12)
    free = engine_of("llama").generate([prompt], GREEDY)[0]
    end = next(token for i, token in enumerate(free) if i >= 4 and token not in free[:i])
    never = [token for token in range(512) if token not in free]
    model.generation_config.eos_token_id = [never[0], end, never[1]]
    try:
        options = EngineOptions(slots=2, context=128, buckets=[], speculation="never")
        engine = ChatEngine(model, options=options).start()
    finally:
        model.generation_config.eos_token_id = None
    before_end = free[: free.index(end)]
    for said, answer in (([*prompt, *before_end], []), (prompt, before_end)):
        stream = engine.stream(said, GREEDY)
        assert list(stream) == answer
        assert stream.finish_reason == "stop"
    assert engine.stats().wasted_tokens == 0
    engine.stop()


@pytest.mark.parametrize(("max_tokens", "reason"), [(6, "length"), (7, "context")])
def test_an_answer_ends_where_the_context_is_full(
    max_tokens: int, reason: str, engine_of: Callable[[str], ChatEngine]
) -> None:
    """A request for exactly as many tokens as there is room for ends by its length: the context cuts nothing off."""
    stream = engine_of("llama").stream(prompt_of(250), SamplingParams(max_tokens=max_tokens, temperature=0.0))
    assert len(list(stream)) == 6
    assert stream.finish_reason == reason


@pytest.mark.parametrize("leave", ["close", "drop", "break"])
def test_leaving_a_stream_frees_its_slot(leave: str, engine_of: Callable[[str], ChatEngine]) -> None:
    """A client that closes the stream, drops it, or breaks out of its loop costs no more than a chunk."""
    engine = engine_of("llama")
    made = engine.stats().tokens
    stream = engine.stream(prompt_of(5), SamplingParams(max_tokens=250, temperature=0.0))
    next(stream)
    if leave == "close":
        stream.close()
    elif leave == "break":
        for _ in stream:
            break
    del stream
    assert idle(engine)
    assert engine.stats().tokens - made < 250


def test_a_queued_request_can_be_cancelled(engine_of: Callable[[str], ChatEngine]) -> None:
    engine = engine_of("llama")
    streams = [engine.stream(prompt_of(5), SamplingParams(max_tokens=200, temperature=0.0)) for _ in range(6)]
    streams[5].close()
    assert [len(list(stream)) for stream in streams[:5]] == [200] * 5
    assert list(streams[5]) == []
    assert streams[5].finish_reason == "cancelled"


def test_the_queue_has_a_limit_and_cancelled_requests_cost_nothing(engine_of: Callable[[str], ChatEngine]) -> None:
    """All in one callback: the engine's thread gives out no slot meanwhile, although three of four are free. Cancelled
    requests are released before slots are given out, so only the one that is not cancelled is prefilled."""
    engine, short = engine_of("llama"), SamplingParams(max_tokens=1, temperature=0.0)
    assert idle(engine)
    before, tickets, refused, reasons, ended = engine.stats(), [], [], [], threading.Event()

    def stayed(progress: Progress) -> None:
        reasons.append(progress.finish_reason)
        ended.set()

    def fill(progress: Progress) -> None:
        if tickets:
            return
        for _ in range(CHAT_QUEUE - 1):
            tickets.append(engine.submit(prompt_of(5), short, lambda progress: reasons.append(progress.finish_reason)))
        tickets.append(engine.submit(prompt_of(5), short, stayed))
        try:
            engine.submit(prompt_of(5), short, reasons.append)
        except Overloaded as error:
            refused.append(str(error))
        for ticket in tickets[:-1]:
            ticket.cancel()

    engine.submit(prompt_of(5), SamplingParams(max_tokens=20, temperature=0.0), fill)
    assert ended.wait(timeout=60)
    assert refused == ["the chat engine is busy: 256 requests are waiting; try again later"]
    assert reasons == ["cancelled"] * (CHAT_QUEUE - 1) + ["length"]
    assert engine.stats().prefill_calls - before.prefill_calls == 2
    assert idle(engine)


def test_serving_compiles_nothing(engine_of: Callable[[str], ChatEngine], compilations: Callable) -> None:
    """The programs of the warm-up serve all lengths, parameters and neighbours."""
    engine = engine_of("gemma3")
    with compilations() as seen:
        engine.generate([prompt_of(n) for n in (1, 17, 40, 100, 200)], GREEDY)
        for params in (
            SamplingParams(max_tokens=3, temperature=0.5, top_p=0.5, top_k=5, seed=1),
            SamplingParams(max_tokens=50, temperature=2.0),
        ):
            list(engine.stream(prompt_of(33), params))
        engine.stream(prompt_of(50), SamplingParams(max_tokens=200)).close()
        assert idle(engine)
    assert seen == []


def test_no_weight_is_a_constant_of_a_program(engine_of: Callable[[str], ChatEngine]) -> None:
    """The largest constant is smaller than the smallest matrix of the tiny model (32 x 64)."""
    runner = engine_of("gemma3").runner
    for program in [*runner.programs.prefill.values(), *runner.programs.decode.values()]:
        shapes = re.findall(r"= \w+\[([\d,]*)\]\S* constant\(", program.as_text())
        assert shapes
        assert max(math.prod(map(int, filter(None, shape.split(",")))) for shape in shapes) <= 512


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "says"),
    [
        ([], 5, "prompt of 0 tokens"),
        ([7] * 256, 5, "prompt of 256 tokens: must be 1 to 255"),
        ([512], 5, "token id 512"),
        ([-1], 5, "token id -1"),
        (["a"], 5, "token id 'a'"),
        ([True], 5, "token id True"),
        ([10**5000], 5, "token id a number of more than 4,300 digits"),
        pytest.param([3], 10**5000, "max tokens = a number of more than 4,300 digits: at most 256", id="long"),
        ([3], 257, "max tokens = 257: at most 256"),
        ([3], 10**9, "max tokens = 1000000000: at most 256"),
    ],
)
def test_a_rejected_request_reaches_no_device(
    prompt: list, max_tokens: int, says: str, engine_of: Callable[[str], ChatEngine]
) -> None:
    engine = engine_of("llama")
    assert idle(engine)
    before = engine.stats()
    with pytest.raises(RequestRejected, match=says):
        engine.generate([prompt_of(3), prompt], SamplingParams(max_tokens=max_tokens))
    assert engine.stats() == before


def test_more_context_than_the_model_has_positions_is_refused(model_of: Callable[[str], PreTrainedModel]) -> None:
    with pytest.raises(RequestRejected, match="context = 4096: this model has 2048 positions"):
        ChatEngine(model_of("llama"), options=EngineOptions(context=4096))


def test_a_stopped_engine_fails_every_request(model_of: Callable[[str], PreTrainedModel]) -> None:
    """Requests being served, queued ones, and later ones. The programs are those of `engine_of`."""
    options = EngineOptions(slots=4, context=256, prefill_chunk=16, buckets=[1], speculation="never")
    engine = ChatEngine(model_of("llama"), options=options).start()
    streams = [engine.stream(prompt_of(4), SamplingParams(max_tokens=250, temperature=0.0)) for _ in range(6)]
    next(streams[0])
    stopper = threading.Thread(target=engine.stop)
    stopper.start()
    for stream in streams:
        with pytest.raises(EngineStopped):
            list(stream)
    stopper.join()
    with pytest.raises(EngineStopped):
        engine.stream(prompt_of(4), GREEDY)
    with pytest.raises(EngineStopped):
        engine.start()


def test_from_pretrained_loads_what_save_pretrained_wrote(
    tmp_path: Path,
    model_of: Callable[[str], PreTrainedModel],
    tokenizer: PreTrainedTokenizerFast,
    engine_of: Callable[[str], ChatEngine],
) -> None:
    model_of("gemma3").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    engine = ChatEngine.from_pretrained(tmp_path, slots=2, context=256, buckets=[], speculation="never").start()
    assert engine.generate([prompt_of(20)], GREEDY) == engine_of("gemma3").generate([prompt_of(20)], GREEDY)
    assert engine.tokenizer.encode("name") == tokenizer.encode("name")
    engine.stop()
