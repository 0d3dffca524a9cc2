"""Trains one chat model from nothing: Muon for the matrices, AdamW for embeddings and norms, an average of the weights
is kept.

The forward pass is the unmodified transformers class, under bfloat16 autocast. Everything follows from the seed and
the number of steps; the clock decides nothing.
"""

import copy
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from .architectures import Architecture
from .batches import IGNORED, batches
from .tokenizer import train_tokenizer


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How long and how fast. `tokens`: positions in a batch; `save_every`: steps between checkpoints."""

    steps: int = 1200
    tokens: int = 4096
    warm_up: int = 60
    decay_from: float = 0.35
    matrix_rate: float = 0.02
    other_rate: float = 0.004
    average: float = 0.98
    seed: int = 1
    save_every: int = 50


def rate_at(step: int, plan: TrainingPlan) -> float:
    """Share of the full learning rate: warm-up, constant, then linear to 0."""
    rise = (step + 1) / plan.warm_up
    fall = (plan.steps - step) / (plan.steps * (1 - plan.decay_from))
    return max(0.0, min(1.0, rise, fall))


def save(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, average: dict[str, torch.Tensor]
) -> None:
    """Writes the averaged weights as bfloat16 in Hugging Face format; the folder appears whole or not at all."""
    fresh = folder.with_name(folder.name + ".part")
    shutil.rmtree(fresh, ignore_errors=True)
    kept = copy.deepcopy(model)
    for name, weight in kept.named_parameters():
        weight.data.copy_(average[name])
    kept.to(torch.bfloat16).save_pretrained(fresh)
    tokenizer.save_pretrained(fresh)
    if (folder / "README.md").exists():
        shutil.copy(folder / "README.md", fresh)
    (fresh / "model.safetensors").chmod(0o644)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def loss_of(model: PreTrainedModel, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of the labelled tokens; logits are computed for those positions only."""
    wanted = labels[:, 1:] != IGNORED
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[wanted]
    return functional.cross_entropy(model.lm_head(hidden).float(), labels[:, 1:][wanted])


def train(architecture: Architecture, folder: Path, plan: TrainingPlan) -> None:
    """Trains tokenizer and model, and saves checkpoints and the end result in `folder`."""
    tokenizer = train_tokenizer(architecture.chat_format)
    torch.manual_seed(plan.seed)
    model = architecture.build(tokenizer).train()
    model.set_attn_implementation("eager")  # on CPU faster than its fused kernel for short rows
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [
        torch.optim.Muon(matrices, lr=plan.matrix_rate, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=plan.other_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    full_rates = [plan.matrix_rate, plan.other_rate]
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    started, spoken, running = time.process_time(), 0, 0.0
    source = batches(tokenizer, architecture.chat_format, seed=plan.seed, tokens=plan.tokens)
    for step in range(plan.steps):
        ids, labels = next(source)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer, rate in zip(optimizers, full_rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * rate_at(step, plan)
            optimizer.step()
            optimizer.zero_grad()
        keep = min(plan.average, step / (step + 10))
        for name, p in model.named_parameters():
            average[name].lerp_(p.detach(), 1 - keep)
        spoken += ids.numel()
        running = loss.item() if step == 0 else 0.95 * running + 0.05 * loss.item()
        if step % 20 == 19:
            spent = time.process_time() - started
            print(
                f"{architecture.name} step {step + 1}/{plan.steps} loss {running:.3f} "
                f"{spoken / spent:.0f} tokens/s {spent / 60:.1f} min",
                flush=True,
            )
        if step % plan.save_every == plan.save_every - 1 or step == plan.steps - 1:
            save(folder, model, tokenizer, average)
