"""Trains one chat model from nothing: Muon for the matrices, AdamW for embeddings and norms, an average of the weights
is kept.

The forward pass is the unmodified transformers class, under bfloat16 autocast. The result depends on the seed and
the number of steps, not on time.
"""

import copy
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from training.checkpoint import Checkpoint

from .architectures import Architecture
from .batches import IGNORED, batches
from .tokenizer import train_tokenizer


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase of a training: `steps` are taken; the rate falls linearly and would reach 0 after `horizon` steps.

    `number`: which data (mixes.py); a plan may leave numbers out.
    `blend`: share of the phase's first weights in what it leaves (Wortsman et al., 2022, "Model soups"): a short phase
    then adds what is new and forgets less.
    """

    number: int
    steps: int
    horizon: int
    peak: float = 1.0
    decay_from: float = 0.35
    warm_up: int = 60
    seed: int = 1
    blend: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How long and how fast. `tokens`: positions in a batch; `save_every`: steps between two checkpoints."""

    phases: tuple[Phase, ...]
    tokens: int = 4096
    matrix_rate: float = 0.02
    other_rate: float = 0.004
    average: float = 0.98
    save_every: int = 50

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)


PLANS = {
    "chat-gemma": TrainingPlan(
        phases=(
            Phase(number=1, steps=700, horizon=1200),
            Phase(number=2, steps=300, horizon=420, peak=0.64, decay_from=0.1, warm_up=20),
            Phase(number=3, steps=300, horizon=300, peak=0.6, decay_from=0.1, warm_up=20),
            Phase(number=4, steps=290, horizon=290, peak=0.6, decay_from=0.3, warm_up=20, seed=2),
            Phase(number=5, steps=900, horizon=900, peak=0.8, decay_from=0.2, warm_up=20, seed=3),
            Phase(number=7, steps=450, horizon=450, peak=0.8, decay_from=0.2, warm_up=20, seed=5, blend=0.5),
            Phase(number=8, steps=600, horizon=600, peak=0.8, decay_from=0.2, warm_up=20, seed=6, blend=0.5),
        )
    ),
    "chat-llama": TrainingPlan(
        phases=(
            Phase(number=1, steps=400, horizon=850),
            Phase(number=2, steps=250, horizon=380, peak=0.8, decay_from=0.1, warm_up=20),
            Phase(number=3, steps=340, horizon=340, peak=0.8, decay_from=0.1, warm_up=20),
            Phase(number=4, steps=350, horizon=350, peak=0.8, decay_from=0.3, warm_up=20, seed=2),
            Phase(number=5, steps=2400, horizon=2400, peak=1.0, decay_from=0.3, warm_up=20, seed=3),
            Phase(number=6, steps=750, horizon=750, peak=0.8, decay_from=0.2, warm_up=20, seed=4),
            Phase(number=7, steps=450, horizon=450, peak=0.8, decay_from=0.2, warm_up=20, seed=5, blend=0.5),
            Phase(number=8, steps=600, horizon=600, peak=0.8, decay_from=0.2, warm_up=20, seed=6, blend=0.6),
        )
    ),
}


def rate_at(step: int, phase: Phase) -> float:
    """Share of the full learning rate: warm-up, constant, then linear."""
    rise = (step + 1) / phase.warm_up
    fall = (phase.horizon - step) / (phase.horizon * (1 - phase.decay_from))
    return phase.peak * max(0.0, min(1.0, rise, fall))


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
    for loaded in ("is_local", "local_files_only"):  # not properties of the tokenizer
        tokenizer.init_kwargs.pop(loaded, None)
    tokenizer.save_pretrained(fresh)
    (fresh / "model.safetensors").chmod(0o644)
    fresh.rename(folder)


def loss_of(model: PreTrainedModel, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of the labelled tokens; logits are computed for those positions only."""
    wanted = labels[:, 1:] != IGNORED
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[wanted]
    return functional.cross_entropy(model.lm_head(hidden).float(), labels[:, 1:][wanted])


def train(architecture: Architecture, plan: TrainingPlan, work: Path) -> Path:
    """Trains a model: tokenizer, phase 1 from fresh weights, each later one from what the one before it left.

    What a phase leaves is kept in a folder of `work`, and every `plan.save_every` steps all that the phase under way
    needs: a second call goes on from there, to the same weights. Returns the folder of the last phase.
    """
    work.mkdir(parents=True, exist_ok=True)
    folder = None
    for phase in plan.phases:
        before, folder = folder, work / f"phase-{phase.number}"
        if folder.exists():
            continue
        torch.manual_seed(phase.seed)
        if before is None:
            tokenizer = train_tokenizer(architecture.chat_format)
            model = architecture.build(tokenizer)
        else:
            tokenizer = AutoTokenizer.from_pretrained(before)
            model = AutoModelForCausalLM.from_pretrained(before, dtype=torch.float32)
        checkpoint = Checkpoint(work / "checkpoint.pt")
        average = _train_phase(architecture, plan, phase, tokenizer, model.train(), checkpoint)
        save(folder, model, tokenizer, average)
        checkpoint.remove()
    return folder


def _optimizers(architecture: Architecture, model: PreTrainedModel, plan: TrainingPlan) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for the rest, with rates in proportion to the size of what they change."""
    embedding, last_norm, scale = model.model.embed_tokens.weight, model.model.norm.weight, architecture.embedding_scale
    groups = [
        {"params": [p for p in model.parameters() if p.ndim == 1 and p is not last_norm], "lr": plan.other_rate},
        {"params": [embedding], "lr": plan.other_rate * scale},
        {"params": [last_norm], "lr": plan.other_rate / scale},
    ]
    matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embedding]
    return [
        torch.optim.Muon(matrices, lr=plan.matrix_rate, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _train_phase(
    architecture: Architecture,
    plan: TrainingPlan,
    phase: Phase,
    tokenizer: PreTrainedTokenizerFast,
    model: PreTrainedModel,
    checkpoint: Checkpoint,
) -> dict[str, torch.Tensor]:
    """The training loop, from the checkpoint where there is one. Returns the weights that the phase leaves, by name."""
    model.set_attn_implementation("eager")  # on CPU faster than its fused kernel for short rows
    optimizers = _optimizers(architecture, model, plan)
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    clipped = [p for group in optimizers[1].param_groups for p in group["params"]]
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    first = {name: p.detach().clone() for name, p in model.named_parameters()} if phase.blend else {}
    begun, spoken, running = 0, 0, 0.0
    if kept := checkpoint.load():
        begun, running, average = kept["step"], kept["loss"], kept["average"]
        model.load_state_dict(kept["model"])
        for optimizer, state in zip(optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(state)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    source = batches(tokenizer, architecture.chat_format, seed=phase.seed, tokens=plan.tokens, phase=phase.number)
    for _ in range(begun):
        next(source)
    started = time.process_time()
    for step in range(begun, phase.steps):
        ids, labels = next(source)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(clipped, 1.0)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * rate_at(step, phase)
        for optimizer in optimizers:
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
                f"{architecture.name} phase {phase.number} step {step + 1}/{phase.steps} loss {running:.3f} "
                f"{spoken / spent:.0f} tokens/s {spent / 60:.1f} min",
                flush=True,
            )
        if step % plan.save_every == plan.save_every - 1:
            checkpoint.save(
                step=step + 1,
                loss=running,
                average=average,
                model=model.state_dict(),
                optimizers=[optimizer.state_dict() for optimizer in optimizers],
            )
    if first:
        return {name: average[name].lerp(first[name], phase.blend) for name in average}
    return average
