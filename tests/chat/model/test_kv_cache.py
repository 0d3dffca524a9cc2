"""The cache's layout and what it tells a model: which rows hold what, what can be taken back, lengths with bounds."""

from collections.abc import Callable

import jax
import numpy as np
import pytest
import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

from hfjax_app.chat.model.decoder import Decoder, piece_sizes
from hfjax_app.chat.model.kv_cache import rollback
from hfjax_app.chat.model.kv_cache_write import NEVER, _scatter_two, _update_each, offsets, only_before, write
from hfjax_app.chat.model.symbolic_length import SymbolicLength

TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 128,
}


def decoder_of(model_type: str, **options: object) -> Decoder:
    config = AutoConfig.for_model(model_type, **TINY, **options)
    model_class = type(AutoModelForCausalLM.from_config(config))
    return Decoder(model_class, config, torch.float32, context=128, chunk=16)


def test_a_ring_says_which_positions_it_holds() -> None:
    """Against a ring that is written token by token; padding is not written."""
    rows, written = 7, [NEVER] * 7
    for position, valid in ((0, 3), (3, 4), (7, 1), (8, 4), (12, 2)):
        for new in range(position, position + valid):
            written[new % rows] = new
        assert (np.asarray(offsets(rows, position, valid)) + np.arange(rows)).tolist() == written


@pytest.mark.parametrize("way", [write, _scatter_two, None], ids=["any", "CPU", "accelerators"])
def test_a_token_of_each_slot_goes_into_its_row(way: Callable | None) -> None:
    """Rings turn; a token that is not valid leaves its slot as it was."""
    rng = np.random.default_rng(0)
    cache, new = rng.random((4, 2, 5, 3), np.float32), rng.random((4, 2, 1, 3), np.float32)
    position, valid = np.array([0, 4, 7, 2], np.int32), np.array([1, 1, 1, 0], np.int32)
    want = cache.copy()
    for slot, row in ((0, 0), (1, 4), (2, 2)):
        want[slot, :, row] = new[slot, :, 0]
    each = _update_each if way is None else jax.vmap(way)
    np.testing.assert_array_equal(jax.jit(each)(cache, new, position, valid), want)


@pytest.mark.parametrize(("rows", "end", "written"), [(48, 45, 45), (48, 20, 47), (48, 70, 86), (256, 80, 96)])
def test_a_beginning_keeps_all_that_is_left_of_it(rows: int, end: int, written: int) -> None:
    """Also what is out of the window now: whoever goes back sees it again."""
    positions = [position for position in range(written) if position >= written - rows]
    cache = np.zeros((1, rows, 1), np.float32)
    for position in positions:
        cache[0, position % rows] = np.nan if position >= end else position + 1
    kept = np.asarray(only_before(cache, np.int32(end), rows, np.int32(written))).ravel()
    assert sorted(kept[kept != 0]) == [position + 1 for position in positions if position < end]


def test_layout_and_rollback() -> None:
    """A full layer takes back everything, a ring what leaves its window, a state nothing."""
    llama = decoder_of("llama").specs
    assert [(spec.rows, spec.window, spec.rollback) for spec in llama] == [(128, None, 128)] * 2
    gemma = decoder_of("gemma3_text", sliding_window=32, layer_types=["sliding_attention", "full_attention"]).specs
    assert [(spec.rows, spec.window, spec.rollback) for spec in gemma] == [(48, 32, 16), (128, None, 128)]
    assert rollback(gemma) == 16
    lfm2 = decoder_of("lfm2", layer_types=["conv", "full_attention"]).specs
    assert [leaf.name for spec in lfm2 for leaf in spec.leaves] == ["conv0", "keys", "values"]
    assert rollback(lfm2) == 0


def test_any_number_of_real_tokens_is_a_few_pieces() -> None:
    """A recurrent state must not go over padding."""
    assert piece_sizes(64) == (64, 16, 4, 1)
    assert piece_sizes(24) == (24, 6, 1)
    assert piece_sizes(1) == (1,)


@pytest.mark.parametrize("value", [0, 3, 9])
def test_a_length_decides_what_its_bounds_decide(value: int) -> None:
    """max(0, 1 - length) is what MPT asks of Python; in torch operations a length is its tensor."""
    length = SymbolicLength(torch.tensor(value), low=0, high=9)
    assert max(0, 1 - (1 + length)) == 0
    assert not (2 + length > 11)
    assert length + 1 > 0
    assert length <= 9
    assert isinstance(length > 4, torch.Tensor)
    assert (torch.arange(2) + length).tolist() == [value, value + 1]
    assert (5 - length).tensor.item() == 5 - value
    assert torch.clamp(length, max=4).item() == min(value, 4)


def test_code_that_forgets_its_state_over_several_tokens_is_found() -> None:
    """transformers' Mamba takes several tokens for a beginning; its prompts are fed one by one. Mamba 2 goes on."""
    sizes = {"state_size": 8, "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 128}
    two = {"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 16}
    continues = []
    for config in (AutoConfig.for_model("mamba", **sizes), AutoConfig.for_model("mamba2", **sizes, **two)):
        model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        continues.append(Decoder(model_class, config, torch.float32, context=128, chunk=16).continues)
    assert continues == [False, True]
