"""Tokenizers as repositories have them: sentencepiece files alone, and chat templates in a processor's files."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from transformers import AutoConfig, AutoTokenizer

from hfjax_app.chat.text.tokenizer import load_tokenizer
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.tokenizer_files import load
from tests.chat.conftest import TEMPLATE, make_tokenizer

LINES = [
    "the quick brown fox jumps over the lazy dog",
    "she sells sea shells by the sea shore",
    "ça va? ünïcödé 10",
] * 20
LLAMA = {
    "model_type": "bpe",
    "vocab_size": 340,
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}
UNIGRAM = {"model_type": "unigram", "vocab_size": 44}
BOS = {"add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
GEMMA = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>", "add_bos_token": True}
# Per model type: the file, the class, how it was trained, its tokenizer_config, and what stands around a text.
FAMILIES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], tuple[list[str], list[str]]]] = {
    "llama": ("tokenizer.model", "LlamaTokenizer", LLAMA, BOS, (["<s>"], [])),
    "mistral": ("tokenizer.model", "LlamaTokenizerFast", LLAMA, BOS, (["<s>"], [])),
    "gemma": (
        "tokenizer.model",
        "GemmaTokenizer",
        LLAMA | {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "add_dummy_prefix": False},
        GEMMA,
        (["<bos>"], []),
    ),
    "t5": (
        "spiece.model",
        "T5Tokenizer",
        UNIGRAM | {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
        {"extra_ids": 0},
        ([], ["</s>"]),
    ),
    "xlm-roberta": ("sentencepiece.bpe.model", "XLMRobertaTokenizer", UNIGRAM, {}, (["<s>"], ["</s>"])),
    "camembert": ("sentencepiece.bpe.model", "CamembertTokenizer", UNIGRAM, {}, (["<s>"], ["</s>"])),
    "deberta-v2": (
        "spm.model",
        "DebertaV2Tokenizer",
        UNIGRAM
        | {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "bos_piece": "[CLS]", "eos_piece": "[SEP]"}
        | {"pad_piece": "[PAD]", "unk_piece": "[UNK]", "control_symbols": "[MASK]"},
        {"do_lower_case": False},
        (["[CLS]"], ["[SEP]"]),
    ),
    "albert": (
        "spiece.model",
        "AlbertTokenizer",
        UNIGRAM | {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": "[CLS],[SEP]"},
        {},
        (["[CLS]"], ["[SEP]"]),
    ),
}


def trained(**options: Any) -> bytes:
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=made, character_coverage=1.0, minloglevel=2, **options
    )
    return made.getvalue()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sentencepiece_file_alone_is_enough(family: str, tmp_path: Path) -> None:
    """They were refused, with an advice that did not help. With the general class that transformers takes for a Mistral
    with Llama's tokenizer, a text lost its first space and its beginning."""
    name, kind, training, settings, around = FAMILIES[family]
    (tmp_path / name).write_bytes(trained(**training))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind, **settings}))
    AutoConfig.for_model(family).save_pretrained(tmp_path)
    tokenizer = load(AutoTokenizer.from_pretrained, tmp_path)
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / name))
    for text in ("the lazy fox", "sea shells by 10"):
        before, after = around
        expected = [*before, *oracle.encode(text, out_type=str), *after]
        assert tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) == expected
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("file", ["chat_template.json", "processor_config.json"])
def test_the_template_in_a_processors_file(file: str, tmp_path: Path) -> None:
    """Qwen2-VL's and others' stand there, where AutoTokenizer does not look: the model was taken for a base model."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / file).write_text(json.dumps({"chat_template": TEMPLATE}))
    assert load_tokenizer(tmp_path, 128).chat_template == TEMPLATE
    (tmp_path / file).write_text("{")
    assert load_tokenizer(tmp_path, 128).chat_template is None


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ messages[0].content }", "chat template can't be used"),
        (
            "the name of the turn " * 60 + "{{ messages[0].content }}",
            r"takes \d+ tokens of a context of 128: serve it with",
        ),
    ],
)
def test_a_template_is_tried_out_when_the_model_is_loaded(template: str, says: str, tmp_path: Path) -> None:
    """A default system prompt that alone fills the context made every message fail."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelUnavailable, match=says) as error:
        load_tokenizer(tmp_path, 128)
    assert repr(str(tmp_path)) in str(error.value)
    if "serve it with" in says:
        assert load_tokenizer(tmp_path, int(str(error.value).split("context = ")[1].split()[0]))
