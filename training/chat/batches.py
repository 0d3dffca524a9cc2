"""Generated conversations as token batches: sorted by length within a pool so that little is padding, then shuffled.

Only the assistant's tokens are learned: every other position's label is IGNORED.
"""

import random
from collections.abc import Iterator
from itertools import islice

import torch
from transformers import PreTrainedTokenizerFast

from .conversations import conversations
from .tokenizer import ChatFormat

IGNORED = -100
POOL = 2048
LONGEST = 640


def labelled(ids: list[int], start: list[int], end: int) -> list[int]:
    """Labels of one conversation: each token after `start` up to and including `end`, the rest IGNORED."""
    labels, inside = [], False
    for at, token in enumerate(ids):
        labels.append(token if inside else IGNORED)
        if inside and token == end:
            inside = False
        elif ids[max(0, at + 1 - len(start)) : at + 1] == start:
            inside = True
    return labels


def encode(
    tokenizer: PreTrainedTokenizerFast, chat_format: ChatFormat, talks: list[list[dict[str, str]]]
) -> list[tuple[list[int], list[int]]]:
    """(ids, labels) of each conversation."""
    start = tokenizer(chat_format.reply_start, add_special_tokens=False)["input_ids"]
    end = tokenizer.convert_tokens_to_ids(chat_format.end_of_turn)
    texts = [tokenizer.apply_chat_template(talk, tokenize=False) for talk in talks]
    rows = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return [(row[:LONGEST], labelled(row, start, end)[:LONGEST]) for row in rows]


def batches(
    tokenizer: PreTrainedTokenizerFast, chat_format: ChatFormat, *, seed: int, tokens: int, phase: int = 1
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless batches of about `tokens` positions: ids and labels, int64 [rows, length], padded on the right."""
    source, rng = conversations(seed, phase=phase), random.Random(seed)
    while True:
        rows = sorted(
            encode(tokenizer, chat_format, [talk.messages for talk in islice(source, POOL)]),
            key=lambda row: len(row[0]),
        )
        groups, group = [], []
        for row in rows:
            if group and len(row[0]) * (len(group) + 1) > tokens:
                groups.append(group)
                group = []
            group.append(row)
        groups.append(group)
        rng.shuffle(groups)
        for group in groups:
            longest = max(len(ids) for ids, _ in group)
            length = -(-longest // 16) * 16  # few shapes: the allocator reuses its blocks
            ids = torch.full((len(group), length), tokenizer.pad_token_id)
            labels = torch.full((len(group), length), IGNORED)
            for at, (row, wanted) in enumerate(group):
                ids[at, : len(row)] = torch.tensor(row)
                labels[at, : len(row)] = torch.tensor(wanted)
            yield ids, labels
