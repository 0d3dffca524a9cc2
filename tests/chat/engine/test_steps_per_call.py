"""The number of steps of a decode call, from measured times."""

import math

import pytest

from hfjax_app.chat.engine.steps_per_call import CALL_S, FIRST_STEPS, LONGEST_CALL_S, StepsPerCall


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
