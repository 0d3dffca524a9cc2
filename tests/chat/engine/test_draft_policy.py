"""When drafting is worth it, decided from times and from what drafts would have done."""

from itertools import cycle, islice

import pytest

from hfjax_app.chat.engine.draft_policy import MARGIN, PATIENCE, REFRESH, DraftPolicy, DraftTracker

ROWS = 256


def recall_of(right: float) -> DraftTracker:
    recall = DraftTracker([1], 7)
    recall.accepted = right
    return recall


def measured(cost: float) -> DraftPolicy:
    speculation = DraftPolicy()
    for _ in range(3):
        speculation.observe(ROWS, steps=4, drafted=0, seconds=0.04)
        speculation.observe(ROWS, steps=4, drafted=2, seconds=0.02 + 2 * 0.01 * cost)
    return speculation


def decisions(speculation: DraftPolicy, right: float, calls: int) -> list[bool]:
    return [speculation.wants(recall_of(right), ROWS) for _ in range(calls)]


def test_a_text_that_repeats_itself_is_recalled() -> None:
    """A cycle of five tokens: every draft of seven is right, and the mean goes towards seven."""
    text = list(islice(cycle([11, 12, 13, 14, 15]), 200))
    recall = DraftTracker(text[:10], 7)
    recall.extend(text[10:60])
    assert recall.drafts == 50 // 8
    assert 4 < recall.accepted < 7
    recall.extend(text[10:])
    assert recall.accepted > 6.9


def test_a_text_without_repetition_has_nothing_to_recall() -> None:
    recall = DraftTracker(range(500), 7)
    recall.extend(range(500, 900))
    assert (recall.drafts, recall.accepted) == (0, 0.0)


def test_drafts_that_go_wrong_at_once_bring_the_mean_down() -> None:
    recall = DraftTracker([1, 2, 3, 1, 2], 7)
    recall.accepted = 3.0
    recall.extend([9, 1, 2, 8, 1, 2, 7])
    assert recall.drafts == 3
    assert recall.accepted == pytest.approx(3 * 0.8**3)


def test_the_cost_is_what_a_round_with_a_draft_takes_and_one_slow_call_changes_little() -> None:
    speculation = measured(cost=2.5)
    assert speculation.cost(ROWS) == pytest.approx(2.5)
    speculation.observe(ROWS, steps=1, drafted=1, seconds=30.0)
    speculation.observe(ROWS, steps=1, drafted=0, seconds=30.0)
    speculation.observe(ROWS, steps=0, drafted=0, seconds=30.0)
    assert speculation.cost(ROWS) == pytest.approx(2.5)
    assert speculation.cost(1024) is None
    assert measured(cost=0.2).cost(ROWS) == 1.0


def test_nothing_is_drafted_before_a_plain_step_was_measured_or_without_a_hit() -> None:
    speculation = DraftPolicy()
    assert decisions(speculation, 7.0, 3) == [False] * 3
    speculation.observe(ROWS, steps=4, drafted=0, seconds=0.04)
    assert decisions(speculation, 0.0, 5000) == [False] * 5000
    assert decisions(speculation, 0.5, 1) == [True]


def test_drafting_begins_over_break_even_and_ends_below_it() -> None:
    speculation = measured(cost=2.5)
    assert decisions(speculation, 1.5 + MARGIN / 2, 1) == [False]
    assert decisions(speculation, 1.5 + 2 * MARGIN, 1) == [True]
    assert decisions(speculation, 1.5 + MARGIN / 2, 3) == [True] * 3
    assert decisions(speculation, 1.5 - MARGIN / 2, 1) == [False]


def test_plain_steps_are_measured_again_now_and_then() -> None:
    made = decisions(measured(cost=1.1), 4.0, 10 * REFRESH)
    assert made.count(False) == 9
    assert made[0]


def test_a_cost_that_was_too_high_is_measured_again_ever_more_seldom() -> None:
    """Where drafts would be right and are too dear, the first retries come soon and the later ones hardly ever."""
    made = decisions(measured(cost=9.0), 6.0, 16 * PATIENCE[1])
    assert made.index(True) == PATIENCE[0] - 1
    assert made.count(True) < 24
    assert decisions(measured(cost=9.0), 0.9, 5000) == [False] * 5000
