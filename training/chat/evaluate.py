"""Scores a chat model, per skill, on the held-out conversations of tests/embedded/chat_held_out.json.

A conversation counts as right when every checked reply in it is right; the replies in between are the model's own.
`score` works with any function from messages to a reply; `BatchedReplies` is a fast one for a torch model.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HELD_OUT = Path(__file__).parents[2] / "tests" / "embedded" / "chat_held_out.json"
STRANGERS = HELD_OUT.with_name("chat_strangers.json")
Messages = list[dict[str, str]]


def is_right(reply: str, check: dict) -> bool:
    """Whether a reply passes: all and any (regular expressions, case ignored), none of them, the last number, lines,
    sentences."""

    def found(pattern: str) -> bool:
        return re.search(pattern, reply, re.IGNORECASE | re.DOTALL) is not None

    numbers = re.findall(r"-?\d+", re.sub(r"(?<=\d)-|- ", " ", reply))
    return (
        all(found(pattern) for pattern in check.get("all", []))
        and ("any" not in check or any(found(pattern) for pattern in check["any"]))
        and not any(found(pattern) for pattern in check.get("none", []))
        and ("number" not in check or (bool(numbers) and int(numbers[-1]) == check["number"]))
        and ("lines" not in check or len(reply.strip().splitlines()) == check["lines"])
        and ("sentences" not in check or len(re.findall(r"[.!?](?=\s|$)", reply)) >= check["sentences"])
        and reply.strip()[-1:] in (".", "!", "?", "\"")
    )  # fmt: skip


def transcripts(reply_many: Callable[[list[Messages]], list[str]], path: Path = HELD_OUT) -> list[dict]:
    """Every held-out conversation played: skill, messages, right. All conversations advance together, turn by turn."""
    talks = json.loads(path.read_text(encoding="utf-8"))
    played = [{"skill": talk["skill"], "messages": [], "right": True} for talk in talks]
    for at in range(max(len(talk["turns"]) for talk in talks)):
        open_ones = [
            (talk["turns"][at], state) for talk, state in zip(talks, played, strict=True) if at < len(talk["turns"])
        ]
        for turn, state in open_ones:
            state["messages"].append({"role": "user", "content": turn["user"]})
        replies = reply_many([state["messages"] for _, state in open_ones])
        for (turn, state), reply in zip(open_ones, replies, strict=True):
            state["messages"].append({"role": "assistant", "content": reply})
            if len(turn) > 1 and not is_right(reply, turn):
                state["right"] = False
    return played


def shares(played: list[dict]) -> dict[str, float]:
    """Share of right conversations per skill, and "all"."""
    skills = sorted({state["skill"] for state in played})
    rows = {skill: [state["right"] for state in played if state["skill"] == skill] for skill in skills}
    rows["all"] = [state["right"] for state in played]
    return {skill: round(sum(right) / len(right), 4) for skill, right in rows.items()}


def score(reply_fn: Callable[[Messages], str]) -> dict[str, float]:
    """Share of held-out conversations that are right, per skill and in "all".

    `reply_fn`: messages (dicts of role and content, the last one the user's) -> the assistant's reply.
    """
    return shares(transcripts(lambda talks: [reply_fn(messages) for messages in talks]))


@dataclass(kw_only=True)
class BatchedReplies:
    """Replies of the model in a folder, many conversations at once. `temperature` 0 is greedy."""

    folder: Path
    temperature: float = 0.0
    seed: int = 0
    batch: int = 64

    def __post_init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval()

    def __call__(self, talks: Sequence[Messages]) -> list[str]:
        torch.manual_seed(self.seed)
        order = sorted(range(len(talks)), key=lambda at: sum(len(m["content"]) for m in talks[at]))
        replies = [""] * len(talks)
        for start in range(0, len(order), self.batch):
            chosen = order[start : start + self.batch]
            texts = [
                self.tokenizer.apply_chat_template(talks[at], tokenize=False, add_generation_prompt=True)
                for at in chosen
            ]
            inputs = self.tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
            sampled = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
            if self.temperature:
                sampled = {"do_sample": True, "temperature": self.temperature}
            with torch.inference_mode():
                out = self.model.generate(**inputs, max_new_tokens=140, **sampled)
            for at, row in zip(chosen, out[:, inputs["input_ids"].shape[1] :], strict=True):
                replies[at] = self.tokenizer.decode(row, skip_special_tokens=True).strip()
        return replies
