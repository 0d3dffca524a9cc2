"""Tokens a second over the last minutes, from times that the test makes up."""

from hfjax_app.chat.engine.stats import PERIOD_S, PERIODS, Throughput


def test_rates_are_means_over_periods_that_end_now() -> None:
    throughput = Throughput()
    for second in range(10, 20):
        throughput.add(3, second + 0.5)
        throughput.add(4, second + 0.9)
    rates = throughput.rates(20.0)
    assert len(rates) == PERIODS
    assert rates[-3:] == (0.0, 7.0, 7.0)
    assert throughput.rates(20.9) == rates, "the present second does not count before it is over"
    assert throughput.rates(22.0)[-3:] == (7 * 2 / PERIOD_S, 7.0, 7 * 3 / PERIOD_S)


def test_what_is_older_is_forgotten() -> None:
    throughput = Throughput()
    for second in range(5_000):
        throughput.add(1, second)
    assert len(throughput._tokens) <= 2 * PERIODS * PERIOD_S
    assert throughput.rates(5_000.0) == (1.0,) * PERIODS
    assert throughput.rates(10_000.0) == (0.0,) * PERIODS
