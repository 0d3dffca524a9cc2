"""Lower bounds of a step's time: figures that can be checked by hand."""

import pytest

from hfjax_app.chat.model.buckets import SlotMemory
from hfjax_app.chat.plan import WeightUse
from hfjax_app.planning.outlook import decode_floor, prefill_floor
from hfjax_app.runtime.topology import parse

NO_CACHE = SlotMemory(states=0, positions=())


def test_the_floor_is_bytes_over_bandwidth() -> None:
    """v5e reads 819 GB/s. 8 slots of 1,000 tokens of 819 bytes each are read in 8 microseconds."""
    use = WeightUse(always=1638 * 10**6)
    floor = decode_floor(use, NO_CACHE, parse("v5e:1x1"), slots=8, length=1024, context=1024)
    assert floor.seconds == pytest.approx(2e-3)
    assert (floor.per_user, floor.in_all) == (pytest.approx(500), pytest.approx(4000))
    cache = SlotMemory(states=0, positions=((819, None),))
    full = decode_floor(use, cache, parse("v5e:1x1"), slots=8, length=1000, context=2000)
    assert full.seconds == pytest.approx(2e-3 + 8e-6)


def test_many_users_read_more_experts_than_one() -> None:
    """A token reads a quarter of 800 MB: one user 200, two 350, and in the end all. A ring holds 100 positions."""
    use = WeightUse(always=10**6, experts=((800 * 10**6, 0.25),))
    assert [use.read(tokens) // 10**6 for tokens in (1, 2, 1000)] == [201, 351, 801]
    assert use.read() == 801 * 10**6
    cache = SlotMemory(states=0, positions=((10, 100), (1, None)))
    floor = decode_floor(use, cache, parse("v5e:1x1"), slots=2, length=512, context=1024)
    assert floor.bytes_read == 351 * 10**6 + 2 * (10 * 100 + 512)


def test_a_long_prompt_takes_the_time_of_its_products() -> None:
    """1,000 tokens with 98.5 G multiply-adds each are 197 TFLOP: a second on v5e; the output layer runs once."""
    use = WeightUse(always=10**6, products=98.5e9, output=0.0)
    assert prefill_floor(use, parse("v5e:1x1"), 1000) == pytest.approx(1.0)
    assert prefill_floor(WeightUse(always=819 * 10**6, products=1.0), parse("v5e:1x1"), 1000) == pytest.approx(1e-3)


def test_two_devices_of_a_chip_share_its_units() -> None:
    """A tpu7x chip reads 7,380 GB/s and shows two devices: each reads half of that."""
    floor = decode_floor(WeightUse(always=3690 * 10**6), NO_CACHE, parse("tpu7x:2x2x1"), slots=1, length=64, context=64)
    assert floor.seconds == pytest.approx(1e-3)
