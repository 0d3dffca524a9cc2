"""`python -m training.sentiment`: makes `hfjax_app/embedded/sentiment` again and prints its scores."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from training.sentiment.corpus import HELD_OUT, read_labelled
from training.sentiment.evaluate import evaluate
from training.sentiment.train import Recipe, train

EMBEDDED = Path(__file__).parents[2] / "hfjax_app" / "embedded" / "sentiment"


def main() -> None:
    recipe = Recipe()
    parser = argparse.ArgumentParser(prog="python -m training.sentiment", description=__doc__)
    parser.add_argument("--out", type=Path, default=EMBEDDED, help="folder of the model (the embedded one)")
    parser.add_argument("--examples", type=int, default=recipe.examples, help="texts to train on (%(default)s)")
    parser.add_argument("--seed", type=int, default=recipe.seed, help="seed of data and training (%(default)s)")
    parser.add_argument("--threads", type=int, default=recipe.threads, help="CPU threads (%(default)s)")
    parser.add_argument("--only-score", action="store_true", help="train nothing, score the model in the folder")
    parser.add_argument("--mistakes", action="store_true", help="list the sentences that the model gets wrong")
    arguments = parser.parse_args()
    if not arguments.only_score:
        chosen = replace(recipe, examples=arguments.examples, seed=arguments.seed, threads=arguments.threads)
        train(arguments.out, chosen)
    report = evaluate(arguments.out, read_labelled(HELD_OUT))
    if arguments.mistakes:
        for true, label, probability, text in report.mistakes:
            print(f"{true} taken for {label} ({probability:.2f}): {text}")
    print(report.line("sentiment, held-out sentences"))


if __name__ == "__main__":
    main()
