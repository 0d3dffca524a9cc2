"""Trains the classifier on the CPU: AdamW, one cycle of the learning rate, batches of texts of similar length.

Sentences are short, yet a text may have 512 tokens: half of the batches begin at a random position, so that all of the
(fixed, sinusoidal) positions are seen.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import torch
from torch.nn.functional import cross_entropy
from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedTokenizerFast

from training.sentiment import lexicon
from training.sentiment import tokenizer as wordpiece
from training.sentiment.corpus import HELD_OUT, LABELS, PLAIN, build_grammar, read_labelled, texts
from training.sentiment.grammar import Grammar


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of the training. With the grammar and the lexicons they determine the result."""

    seed: int = 7
    examples: int = 480_000
    batch: int = 64
    learning_rate: float = 1.1e-3
    warmup: float = 0.06
    weight_decay: float = 0.02
    label_smoothing: float = 0.12
    dropout: float = 0.1
    vocabulary: int = 11_000
    pieces: int = 2_400
    least: int = 4
    counted: int = 150_000
    dim: int = 128
    hidden: int = 384
    layers: int = 3
    heads: int = 4
    split_share: float = 0.05
    valence_scale: float = 0.01
    polish_examples: int = 80_000
    polish_rate: float = 4e-4
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class Example:
    """Token ids of one text and the index of its label."""

    ids: list[int]
    label: int


def encode(
    pairs: list[tuple[str, str]], tokenizer: PreTrainedTokenizerFast, recipe: Recipe, rng: Random
) -> list[Example]:
    """Token ids; a small share of the texts is split into pieces."""
    whole, split = tokenizer.backend_tokenizer, wordpiece.only_pieces(tokenizer, recipe.pieces)
    chosen = [rng.random() < recipe.split_share for _ in pairs]
    examples = []
    for start in range(0, len(pairs), 10_000):
        part = [text for _, text in pairs[start : start + 10_000]]
        encodings = zip(part, whole.encode_batch(part), chosen[start : start + 10_000], strict=True)
        examples += [(split.encode(text).ids if pick else encoding.ids) for text, encoding, pick in encodings]
    return [
        Example(ids=ids[: wordpiece.MAX_LENGTH], label=LABELS.index(label))
        for ids, (label, _) in zip(examples, pairs, strict=True)
    ]


def batches(
    examples: list[Example], recipe: Recipe, rng: Random
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(ids, mask, labels), int64: [batch, length], [batch, length], [batch]. Pools of 50 batches go by length."""
    rng.shuffle(examples)
    pool = 50 * recipe.batch
    for start in range(0, len(examples), pool):
        ordered = sorted(examples[start : start + pool], key=lambda example: len(example.ids))
        groups = [ordered[index : index + recipe.batch] for index in range(0, len(ordered), recipe.batch)]
        rng.shuffle(groups)
        for group in groups:
            length = max(len(example.ids) for example in group)
            ids = torch.tensor([example.ids + [0] * (length - len(example.ids)) for example in group])
            mask = torch.tensor([[1] * len(example.ids) + [0] * (length - len(example.ids)) for example in group])
            yield ids, mask, torch.tensor([example.label for example in group])


def build_model(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> DistilBertForSequenceClassification:
    """Random weights, except that the first coordinates of an opinion word's vector start with its valence."""
    config = DistilBertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=wordpiece.MAX_LENGTH,
        sinusoidal_pos_embds=True,
        n_layers=recipe.layers,
        n_heads=recipe.heads,
        dim=recipe.dim,
        hidden_dim=recipe.hidden,
        dropout=recipe.dropout,
        attention_dropout=recipe.dropout,
        seq_classif_dropout=recipe.dropout,
        pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )
    model = DistilBertForSequenceClassification(config)
    table = model.distilbert.embeddings.position_embeddings.weight
    table.data.copy_(sinusoids(wordpiece.MAX_LENGTH, recipe.dim) * config.initializer_range * math.sqrt(2))
    table.requires_grad_(False)
    vocabulary = tokenizer.get_vocab()
    words = model.distilbert.embeddings.word_embeddings.weight.data
    for word, valence in lexicon.valences().items():
        index = vocabulary.get(word)
        if index is not None:
            words[index, : recipe.dim // 16] += recipe.valence_scale * valence
    return model


def sinusoids(positions: int, dim: int) -> torch.Tensor:
    """float32 [positions, dim] of Vaswani et al. (2017), section 3.5."""
    angles = torch.arange(positions)[:, None] / 10_000 ** (torch.arange(0, dim, 2) / dim)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).reshape(positions, dim)


def learning_rate(step: int, steps: int, recipe: Recipe) -> float:
    """Linear warm-up, then half a cosine down to 2 % of the peak."""
    warm = max(1, int(recipe.warmup * steps))
    if step < warm:
        return recipe.learning_rate * (step + 1) / warm
    return recipe.learning_rate * (0.02 + 0.98 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2)


def fit(model: DistilBertForSequenceClassification, examples: list[Example], recipe: Recipe) -> None:
    """One pass over the examples; prints a line every 200 steps."""
    rng = Random(recipe.seed + 1)
    decayed = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98), fused=True)
    positions = model.distilbert.embeddings.position_ids
    every = positions.clone()
    steps, begun, running, right = math.ceil(len(examples) / recipe.batch), time.monotonic(), 0.0, 0.0
    model.train()
    for step, (ids, mask, labels) in enumerate(batches(examples, recipe, rng)):
        offset = rng.randrange(wordpiece.MAX_LENGTH - ids.shape[1] + 1) if rng.random() < 0.5 else 0
        positions.copy_(every.roll(-offset, dims=1))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, recipe)
        logits = model(input_ids=ids, attention_mask=mask).logits
        loss = cross_entropy(logits, labels, label_smoothing=recipe.label_smoothing)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running += loss.item()
        right += (logits.argmax(-1) == labels).float().mean().item()
        if step % 200 == 199:
            seconds = time.monotonic() - begun
            print(
                f"step {step + 1}/{steps}  loss {running / 200:.4f}  right {right / 200:.3f}  {seconds:.0f} s",
                flush=True,
            )
            running = right = 0.0
    positions.copy_(every)
    model.eval()


def polish(
    model: DistilBertForSequenceClassification,
    tokenizer: PreTrainedTokenizerFast,
    grammar: Grammar,
    forbidden: list[str],
    recipe: Recipe,
) -> None:
    """A short second phase at a lower learning rate: half plainest sentences, half texts of all kinds."""
    half = recipe.polish_examples // 2
    pairs = list(texts(grammar, seed=recipe.seed + 2, count=half, forbidden=forbidden, start=PLAIN))
    pairs += texts(grammar, seed=recipe.seed + 3, count=half, forbidden=forbidden)
    examples = encode(pairs, tokenizer, recipe, Random(recipe.seed + 4))
    fit(model, examples, replace(recipe, learning_rate=recipe.polish_rate))


def save(model: DistilBertForSequenceClassification, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """float16 weights in safetensors; config.json names float32, the type to compute in: loading converts them."""
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"dtype": "float32"}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def train(folder: Path, recipe: Recipe) -> None:
    """Makes the corpus, the tokenizer and the model, and saves the result in `folder`."""
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    forbidden = [sentence for _, sentence in read_labelled(HELD_OUT)]
    grammar = build_grammar()
    pairs = list(texts(grammar, seed=recipe.seed, count=recipe.examples, forbidden=forbidden))
    print(f"{len(pairs)} texts, for example: {pairs[0][1]!r}", flush=True)
    counted = (text for _, text in pairs[: recipe.counted])
    tokenizer = wordpiece.build(counted, size=recipe.vocabulary, pieces=recipe.pieces, least=recipe.least)
    examples = encode(pairs, tokenizer, recipe, Random(recipe.seed))
    model = build_model(tokenizer, recipe)
    count = sum(parameter.numel() for parameter in model.parameters())
    tokens = sum(len(example.ids) for example in examples)
    print(f"vocabulary {len(tokenizer)}, parameters {count}, tokens {tokens}", flush=True)
    del pairs
    fit(model, examples, recipe)
    polish(model, tokenizer, grammar, forbidden, recipe)
    save(model, tokenizer, folder)
