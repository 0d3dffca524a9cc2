"""Steps of a decode call from the time that they take."""

import math

import pytest

from hfjax_app.chat.engine.steps_per_call import CALL_S, FIRST_STEPS, LONGEST_CALL_S, StepsPerCall


def test_fast_models_take_many_steps_a_call_and_slow_ones_few() -> None:
    pace = StepsPerCall(16)
    assert pace.steps == FIRST_STEPS
    pace.observe(4, 0.004)
    assert pace.steps == 16
    for _ in range(60):
        pace.observe(2, CALL_S / 2)
    assert pace.steps in (3, 4)
    for _ in range(60):
        pace.observe(1, 2.0)
    assert pace.steps == 1
    pace.observe(0, 5.0)
    assert pace.steps == 1
    assert StepsPerCall(2).steps == 2


@pytest.mark.parametrize(("call_s", "step_s"), [(0.03, 0.03), (0.012, 0.03), (0.06, 0.01), (0.0, 0.05)])
def test_what_a_call_costs_by_itself_is_not_taken_for_its_steps(call_s: float, step_s: float) -> None:
    """Eight users of a 135M model on two cores: copying their rows took as long as a step, so that four steps a call
    became three, three looked slower still, and in the end every call made one."""
    pace, taken = StepsPerCall(16), []
    for _ in range(100):
        taken.append(pace.steps)
        pace.observe(taken[-1], call_s + step_s * taken[-1])
    fits = int((CALL_S - call_s) / step_s)
    worth = math.ceil(9 * call_s / step_s)  # a tenth of the call's time is its own
    best = min(16, max(fits, min(worth, int((LONGEST_CALL_S - call_s) / step_s))))
    assert min(taken[20:]) >= best - 1
    assert max(taken[20:]) <= best + 1


def test_an_own_cost_is_remembered_while_calls_are_alike() -> None:
    """Eight users of a 135M model on a slow machine: only one step fits the usual time, and a second half of it would
    be the call's own cost."""
    call_s, step_s, pace = 0.05, 0.08, StepsPerCall(16)
    for _ in range(20):  # while prompts are read
        pace.observe(1, call_s + step_s)
    assert pace.steps == 2, "one more, to tell the two apart"
    for steps in (2, *[1] * 100):
        pace.observe(steps, call_s + step_s * steps)
    assert pace.steps == int((LONGEST_CALL_S - call_s) / step_s) == 4
