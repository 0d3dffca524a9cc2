"""Our attention against torch, and transformers' masks at the positions that a ring holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.masking_utils import sliding_window_causal_mask_function

from hfjax_app.runtime.attention import _mask, grouped_query_attention, packed_attention
from hfjax_app.runtime.cpu.attention import BLOCK
from hfjax_app.runtime.head_packing import HeadPacking, packed, unpacked

pytestmark = pytest.mark.usefixtures("quick_compiler")

HEADS, KV_HEADS, QUERIES, ROWS, KEY, VALUE = 6, 2, 5, 9, 8, 12


def arrays(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


QUERY_, KEY_, VALUE_ = arrays(1, HEADS, QUERIES, KEY), arrays(1, KV_HEADS, ROWS, KEY), arrays(1, KV_HEADS, ROWS, VALUE)
BOOL = np.tril(np.ones((QUERIES, ROWS), bool), ROWS - QUERIES)[None, None]


def expected(mask: torch.Tensor, softcap: float | None = None, sinks: torch.Tensor | None = None) -> np.ndarray:
    """Textbook attention, with keys and values repeated for each group."""
    query, key, value = map(torch.from_numpy, (QUERY_, KEY_, VALUE_))
    key, value = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * 0.3
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(1, -1, QUERIES, 1)], dim=-1)
    return (scores.softmax(-1)[..., :ROWS] @ value).transpose(1, 2).numpy()


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("bias", ["bool", "added", "added per head"])
def test_equals_torch(softcap: float | None, with_sinks: bool, bias: str) -> None:
    """Groups of three heads, values wider than keys, each kind of mask."""
    sinks = arrays(HEADS) if with_sinks else None
    mask = np.where(BOOL, 0, np.finfo(np.float32).min).astype(np.float32)
    if bias == "added per head":
        mask = mask + arrays(1, HEADS, QUERIES, ROWS)
    got = jax.jit(grouped_query_attention, static_argnums=(4, 5))(
        QUERY_, KEY_, VALUE_, BOOL if bias == "bool" else mask, 0.3, softcap, sinks
    )
    want = expected(torch.from_numpy(mask), softcap, None if sinks is None else torch.from_numpy(sinks))
    np.testing.assert_allclose(np.asarray(got), want, atol=1e-5)


@pytest.mark.parametrize("slots", [None, 1, 3])
def test_one_token(slots: int | None) -> None:
    """The last query only, in one slot or in several at once, gives the same as among the others."""
    query, key = QUERY_[:, :, -1:], KEY_
    want = expected(torch.from_numpy(np.where(BOOL, 0, np.finfo(np.float32).min).astype(np.float32)))[:, -1:]

    def attend(query: jax.Array, key: jax.Array) -> jax.Array:
        return grouped_query_attention(query, key, VALUE_, BOOL[:, :, -1:], 0.3)

    if slots is not None:
        query, key, want = (np.stack([array] * slots) for array in (query, key, want))
        attend = jax.vmap(attend)
    np.testing.assert_allclose(np.asarray(jax.jit(attend)(query, key)), want, atol=1e-5)


@pytest.mark.parametrize(("softcap", "with_sinks"), [(None, False), (2.0, True)])
@pytest.mark.parametrize(("seen", "read"), [(1, 300), (300, 300), (301, 600), (600, 600)])
def test_one_token_reads_half_of_the_positions_if_that_is_enough(
    softcap: float | None, with_sinks: bool, seen: int, read: int
) -> None:
    """The result equals that over the attended positions only. Positions that must not be read are NaN."""
    query, key, value = arrays(1, HEADS, 1, KEY), arrays(1, KV_HEADS, 600, KEY), arrays(1, KV_HEADS, 600, VALUE)
    sinks = arrays(HEADS) if with_sinks else None
    want = grouped_query_attention(
        query, key[:, :, :seen], value[:, :, :seen], np.ones((1, 1, 1, seen), bool), 0.3, softcap, sinks
    )
    key[:, :, read:] = value[:, :, read:] = np.nan
    mask = (np.arange(600) < seen)[None, None, None]
    got = jax.jit(grouped_query_attention, static_argnums=(4, 5))(query, key, value, mask, 0.3, softcap, sinks)
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(("slots", "choices"), [(1, 1), (3, 0)])
def test_half_of_the_positions_is_an_option_for_one_slot_only(slots: int, choices: int) -> None:
    """Under vmap, as in the engine. Several slots would compute both branches."""

    def attend(query: jax.Array, key: jax.Array, value: jax.Array, length: jax.Array) -> jax.Array:
        mask = (jnp.arange(600) < length)[None, None, None]
        return grouped_query_attention(query, key, value, mask, 0.3)

    arguments = (
        arrays(slots, 1, HEADS, 1, KEY),
        arrays(slots, 1, KV_HEADS, 600, KEY),
        arrays(slots, 1, KV_HEADS, 600, VALUE),
        np.arange(slots) + 290,
    )
    program = jax.jit(jax.vmap(attend)).lower(*arguments).compile()
    assert program.as_text().count(" conditional(") == choices
    want = [attend(*one) for one in zip(*arguments, strict=True)]
    np.testing.assert_allclose(program(*arguments), want, atol=1e-5)


@pytest.mark.parametrize(("softcap", "with_sinks"), [(None, False), (2.0, True)])
@pytest.mark.parametrize("first", [0, 250, 595])
def test_many_positions_in_blocks(softcap: float | None, with_sinks: bool, first: int) -> None:
    """Queries at `first` and the four positions after it, of 600 positions; the last block overlaps the one before.

    The result equals that over the attended positions only. Positions from the next block on are NaN and must not be
    read. Keys and values are read from their source, in slot 1 of 3.
    """
    rows, end = 600, first + QUERIES
    keys, values = (np.full((3, KV_HEADS, rows + 40, dim), np.nan, np.float32) for dim in (KEY, VALUE))
    for array in (keys, values):
        array[1, :, : min(-(-end // BLOCK) * BLOCK, rows)] = 1e3
        array[1, :, :end] = arrays(KV_HEADS, end, array.shape[-1])
    mask = (np.arange(rows) <= first + np.arange(QUERIES)[:, None])[None, None]
    sinks = arrays(HEADS) if with_sinks else None
    part, origin = (keys[1:2, :, :rows], values[1:2, :, :rows]), (keys, values, np.int32(1))
    attend = jax.jit(grouped_query_attention, static_argnums=(4, 5))
    want = attend(QUERY_, *(array[:, :, :end] for array in part), mask[..., :end], 0.3, softcap, sinks)
    for read_at in (None, origin):
        got = attend(QUERY_, *part, mask, 0.3, softcap, sinks, read_at)
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), atol=1e-5)


def test_a_window_that_begins_after_the_first_block() -> None:
    """The last ten of 600 positions: a block without attended positions must not change the result."""
    rows, window = 600, 10
    key, value = arrays(1, KV_HEADS, rows, KEY), arrays(1, KV_HEADS, rows, VALUE)
    mask = np.zeros((1, 1, QUERIES, rows), bool)
    mask[..., -window:] = True
    attend = jax.jit(grouped_query_attention, static_argnums=4)
    want = attend(QUERY_, key[:, :, -window:], value[:, :, -window:], mask[..., -window:], 0.3)
    np.testing.assert_allclose(attend(QUERY_, key, value, mask, 0.3), want, atol=1e-5)


def test_a_masked_position_does_not_change_the_result() -> None:
    """Keys of an earlier conversation can't reach an answer."""
    seen = np.zeros((1, 1, QUERIES, ROWS), bool)
    seen[..., 2] = True
    got = grouped_query_attention(QUERY_, jnp.asarray(KEY_).at[:, :, 3:].set(1e4), VALUE_, seen, 0.3)
    np.testing.assert_allclose(np.asarray(got)[0, 0, 0], VALUE_[0, 0, 2], atol=1e-6)


def test_the_mask_of_a_ring() -> None:
    """Queries at 10 and 11, window 4, a ring of 6 rows that holds 6 ... 11: row r holds the position p = r (mod 6)."""
    held = torch.tensor([6, 7, 8, 9, 10, 11])
    offsets = held - torch.arange(6)
    mask = _mask(
        batch_size=1,
        q_length=2,
        kv_length=6,
        q_offset=torch.tensor(10),
        kv_offset=offsets,
        mask_function=sliding_window_causal_mask_function(4),
    )
    assert mask[0, 0].tolist() == [[7 <= p <= 10 for p in range(6, 12)], [8 <= p <= 11 for p in range(6, 12)]]


@pytest.mark.parametrize("per_row", [1, 2, 4])
@pytest.mark.parametrize(("queries", "rows"), [(1, ROWS), (QUERIES, ROWS), (QUERIES, 600)])
def test_heads_side_by_side(per_row: int, queries: int, rows: int) -> None:
    """Eight query heads and four key-value heads, one, two or four per row: the same as one head per row."""
    query, key, value = arrays(1, 8, queries, KEY), arrays(1, 4, rows, KEY), arrays(1, 4, rows, VALUE)
    mask = np.tril(np.ones((queries, rows), bool), rows - queries)[None, None]
    side_by_side = [packed(jnp.asarray(array), per_row) for array in (key, value)]
    assert side_by_side[0].shape == (1, 4 // per_row, rows, per_row * KEY)
    np.testing.assert_array_equal(unpacked(side_by_side[1], per_row), value)
    want = grouped_query_attention(query, key, value, mask, 0.3)
    got = packed_attention(query, *side_by_side, mask, per_row, 0.3)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_heads_share_a_row_if_devices_get_whole_rows() -> None:
    """128 lanes: two heads of 64 or four of 32, but no partial rows, and no rows that devices would have to share."""
    lanes, of_four = HeadPacking(width=128), HeadPacking(width=128, devices=4)
    assert [lanes.heads_per_row(8, channels) for channels in (128, 96, 64, 32)] == [1, 1, 2, 4]
    assert [lanes.heads_per_row(heads, 32) for heads in (1, 3, 6)] == [1, 3, 3]
    assert [of_four.heads_per_row(heads, 64) for heads in (16, 8, 4, 6)] == [2, 2, 1, 2]
    assert HeadPacking().heads_per_row(8, 1) == 1
