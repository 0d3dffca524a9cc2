"""How decode calls are made, from measured times: when drafting pays, and how many steps a call has."""

import math
from itertools import cycle, islice

import pytest

from hfjax_app.chat.engine.decode_calls import (
    CALL_S,
    FIRST_STEPS,
    LONGEST_CALL_S,
    MARGIN,
    PATIENCE,
    REFRESH,
    DraftPolicy,
    DraftTracker,
    StepsPerCall,
)

LENGTH = 256


def tracker_of(accepted: float) -> DraftTracker:
    tracker = DraftTracker([1], 7)
    tracker.accepted = accepted
    return tracker


def measured(cost: float) -> DraftPolicy:
    policy = DraftPolicy()
    for _ in range(3):
        policy.observe(LENGTH, steps=4, drafted=0, seconds=0.04)
        policy.observe(LENGTH, steps=4, drafted=2, seconds=0.02 + 2 * 0.01 * cost)
    return policy


def decisions(policy: DraftPolicy, accepted: float, calls: int) -> list[bool]:
    return [policy.should_draft(tracker_of(accepted), LENGTH) for _ in range(calls)]


def test_drafts_match_a_text_that_repeats_itself() -> None:
    """A cycle of five tokens: every draft of seven is accepted, and the mean approaches seven."""
    text = list(islice(cycle([11, 12, 13, 14, 15]), 200))
    tracker = DraftTracker(text[:10], 7)
    tracker.extend(text[10:60])
    assert tracker.drafts == 50 // 8
    assert 4 < tracker.accepted < 7
    tracker.extend(text[10:])
    assert tracker.accepted > 6.9


def test_a_text_without_repetition_gives_no_drafts() -> None:
    tracker = DraftTracker(range(500), 7)
    tracker.extend(range(500, 900))
    assert (tracker.drafts, tracker.accepted) == (0, 0.0)


def test_drafts_whose_first_token_is_wrong_lower_the_mean() -> None:
    tracker = DraftTracker([1, 2, 3, 1, 2], 7)
    tracker.accepted = 3.0
    tracker.extend([9, 1, 2, 8, 1, 2, 7])
    assert tracker.drafts == 3
    assert tracker.accepted == pytest.approx(3 * 0.8**3)


def test_the_cost_is_the_time_of_a_drafting_round_and_ignores_one_slow_call() -> None:
    policy = measured(cost=2.5)
    assert policy.cost(LENGTH) == pytest.approx(2.5)
    policy.observe(LENGTH, steps=1, drafted=1, seconds=30.0)
    policy.observe(LENGTH, steps=1, drafted=0, seconds=30.0)
    policy.observe(LENGTH, steps=0, drafted=0, seconds=30.0)
    assert policy.cost(LENGTH) == pytest.approx(2.5)
    assert policy.cost(1024) is None
    assert measured(cost=0.2).cost(LENGTH) == 1.0


def test_nothing_is_drafted_before_a_plain_step_was_measured_or_without_a_hit() -> None:
    policy = DraftPolicy()
    assert decisions(policy, 7.0, 3) == [False] * 3
    policy.observe(LENGTH, steps=4, drafted=0, seconds=0.04)
    assert decisions(policy, 0.0, 5000) == [False] * 5000
    assert decisions(policy, 0.5, 1) == [True]


def test_drafting_begins_over_break_even_and_ends_below_it() -> None:
    policy = measured(cost=2.5)
    assert decisions(policy, 1.5 + MARGIN / 2, 1) == [False]
    assert decisions(policy, 1.5 + 2 * MARGIN, 1) == [True]
    assert decisions(policy, 1.5 + MARGIN / 2, 3) == [True] * 3
    assert decisions(policy, 1.5 - MARGIN / 2, 1) == [False]


def test_plain_steps_are_measured_again_regularly() -> None:
    made = decisions(measured(cost=1.1), 4.0, 10 * REFRESH)
    assert made.count(False) == 9
    assert made[0]


def test_a_cost_that_was_too_high_is_measured_again_less_and_less_often() -> None:
    """Where drafts would be accepted but cost too much, the first retries come soon and the later ones rarely."""
    made = decisions(measured(cost=9.0), 6.0, 16 * PATIENCE[1])
    assert made.index(True) == PATIENCE[0] - 1
    assert made.count(True) < 24
    assert decisions(measured(cost=9.0), 0.9, 5000) == [False] * 5000


def test_fast_models_take_many_steps_a_call_and_slow_ones_few() -> None:
    steps_per_call = StepsPerCall(16)
    assert steps_per_call.steps == FIRST_STEPS
    steps_per_call.observe(4, 0.004)
    assert steps_per_call.steps == 16
    for _ in range(60):
        steps_per_call.observe(2, CALL_S / 2)
    assert steps_per_call.steps in (3, 4)
    for _ in range(60):
        steps_per_call.observe(1, 2.0)
    assert steps_per_call.steps == 1
    steps_per_call.observe(0, 5.0)
    assert steps_per_call.steps == 1
    assert StepsPerCall(2).steps == 2


@pytest.mark.parametrize(("fixed_s", "step_s"), [(0.03, 0.03), (0.012, 0.03), (0.06, 0.01), (0.0, 0.05)])
def test_the_fixed_cost_of_a_call_is_not_attributed_to_its_steps(fixed_s: float, step_s: float) -> None:
    """Eight users of a 135M model on two cores: copying their caches took as long as a step. Four steps per call became
    three, three looked slower still, and in the end every call made one."""
    steps_per_call, taken = StepsPerCall(16), []
    for _ in range(100):
        taken.append(steps_per_call.steps)
        steps_per_call.observe(taken[-1], fixed_s + step_s * taken[-1])
    fits = int((CALL_S - fixed_s) / step_s)
    worth = math.ceil(9 * fixed_s / step_s)  # a tenth of the call's time is its fixed cost
    best = min(16, max(fits, min(worth, int((LONGEST_CALL_S - fixed_s) / step_s))))
    assert min(taken[20:]) >= best - 1
    assert max(taken[20:]) <= best + 1


def test_the_fixed_cost_is_kept_while_all_calls_have_one_step() -> None:
    """Eight users of a 135M model on a slow machine: only one step fits the usual time, and the fixed cost of the call
    is more than half of a step."""
    fixed_s, step_s, steps_per_call = 0.05, 0.08, StepsPerCall(16)
    for _ in range(20):  # while prompts are prefilled
        steps_per_call.observe(1, fixed_s + step_s)
    assert steps_per_call.steps == 2, "a second step separates the fixed cost from the steps"
    for steps in (2, *[1] * 100):
        steps_per_call.observe(steps, fixed_s + step_s * steps)
    assert steps_per_call.steps == int((LONGEST_CALL_S - fixed_s) / step_s) == 4
