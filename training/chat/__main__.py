"""`python -m training.chat [names]`: trains the chat models, scores them on the held-out conversations and writes their
model cards.

Checkpoints are in the work folder; a second run resumes from them. The models' folders change when the training is
done.
"""

import argparse
import json
import shutil
import warnings
from pathlib import Path

import torch

from .architectures import ARCHITECTURES
from .card import write_card
from .evaluate import STRANGERS, BatchedReplies, shares, transcripts
from .train import PLANS, train

EMBEDDED = Path(__file__).parents[2] / "hfjax_app" / "embedded"


def main() -> None:
    names = [architecture.name for architecture in ARCHITECTURES]
    parser = argparse.ArgumentParser(prog="python -m training.chat", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"models to train, of {', '.join(names)} (default: all)")
    parser.add_argument("--out", type=Path, default=EMBEDDED, help="folder that gets one folder a model")
    parser.add_argument("--work", type=Path, default=Path("out/chat"), help="where unfinished work is kept")
    parser.add_argument("--only-score", action="store_true", help="no training: score what is in the folder")
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of torch; the result depends on it in the last digits"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(names)
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore", category=FutureWarning)
    for architecture in ARCHITECTURES:
        if arguments.names and architecture.name not in arguments.names:
            continue
        folder = arguments.out / architecture.name
        plan = PLANS[architecture.name]
        if not arguments.only_score:
            shutil.copytree(train(architecture, plan, arguments.work / architecture.name), folder, dirs_exist_ok=True)
        greedy = shares(transcripts(BatchedReplies(folder=folder)))
        sampled = shares(transcripts(BatchedReplies(folder=folder, temperature=0.7)))
        strangers = shares(transcripts(BatchedReplies(folder=folder), STRANGERS))
        write_card(folder, architecture, plan, greedy=greedy, sampled=sampled, strangers=strangers)
        print(
            json.dumps(
                {
                    "model": architecture.name,
                    "held_out_greedy": greedy,
                    "held_out_temperature_0.7": sampled,
                    "strangers_greedy": strangers,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
