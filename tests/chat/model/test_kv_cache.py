"""The cache's layout, the positions that it holds, copies of its parts, rollback, and lengths with bounds."""

from collections.abc import Callable
from functools import partial

import jax
import numpy as np
import pytest
import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

from hfjax_app.chat.model.decoder import Architecture, Decoder, piece_sizes
from hfjax_app.chat.model.kv_cache import (
    NEVER,
    Written,
    _scatter,
    _scatter_two,
    _update_each,
    _update_rows,
    offsets,
    only_before,
    put,
    rollback,
    take,
    write,
)
from hfjax_app.chat.model.slot_view import SymbolicLength

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
    return Decoder(Architecture(model_class, config, torch.float32), context=128, chunk=16)


def test_the_offsets_of_a_ring_give_the_positions_it_holds() -> None:
    """Compared with a ring that is written token by token; padding is not written."""
    length, written = 7, [NEVER] * 7
    for position, valid in ((0, 3), (3, 4), (7, 1), (8, 4), (12, 2)):
        for new in range(position, position + valid):
            written[new % length] = new
        assert (np.asarray(offsets(length, position, valid)) + np.arange(length)).tolist() == written


@pytest.mark.parametrize("way", [write, _scatter_two, None], ids=["any", "CPU", "accelerators"])
def test_a_token_of_each_slot_is_written_at_its_index(way: Callable | None) -> None:
    """Rings wrap; a token that is not valid does not change its slot."""
    rng = np.random.default_rng(0)
    cache, new = rng.random((4, 2, 5, 3), np.float32), rng.random((4, 2, 1, 3), np.float32)
    position, valid = np.array([0, 4, 7, 2], np.int32), np.array([1, 1, 1, 0], np.int32)
    expected = cache.copy()
    for slot, index in ((0, 0), (1, 4), (2, 2)):
        expected[slot, :, index] = new[slot, :, 0]
    each = _update_each if way is None else jax.vmap(way)
    np.testing.assert_array_equal(jax.jit(each)(cache, new, position, valid), expected)


@pytest.mark.parametrize("of_slots", [False, True])
@pytest.mark.parametrize(("position", "valid"), [(0, 4), (3, 2), (5, 4), (6, 1), (9, 3), (11, 4), (4, 0)])
@pytest.mark.parametrize("wraps", [False, True])
def test_accelerators_write_the_same_rows_by_slices(wraps: bool, position: int, valid: int, of_slots: bool) -> None:
    """Also where a ring wraps, and where padding reaches beyond the last index."""
    rng = np.random.default_rng(0)
    length = 7 if wraps else 13
    valid = valid if wraps else min(valid, length - position)
    cache, new = rng.random((3, 2, length, 5), np.float32), rng.random((2, 4, 5), np.float32)
    cache, slot = (cache, [np.int32(1)]) if of_slots else (cache[1], [])
    expected = cache.copy()
    for token in range(valid):
        (expected[1] if of_slots else expected)[:, (position + token) % length] = new[:, token]
    for way in (_scatter, partial(_update_rows, wraps=wraps)):
        got = jax.jit(way)(cache, new, np.int32(position), np.int32(valid), *slot)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("length", "end", "written"), [(48, 45, 45), (48, 20, 47), (48, 70, 86), (256, 80, 96)])
def test_a_prefix_keeps_all_its_positions_that_are_left(length: int, end: int, written: int) -> None:
    """Positions outside the current window too: after a rollback they are inside it again."""
    positions = [position for position in range(written) if position >= written - length]
    cache = np.zeros((1, length, 1), np.float32)
    for position in positions:
        cache[0, position % length] = np.nan if position >= end else position + 1
    kept = np.asarray(only_before(cache, np.int32(end), length, np.int32(written))).ravel()
    assert sorted(kept[kept != 0]) == [position + 1 for position in positions if position < end]


def test_take_and_put_touch_only_their_slots_and_positions() -> None:
    full, state = np.random.default_rng(0).normal(size=(4, 2, 10, 3)), np.arange(8.0).reshape(4, 2)
    cache = [{"keys": full.astype(np.float32), "conv0": state.astype(np.float32)}]
    slots = np.array([3, 1], np.int32)
    part = jax.jit(take, static_argnums=1)(cache, 6, slots)
    np.testing.assert_array_equal(part[0]["keys"], cache[0]["keys"][[3, 1], :, :6])
    np.testing.assert_array_equal(part[0]["conv0"], cache[0]["conv0"][[3, 1]])
    got = jax.jit(put)(cache, jax.tree.map(lambda leaf: leaf + 100, part), slots)
    expected = cache[0]["keys"].copy()
    expected[[3, 1], :, :6] += 100
    np.testing.assert_array_equal(got[0]["keys"], expected)


@pytest.mark.parametrize(("length", "context", "only"), [(6, 10, True), (10, 10, True), (10, 20, False)])
def test_put_copies_only_written_positions_unless_a_ring_may_wrap(length: int, context: int, only: bool) -> None:
    """Three positions from 1 on, and three from the last one on, moved back to fit the part. A ring is copied whole."""
    cache = [{"keys": np.zeros((4, 2, 10, 3), np.float32)}]
    slots, position = np.array([3, 1], np.int32), np.array([1, length - 1], np.int32)
    part = [{"keys": np.ones((2, 2, length, 3), np.float32)}]
    [got] = jax.jit(lambda *args: put(*args, Written(jax.numpy.asarray(position), 3, context)))(cache, part, slots)
    expected = np.zeros((4, 2, 10, 3))
    if only:
        expected[3, :, 1:4] = expected[1, :, length - 3 : length] = 1
    else:
        expected[[3, 1], :, :length] = 1
    np.testing.assert_array_equal(got["keys"], expected)


def test_layout_and_rollback() -> None:
    """A full layer rolls back everything, a ring the positions beyond its window, a state nothing."""
    llama = decoder_of("llama").specs
    assert [(spec.positions, spec.window, spec.rollback) for spec in llama] == [(128, None, 128)] * 2
    gemma = decoder_of("gemma3_text", sliding_window=32, layer_types=["sliding_attention", "full_attention"]).specs
    assert [(spec.positions, spec.window, spec.rollback) for spec in gemma] == [(48, 32, 16), (128, None, 128)]
    assert rollback(gemma) == 16
    lfm2 = decoder_of("lfm2", layer_types=["conv", "full_attention"]).specs
    assert [leaf.name for spec in lfm2 for leaf in spec.leaves] == ["conv0", "keys", "values"]
    assert rollback(lfm2) == 0


def test_a_few_pieces_add_up_to_any_number_of_tokens() -> None:
    """Padding must not reach a recurrent state."""
    assert piece_sizes(64) == (64, 16, 4, 1)
    assert piece_sizes(24) == (24, 6, 1)
    assert piece_sizes(1) == (1,)


@pytest.mark.parametrize("value", [0, 3, 9])
def test_a_length_compares_by_its_bounds_where_they_agree(value: int) -> None:
    """MPT computes max(0, 1 - length) in Python; in torch operations a length is its tensor."""
    length = SymbolicLength(torch.tensor(value), low=0, high=9)
    assert max(0, 1 - (1 + length)) == 0
    assert not (2 + length > 11)
    assert length + 1 > 0
    assert length <= 9
    assert isinstance(length > 4, torch.Tensor)
    assert (torch.arange(2) + length).tolist() == [value, value + 1]
    assert (5 - length).tensor.item() == 5 - value
    assert torch.clamp(length, max=4).item() == min(value, 4)


def test_code_that_ignores_its_state_for_several_tokens_is_detected() -> None:
    """transformers' Mamba restarts with several tokens, so its prompts are prefilled one by one. Mamba 2 continues."""
    sizes = {"state_size": 8, "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 128}
    two = {"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 16}
    continues = []
    for config in (AutoConfig.for_model("mamba", **sizes), AutoConfig.for_model("mamba2", **sizes, **two)):
        model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        continues.append(
            Decoder(Architecture(model_class, config, torch.float32), context=128, chunk=16).traced.continues
        )
    assert continues == [False, True]
