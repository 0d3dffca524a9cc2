"""The words that matter most over many texts."""

import pytest

from hfjax_app.limits import WORDS_MAX_TEXTS
from hfjax_app.sentiment import Explanation, Prediction, SentimentClassifier
from hfjax_app.sentiment.bulk import Row
from hfjax_app.sentiment.word_ranking import WordRanking, explained, sample


def explanation(*pieces: tuple[str, float | None]) -> Explanation:
    return Explanation(label="positive", pieces=pieces, logit=0.0, baseline=0.0)


def test_a_ranking_by_hand() -> None:
    """Case does not matter, a word's contributions in one text are summed, marks are no words, rare ones rank lower."""
    ranking = WordRanking()
    ranking.add(explanation(("Great", 1.0), (" ", None), ("great", 0.5), ("!", 9.0), ("🙂", 0.25), ("...", 5.0)))
    ranking.add(explanation(("great", 0.5), (" ", None), ("dull", -1.5), (" ", None), ("cut", None)))
    ranking.add(explanation(("great", 1.0)))
    words = ranking.strongest(10)
    assert [(word.text, word.mean, word.texts) for word in words] == [
        ("great", 1.0, 3),
        ("dull", -1.5, 1),
        ("🙂", 0.25, 1),
    ]
    assert [word.weight for word in words] == pytest.approx([0.6, -0.5, 0.25 / 3])
    assert ranking.texts == 3
    assert ranking.strongest(1) == words[:1]


def test_a_sample_is_bounded_and_the_same_each_time() -> None:
    good = Prediction(scores={"positive": 1.0})
    rows = [Row(number=at, text=f"w{at}", prediction=good if at % 2 else None) for at in range(3 * WORDS_MAX_TEXTS)]
    texts = sample(rows)
    assert len(texts) == len(set(texts)) == WORDS_MAX_TEXTS
    assert all(int(text[1:]) % 2 for text in texts)
    assert texts == sample(rows)
    assert sample(rows[:1]) == []


def test_it_compiles_nothing_and_lets_others_go_first(classifier: SentimentClassifier, compilations) -> None:
    """Words of a list are explained between the calls of single texts, which never wait for more than one."""
    texts = ["w1", "w7", "w40"]
    ranking = WordRanking()
    with compilations() as seen:
        for each in explained(classifier, texts, "positive"):
            ranking.add(each)
    assert seen == []
    assert ranking.texts == 3
    urgencies = []
    hold = classifier._semaphore.hold

    def watched(*, urgent: bool):
        urgencies.append(urgent)
        return hold(urgent=urgent)

    classifier._semaphore.hold = watched
    try:
        list(explained(classifier, texts[:1], "positive"))
        classifier.explain(texts[0], "positive")
    finally:
        classifier._semaphore.hold = hold
    assert (urgencies[0], urgencies[-1]) == (False, True)
