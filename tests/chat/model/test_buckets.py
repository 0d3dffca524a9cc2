"""Buckets: the smallest program that covers the requests runs, gives the same tokens, and works in place."""

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import jax
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from hfjax_app.chat import ChatEngine, EngineOptions, SamplingParams
from hfjax_app.chat.model.buckets import SlotMemory, length_buckets, slot_buckets, smallest_covering
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.chat.model.slot_functions import PromptChunk
from hfjax_app.chat.sampling.sampler import no_masks, packed, sampler_state


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(5, 512, length).tolist()


@pytest.fixture(scope="module")
def engine(model_of: Callable[[str], PreTrainedModel]) -> Iterator[ChatEngine]:
    options = EngineOptions(slots=3, context=600, prefill_chunk=32, buckets=[1], speculation="never")
    engine = ChatEngine(model_of("gemma3"), options=options).start()
    yield engine
    engine.stop()


def test_bucket_sizes() -> None:
    assert length_buckets(8192) == (256, 1024, 4096, 8192)
    assert length_buckets(512) == (512,)
    assert length_buckets(300) == (300,)
    assert slot_buckets(6) == (1, 2, 4, 6)
    assert slot_buckets(8) == (1, 2, 4, 8)
    assert slot_buckets(1) == (1,)
    assert slot_buckets(8, [3, 9]) == (3, 8)
    assert smallest_covering((256, 1024), 256) == 256
    assert smallest_covering((256, 1024), 257) == 1024


@pytest.mark.parametrize(
    ("weights", "position", "slots", "context", "decode", "lengths"),
    [
        (2.5e9, 32768, 8, 2048, [(8, 2048)], [2048]),  # Llama 3.2 1B: the whole cache is a fifth of the weights
        (2.0e9, 26624, 4, 1024, [(4, 1024)], [1024]),  # Gemma 3 1B
        (2.5e9, 32768, 8, 4096, [(2, 4096), (8, 1024), (8, 4096)], [4096]),
        (2.5e9, 32768, 1, 32768, [(1, 4096), (1, 32768)], [1024, 16384, 32768]),
    ],
)
def test_on_an_accelerator_a_bucket_saves_a_part_of_a_step(
    weights: float, position: int, slots: int, context: int, decode: list[tuple[int, int]], lengths: list[int]
) -> None:
    slot = SlotMemory(states=0, positions=((position, None),), weights=int(weights))
    found = slot.buckets(slots, context)
    assert list(found.decode) == decode
    assert list(found.lengths) == lengths
    copied = [*decode[:-1], *((1, length) for length in lengths if (1, length) != (slots, context))]
    assert slot.copied(slots, context) == max(slot.filled(*bucket, context) for bucket in copied)


def test_tokens_are_the_same_in_every_bucket(engine: ChatEngine, model_of: Callable[[str], PreTrainedModel]) -> None:
    """Alone and with others, from one length bucket into the next (prompt 240, 40 tokens), and far into the last."""
    params = SamplingParams(max_tokens=40, temperature=0.0)
    prompts = [prompt_of(length) for length in (240, 20, 500)]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model_of("gemma3").generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
        expected.append(out[0, len(prompt) :].tolist())
    assert [engine.generate([prompt], params)[0] for prompt in prompts] == expected
    assert engine.generate(prompts, params) == expected


def test_padding_hides_nothing_from_a_wide_window(model_of: Callable[[str], PreTrainedModel]) -> None:
    """A ring as long as the context, and a window nearly as long. The padding of the last chunk, 29 positions beyond
    the context, once counted as written and hid the positions whose place it would have taken."""
    model = copy.deepcopy(model_of("gemma3"))
    model.config.sliding_window = 90
    ids = torch.tensor([prompt_of(98)])
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=False)[
        0, 98:
    ].tolist()
    engine = ChatEngine(
        model, options=EngineOptions(slots=1, context=100, prefill_chunk=32, speculation="never")
    ).start()
    assert engine.generate([prompt_of(98)], SamplingParams(max_tokens=2, temperature=0.0)) == [expected]
    engine.stop()


def test_the_smallest_bucket_that_covers_all_requests_runs(engine: ChatEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: Counter[tuple[int, int]] = Counter()

    def counted(bucket: tuple[int, int], program: Callable) -> Callable:
        def call(*args: object) -> object:
            ran[bucket] += 1
            return program(*args)

        return call

    programs = {bucket: counted(bucket, program) for bucket, program in engine.runner.programs.decode.items()}
    monkeypatch.setattr(engine.runner.programs, "decode", programs)
    params = SamplingParams(max_tokens=30, temperature=0.0)
    engine.generate([prompt_of(20)], params)
    assert set(ran) == {(1, 256)}
    ran.clear()
    engine.generate([prompt_of(400)], params)
    assert set(ran) == {(1, 600)}
    ran.clear()
    engine.generate([prompt_of(20), prompt_of(21)], params)
    assert (3, 256) in ran
    assert set(ran) <= {(3, 256), (1, 256)}


def test_the_cache_is_updated_in_place(engine: ChatEngine) -> None:
    """Every program reuses the donated cache: at least as many bytes are aliased as the cache has."""
    runner = engine.runner
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(runner._cache))
    buckets = (runner.programs.prefill, runner.programs.decode, runner.programs.speculate, runner.programs.copy)
    for program in [*(program for bucket in buckets for program in bucket.values()), runner.programs.clear]:
        assert program.memory_analysis().alias_size_in_bytes >= whole


def test_a_call_for_other_slots_does_not_end_an_answer(engine: ChatEngine) -> None:
    """Two slots decode in the program for all three. A drafting call had scheduled all tokens of the third slot's
    request and made fewer. The other slots' call set its tokens left to zero, so its answer never ended, and the
    engine's thread looked for work in a busy loop."""
    runner, one = engine.runner, packed(sampler_state(SamplingParams(temperature=0.0), 0))
    for slot in range(3):
        chunk = np.array(prompt_of(32), np.int32)
        runner.prefill(PromptChunk.of(slot, chunk, 0, 20 + slot, 9, one))
    others, _ = runner.decode([1, 2], 60, 4)
    made, [column] = runner.decode([0], 60, 16)
    engine._loop.scheduler.slots.forget_all()
    assert ((np.asarray(others.tokens) >= 0).sum(axis=0) == [0, 4, 4]).all()
    assert (np.asarray(made.tokens)[:, column] >= 0).sum() == 8


def test_a_step_does_not_copy_the_cache(engine: ChatEngine) -> None:
    """One new token per slot was written by a slice update. XLA on CPU computed it twice, for the cache and for
    attention, each time on a copy of the layer's cache. That took a third of a step's time."""
    for program in engine.runner.programs.decode.values():
        computations = program.as_text().split("\n\n")
        step = max(computations, key=lambda text: text.count(" dot(") + text.count("ynn_fusion"))
        copied = [tuple(map(int, shape.split(","))) for shape in re.findall(r"\w+\[([\d,]+)\]\S* copy\(", step)]
        assert all(math.prod(shape) < 2 * 32 * 16 for shape in copied), copied


def test_a_bucket_allocates_only_its_own_part_of_the_cache(model_of: Callable[[str], PreTrainedModel]) -> None:
    """Two slots of 256 positions in a cache 128 times as large: the temporary memory is a small part of the cache."""
    runner = ModelRunner(model_of("llama"), EngineOptions(slots=32, context=2048, end_tokens=(), prefill_chunk=16))
    runner.reset()
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(runner._cache))
    which = (np.array([3, 7], np.int32), np.ones(2, bool), np.int32(4), no_masks(runner.vocabulary, 2))
    decode = jax.jit(partial(runner.functions.decode_chunk, 256), donate_argnums=(1, 2))
    memory = decode.lower(runner.weights, runner._cache, runner._state, *which).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= whole
    assert memory.temp_size_in_bytes < whole / 10


def test_an_accelerators_programs_give_the_same_tokens(model_of: Callable[[str], PreTrainedModel]) -> None:
    """One decode program for both slots, long pieces of a prompt, drafts for a request that is alone."""
    model, params = model_of("gemma3"), SamplingParams(max_tokens=20, temperature=0.0)
    engine = ChatEngine(
        model, options=EngineOptions(slots=2, context=300, speculation="always", accelerated=True)
    ).start()
    programs = engine.runner.programs
    assert list(programs.decode) == [(2, 300)]
    assert sorted(programs.prefill) == [(256, 300), (300, 300)]
    assert [*programs.copy, *programs.speculate] == [300, 300]
    prompts = [prompt_of(length) for length in (20, 270)]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
        expected.append(out[0, len(prompt) :].tolist())
    assert [engine.generate([prompt], params)[0] for prompt in prompts] == expected
    assert engine.generate(prompts, params) == expected
    engine.stop()
