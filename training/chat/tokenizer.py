"""The tokenizers of the two chat models: one byte-level BPE of about four thousand tokens, and each family's turn tokens and template.

Digits are tokens of their own. Made-up names are part of the corpus, so that an unseen name also splits into short pieces.
"""

# ruff: noqa: E501 (patterns and word lists read best on one line)

import random
from dataclasses import dataclass
from itertools import islice

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from . import words
from .conversations import EARLY_TALKS, conversations

VOCABULARY = 4096
PIECES = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

GEMMA_TEMPLATE = """\
{{- bos_token -}}
{%- set ns = namespace(preface='') -%}
{%- set turns = messages -%}
{%- if turns and turns[0]['role'] == 'system' -%}
    {%- set first = turns[0]['content'] -%}
    {%- set ns.preface = (first if first is string else first[0]['text']) + '\\n\\n' -%}
    {%- set turns = turns[1:] -%}
{%- endif -%}
{%- for turn in turns -%}
    {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('Turns must alternate: user, assistant, user, assistant, ...') -}}
    {%- endif -%}
    {{- '<start_of_turn>' + ('model' if turn['role'] == 'assistant' else turn['role']) + '\\n' -}}
    {{- ns.preface if loop.first else '' -}}
    {%- if turn['content'] is string -%}
        {{- turn['content'] | trim -}}
    {%- else -%}
        {%- for part in turn['content'] if part['type'] == 'text' -%}{{- part['text'] | trim -}}{%- endfor -%}
    {%- endif -%}
    {{- '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""
LLAMA_TEMPLATE = """\
{{- bos_token -}}
{%- for turn in messages -%}
    {{- '<|start_header_id|>' + turn['role'] + '<|end_header_id|>\\n\\n' -}}
    {%- if turn['content'] is string -%}
        {{- turn['content'] | trim -}}
    {%- else -%}
        {%- for part in turn['content'] if part['type'] == 'text' -%}{{- part['text'] | trim -}}{%- endfor -%}
    {%- endif -%}
    {{- '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
"""


@dataclass(frozen=True, kw_only=True)
class ChatFormat:
    """A family's special tokens and chat template. `specials` are in order of their ids, from 0."""

    specials: tuple[str, ...]
    bos: str
    eos: str
    pad: str
    end_of_turn: str
    template: str
    reply_start: str  # what precedes each reply in the rendered conversation


GEMMA = ChatFormat(
    specials=("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
    bos="<bos>",
    eos="<eos>",
    pad="<pad>",
    end_of_turn="<end_of_turn>",
    template=GEMMA_TEMPLATE,
    reply_start="<start_of_turn>model\n",
)
LLAMA = ChatFormat(
    specials=(
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|finetune_right_pad_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ),
    bos="<|begin_of_text|>",
    eos="<|end_of_text|>",
    pad="<|finetune_right_pad_id|>",
    end_of_turn="<|eot_id|>",
    template=LLAMA_TEMPLATE,
    reply_start="<|start_header_id|>assistant<|end_header_id|>\n\n",
)


def _corpus(seed: int, count: int):
    for talk in islice(conversations(seed), EARLY_TALKS, EARLY_TALKS + count):
        yield from (f"{message['content']}\n" for message in talk.messages)
    rng = random.Random(seed)
    for _ in range(count):
        word = words.made_up(rng)
        yield f" {word} {word.capitalize()}"
    yield from ["user\nmodel\nsystem\nassistant\n"] * count


def train_tokenizer(chat_format: ChatFormat, *, seed: int = 0, count: int = 20_000) -> PreTrainedTokenizerFast:
    """A tokenizer trained on `count` generated conversations and as many made-up words."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(token, special=True, normalized=False) for token in chat_format.specials]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), min_frequency=3, show_progress=False)  # fmt: skip
    tokenizer.train_from_iterator(_corpus(seed, count), trainer)
    bos = chat_format.bos
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=chat_format.bos,
        eos_token=chat_format.eos,
        pad_token=chat_format.pad,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat_format.template
    return fast
