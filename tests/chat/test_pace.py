"""Steps of a decode call from the time that they take."""

from hfjax_app.chat.pace import FIRST_STEPS, Pace


def test_fast_models_take_many_steps_a_call_and_slow_ones_few() -> None:
    pace = Pace(16)
    assert pace.steps == FIRST_STEPS
    pace.observe(4, 0.004)
    assert pace.steps == 16
    for _ in range(30):
        pace.observe(2, 0.05)
    assert pace.steps in (3, 4)
    for _ in range(30):
        pace.observe(1, 2.0)
    assert pace.steps == 1
    pace.observe(0, 5.0)
    assert Pace(2).steps == 2
