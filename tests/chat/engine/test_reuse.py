"""Reused prefixes on a real engine with sliding windows: the same tokens as without reuse, and much less prefill."""

import random
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event

from hfjax_app.chat import ChatEngine, SamplingParams
from hfjax_app.chat.engine.request import Progress

ANSWER = SamplingParams(max_tokens=6, temperature=0.0)


def next_prompt(rng: random.Random, talks: list[list[int]]) -> list[int]:
    """A new conversation with one of two system prompts, or a known one: repeated, edited, or continued."""
    said = [rng.randrange(5, 512) for _ in range(rng.randrange(1, 30))]
    system = [rng.choice((11, 13))] * 2 + list(range(20, 60))
    if not talks or rng.random() < 0.25:
        return system + said
    talk = rng.choice(talks[-12:])
    prompt = rng.choice((talk[:-6], talk[: rng.randrange(1, len(talk))] + said, talk + said))
    return prompt if len(prompt) < 220 else system + said


def test_reused_prefixes_give_the_same_tokens(engine_of: Callable[[str], ChatEngine]) -> None:
    """200 requests of conversations with edits and retries, four at once, each compared with an engine without records.
    The windows are 32, a ring has 48 positions: rolling back more than a chunk must prefill from the start."""
    engine = engine_of("gemma3")
    rng = random.Random(5)
    talks: list[list[int]] = []
    prompts, answers, asked = [], [], 0
    before = engine.stats()
    for _ in range(50):
        four = [next_prompt(rng, talks) for _ in range(4)]
        four_answers = engine.generate(four, ANSWER)
        talks += [prompt + answer for prompt, answer in zip(four, four_answers, strict=True)]
        prompts, answers = prompts + four, answers + four_answers
        asked += sum(map(len, four))
    after = engine.stats()
    reused = after.reused_tokens - before.reused_tokens
    assert reused > asked / 4
    calls = after.prefill_calls - before.prefill_calls
    fresh_calls = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        engine._loop.scheduler.slots.forget_all()
        assert engine.generate([prompt], ANSWER) == [answer]
        fresh_calls += -(-len(prompt) // engine.runner.prefill_chunks[0])
    assert calls < 0.8 * fresh_calls


def test_a_follow_up_prefills_only_what_is_new(engine_of: Callable[[str], ChatEngine]) -> None:
    """150 tokens of conversation are in the cache; the next turn's 10 tokens take one call, and its stream reports the
    reused tokens. The newest token of an answer is not in the cache, so it is prefilled with them."""
    engine = engine_of("llama")
    rng = random.Random(9)
    prompt = [rng.randrange(5, 512) for _ in range(150)]
    answer = engine.generate([prompt], ANSWER)[0]
    before = engine.stats()
    stream = engine.stream([*prompt, *answer, *range(30, 40)], ANSWER)
    tokens = list(stream)
    after = engine.stats()
    assert len(tokens) == 6
    assert after.prefill_calls - before.prefill_calls == 1
    assert after.reused_tokens - before.reused_tokens == stream.reused_tokens == 155


def test_a_shared_system_prompt_is_prefilled_once(engine_of: Callable[[str], ChatEngine]) -> None:
    """Four requests with the same first 96 tokens, at the same moment: one computes them, the others copy."""
    engine = engine_of("llama")
    engine._loop.scheduler.slots.forget_all()
    system = [7, *range(100, 195)]
    prompts = [[*system, user, user + 1] for user in (300, 310, 320, 330)]
    before = engine.stats().prefill_calls
    together = engine.generate(prompts, ANSWER)
    assert engine.stats().prefill_calls - before == 7 + 3
    for prompt, answer in zip(prompts, together, strict=True):
        engine._loop.scheduler.slots.forget_all()
        assert engine.generate([prompt], ANSWER) == [answer]


def test_clients_share_no_prefixes_but_public_ones(engine_of: Callable[[str], ChatEngine]) -> None:
    """How many tokens were reused, and the time that it saved, told one client what another had asked."""
    engine = engine_of("llama")
    engine._loop.scheduler.slots.forget_all()
    prompt = [7, *range(100, 195)]

    def ask(client: str, public: int = 0) -> tuple[list[int], int, int]:
        """The answer, the tokens reused, and the prefill calls, which take the time."""
        before, answers = engine.stats().prefill_calls, SimpleQueue[Progress]()
        engine.submit(prompt, ANSWER, answers.put, client=client, public=public)
        parts = [answers.get()]
        while not parts[-1].finished:
            parts.append(answers.get())
        tokens = [token for part in parts for token in part.tokens]
        return tokens, max(part.reused_tokens for part in parts), engine.stats().prefill_calls - before

    answer, reused, calls = ask("key:a")
    assert (reused, calls) == (0, 6)
    assert ask("key:b") == (answer, 0, 6), "as if it were the first to ask"
    assert ask("key:a") == (answer, 95, 1)
    assert ask("key:c", public=64) == (answer, 64, 2), "the operator's system prompt"
    assert ask("key:d", public=64) == (answer, 64, 2)


def test_clients_take_turns_in_the_queue(engine_of: Callable[[str], ChatEngine]) -> None:
    """One with thirty requests does not hold up one with one."""
    engine = engine_of("llama")
    ended: list[str] = []
    done = Event()

    def deliver_to(name: str) -> Callable[[Progress], None]:
        def deliver(progress: Progress) -> None:
            if progress.finished:
                ended.append(name)
                if len(ended) == 31:
                    done.set()

        return deliver

    with engine._loop._changed:  # all are there before the first is admitted
        for number in range(30):
            engine.submit([5, 6, 7], ANSWER, deliver_to(f"a{number}"), client="a")
        last = engine.submit([5, 6, 7], ANSWER, deliver_to("b"), client="b")
        assert last.place == 2
    assert done.wait(60)
    assert ended.index("b") < 6
