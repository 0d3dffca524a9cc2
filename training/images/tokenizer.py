"""The tokenizer: lower case, byte-level BPE in CLIP's format. Words of the captions are one token, none is unknown."""

import json
from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import CLIPTokenizer

LENGTH = 32
START, END = "<|startoftext|>", "<|endoftext|>"


def train(texts: Iterable[str]) -> CLIPTokenizer:
    """A CLIPTokenizer of at most 2,048 tokens that pads to LENGTH."""
    draft = CLIPTokenizer()
    bare = Tokenizer(BPE(end_of_word_suffix="</w>"))
    bare.normalizer = draft.backend_tokenizer.normalizer
    bare.pre_tokenizer = draft.backend_tokenizer.pre_tokenizer
    alphabet = sorted(ByteLevel.alphabet())
    trainer = BpeTrainer(
        vocab_size=1500, min_frequency=1, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False
    )
    # Every word of the grammar counts once: rare ones become whole tokens as surely as frequent ones. Words seen only
    # once are noise that the captions contain on purpose.
    counts = Counter(
        word
        for text in texts
        for word, _ in bare.pre_tokenizer.pre_tokenize_str(bare.normalizer.normalize_str(text))
        if word.isalpha()
    )
    bare.train_from_iterator([" ".join(sorted(word for word, count in counts.items() if count > 1))], trainer)
    learned = sorted(bare.get_vocab(), key=bare.get_vocab().get)
    pieces = [*alphabet, *(letter + "</w>" for letter in alphabet)]
    pieces += [piece for piece in learned if piece not in set(pieces)]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, START, END])}
    merges = [tuple(pair) for pair in _merges(bare)]
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=LENGTH)


def _merges(tokenizer: Tokenizer) -> list[list[str]]:
    """The learned merges, in order; the library gives them only through its JSON."""
    return json.loads(tokenizer.to_str())["model"]["merges"]
