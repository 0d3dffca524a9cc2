"""WordPiece vocabulary: whole words for what the corpus uses often, pieces for everything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from training.sentiment import lexicon

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_LENGTH = 512


def _assemble(model: models.Model) -> Tokenizer:
    """BERT's uncased pipeline around a WordPiece model."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _words(tokenizer: Tokenizer, text: str) -> list[str]:
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))]


def _pieces(count: int) -> list[str]:
    """Pieces learnt from an English word list in which common words weigh more; the same ones each time."""
    tokenizer = _assemble(models.WordPiece(unk_token="[UNK]"))
    frequencies = lexicon.frequencies()
    words = sorted(lexicon.parts_of_speech().keys() | lexicon.valences().keys())
    word_list = (word for word in words for _ in range(1 + min(3, frequencies.get(word, 0).bit_length() // 3)))
    # The trainer numbers inner characters in the order of its hash table and breaks ties by these numbers; special
    # tokens are numbered in the given order.
    inner = ["##" + character for character in sorted({character for word in words for character in word.lower()})]
    trainer = trainers.WordPieceTrainer(vocab_size=count, special_tokens=[*SPECIAL, *inner], show_progress=False)
    tokenizer.train_from_iterator(word_list, trainer)
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def build(corpus: Iterable[str], *, size: int, pieces: int, least: int) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `size` entries.

    pieces: entries that are learnt as pieces of words. least: how often the corpus must have a word that is an entry.
    """
    probe = _assemble(models.WordPiece(unk_token="[UNK]"))
    counts = Counter(word for text in corpus for word in _words(probe, text))
    entries = dict.fromkeys(_pieces(pieces))
    entries |= dict.fromkeys(character for word in counts for character in word if counts[word] >= least)
    entries |= dict.fromkeys("##" + character for character in "abcdefghijklmnopqrstuvwxyz0123456789")
    for word, count in counts.most_common():
        if count >= least and len(entries) < size:
            entries.setdefault(word)
    return wrap({entry: index for index, entry in enumerate(entries)})


def wrap(vocabulary: dict[str, int]) -> PreTrainedTokenizerFast:
    """A transformers tokenizer with DistilBERT's conventions around a vocabulary."""
    tokenizer = _assemble(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=MAX_LENGTH,
        model_input_names=["input_ids", "attention_mask"],
        **dict(zip(names, SPECIAL, strict=True)),
    )


def only_pieces(tokenizer: PreTrainedTokenizerFast, pieces: int) -> Tokenizer:
    """The same ids, but words split into the pieces: training on them teaches what pieces of unknown words mean."""
    vocabulary = tokenizer.get_vocab()
    kept = {
        entry: index
        for entry, index in vocabulary.items()
        if index < pieces or entry.startswith("##") or len(entry) == 1
    }
    result = _assemble(models.WordPiece(kept, unk_token="[UNK]"))
    result.post_processor = tokenizer.backend_tokenizer.post_processor
    return result
