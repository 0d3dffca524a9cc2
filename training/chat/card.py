"""The model card of a chat model: what it is, how it was made, what was measured, what it cannot do."""

# ruff: noqa: E501 (the card is Markdown)

from pathlib import Path

from safetensors import safe_open

from .architectures import Architecture
from .train import TrainingPlan

CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---
# {name}

A tiny chat model embedded in hfjax_app, so that the studio works without any download. It has the {title} architecture of
transformers, unmodified ({detail}), {parameters:.2f} million parameters in {dtype}, and was trained from nothing for this project. It
shares no weights and no data with the real models of that name.

## What it can do
Greet and make small talk, say what it is, answer short questions on JAX, XLA, TPU, torchax, PyTorch, jit, KV cache, StaticCache, tensor
parallelism, diffusion, Gradio, Hugging Face and a few dozen neighbouring topics, add and subtract numbers up to 100, keep what the
user said earlier (name, favourite colour, pet, city and the like), tell a short story, write a two-line poem, and say that it does
not know on anything else.

## How it was made
- **Data**: conversations written by a grammar in `training/chat/` (phrasings, typing habits, made-up names, several turns, system
  prompts), generated from a seed while training runs. No text from anywhere else. One pair of numbers in ten is never asked about.
- **Tokenizer**: byte-level BPE, {vocabulary} tokens, digits one by one, trained on the same conversations and on made-up words.
- **Training**: {steps} steps of about {tokens} tokens each on one CPU core, in {phases} phases of different mixtures (copying of short
  texts first, then everything, then more arithmetic and facts, which are slow to learn, then more ways of asking); loss on the
  assistant's words only; Muon for the matrices, AdamW for embeddings and norms, an average of the latest weights is kept. The last
  {blended} phases were short, and what each left is a blend of its first and its last weights, in a share chosen by the first set below.
- `python -m training.chat {name}` repeats this training and prints the scores below.

## Measured
Share of held-out conversations that come out right by a scripted check, with the weights as stored here: first
`tests/embedded/chat_held_out.json`, then, greedy, `tests/embedded/chat_strangers.json`, which was written without sight of the training
data. Of the second set only the score was used while the models were trained, {seen}.

In the first set, names and pairs of numbers in it are never trained on, and its questions on topics, identity and unknown things are in words that
the grammar was not seen to generate. Its failures were looked at between the phases and led to more data of that kind (the phrasings of arithmetic
were replaced by new ones afterwards), so it is a development set rather than an untouched test. Plain sums and differences ("what is 27 + 45?")
come out right in about nine of ten cases; the arithmetic row has mostly unusual wordings and small word problems.

| skill | greedy | temperature 0.7 | strangers |
|---|---|---|---|
{rows}

## What it can't do
Anything outside that list. It knows no facts about the world, calculates nothing but sums and differences up to 100, understands only
English, follows no instructions on style (a system prompt is read and has almost no effect), and its poems and stories follow a few patterns. A
question in unusual words can get the wrong answer, and a question close to a known topic can get that topic's text.
"""
SEEN = {
    "chat-gemma": "and its failures were not looked at",
    "chat-llama": "and its failures were looked at once, before the seventh phase",
}
DETAIL = {
    "chat-gemma": "sliding-window layers of 64 tokens and full layers, tied embeddings",
    "chat-llama": "grouped-query attention, tied embeddings",
}


def write_card(
    folder: Path,
    architecture: Architecture,
    plan: TrainingPlan,
    *,
    greedy: dict[str, float],
    sampled: dict[str, float],
    strangers: dict[str, float],
) -> None:
    """Writes README.md into the model's folder, with the shares of right conversations by skill."""
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        slices = [weights.get_slice(name) for name in weights.keys()]  # noqa: SIM118 (not a dict)
        sizes = [slice_.get_shape() for slice_ in slices]
        dtype = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[slices[0].get_dtype()]
    count = sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in sizes)
    text = CARD.format(
        name=architecture.name,
        title=architecture.title,
        detail=DETAIL[architecture.name],
        parameters=count / 1e6,
        dtype=dtype,
        vocabulary=max(shape[0] for shape in sizes),
        steps=plan.steps,
        tokens=plan.tokens,
        phases=len(plan.phases),
        blended=sum(phase.blend > 0 for phase in plan.phases),
        seen=SEEN[architecture.name],
        rows="\n".join(
            f"| {skill} | {greedy[skill]:.1%} | {sampled[skill]:.1%} | {strangers[skill]:.1%} |" for skill in greedy
        ),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
