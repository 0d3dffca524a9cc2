"""Whether models fit, and what would fit: figures that can be checked by hand."""

import pytest

from hfjax_app.chat.memory import MemoryEstimate, SlotMemory
from hfjax_app.errors import RequestRejected
from hfjax_app.planning.fit import ChipMemory, advise, fits, larger
from hfjax_app.planning.topology import NAMES, Chip, Topology, by_cost, parse, parse_prices

MIB, GIB = 1 << 20, 1 << 30


def estimate(weights: int, per_token: int, slots: int, context: int) -> MemoryEstimate:
    slot = SlotMemory(states=0, positions=((per_token, None),))
    return MemoryEstimate(
        weights=weights, cache=slot.cache(slots, context), copied=slot.copied(slots, context), slot=slot
    )


def chip_memory(weights: int, per_token: int, decoding: int, slots: int, context: int, others: int = 0) -> ChipMemory:
    by_shapes = estimate(weights, per_token, slots, context)
    resident = by_shapes.weights + by_shapes.cache
    return ChipMemory(estimate=by_shapes, resident=resident, decoding=decoding, others=others)


def test_topologies_by_name() -> None:
    assert {name: (parse(name).chips, parse(name).devices) for name in NAMES} == {
        "v5e:1x1": (1, 1),
        "v6e:1x1": (1, 1),
        "v5e:2x2": (4, 4),
        "v4:2x2x1": (4, 8),
        "v6e:2x2": (4, 4),
        "v5e:2x4": (8, 8),
        "v6e:2x4": (8, 8),
        "v5p:2x2x1": (4, 4),
        "tpu7x:2x2x1": (4, 8),
    }
    assert parse("v5e:1x1").usable == int(16 * GIB * 0.94)
    assert parse("v4:2x2x1").usable == int(32 * GIB * 0.94) // 2
    assert [parse(name).name for name in ("v5litepod-8", "v6e-8", "v4-8", "v5p-8")] == [
        "v5e:2x4",
        "v6e:2x4",
        "v4:2x2x1",
        "v5p:2x2x1",
    ]
    assert (parse("cpu:8").devices, parse("cpu:8").usable) == (8, None)


@pytest.mark.parametrize(
    "name", ["", "v5e:3x3", "v4:2x2", "v5p-16", "cpu:0", "cpu:65", "cpu:x", "cpu:\u0663", "v5e:1x1\n"]
)
def test_an_unknown_topology_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(RequestRejected, match=r"v5e:2x4.*cpu:N|1 to 64") as error:
        parse(name)
    assert repr(name) in str(error.value)
    assert "\n" not in str(error.value)


def test_whether_a_peak_fits() -> None:
    """A token of each of 8 slots takes 64 KiB: 0.5 GiB for 1,024 of them, and 4 GiB for 8,192."""
    token = GIB // 16 // 1024
    assert fits(chip_memory(10 * GIB, token, GIB, 8, 8192).peak, parse("v5e:1x1"))
    assert not fits(chip_memory(10 * GIB, token, 2 * GIB, 8, 8192).peak, parse("v5e:1x1"))
    assert not fits(chip_memory(10 * GIB, token, GIB, 8, 8192, others=2 * GIB).peak, parse("v5e:1x1"))
    assert fits(chip_memory(10 * GIB, 100 * token, 2 * GIB, 8, 8192).peak, parse("cpu:1"))


def test_prices_decide_which_topology_is_cheaper() -> None:
    """Those without a price come last; without any price, the smaller ones come first."""
    names = [topology.name for topology in by_cost(parse_prices("v5e=1.2, v6e=2.7"))]
    assert names == ["v5e:1x1", "v6e:1x1", "v5e:2x2", "v5e:2x4", "v6e:2x2", "v6e:2x4", *names[6:]]
    assert by_cost(parse_prices("v5p=0.01"))[0].name == "v5p:2x2x1"
    assert tuple(topology.name for topology in by_cost({})) == NAMES


@pytest.mark.parametrize("text", ["v5e", "v5e=", "v5e=0", "v5e=-1", "v5e=nan", "h100=2", "v5e=1.2;v6e=2.7", "v5e=1e3"])
def test_a_price_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RequestRejected, match="dollars of a chip for an hour, such as v5e=") as error:
        parse_prices(text)
    assert "\n" not in str(error.value)


def on_devices(count: int, quantize: str = "none") -> MemoryEstimate:
    """10 GiB of weights, or 5 as int8, and 8 slots, each of 1 GiB for 1,024 tokens, split over `count` devices."""
    return estimate((10 if quantize == "none" else 5) * GIB // count, MIB // count, 8, 1024)


def test_advice_is_the_largest_that_fits() -> None:
    """15.04 GiB are usable; 10 of weights and 1 of other temporary memory leave 4.04.

    A slot of 1,024 tokens takes 1, and a program of half of the slots copies their caches. One larger chip comes before
    four. With int8 5 + 8 + 4 + 1 is too much, and 5 + 4 + 2 + 1 for half of the context is not.
    """
    whole = chip_memory(10 * GIB, MIB, 5 * GIB, 8, 1024)
    advice = advise(whole, parse("v5e:1x1"), 8, 1024, on_devices)
    assert (advice.int8, advice.slots, advice.context, advice.topology) == (False, 2, 320, "v6e:1x1")
    assert str(advice) == "slots = 2 or context = 320 or topology v6e:1x1"
    advice = advise(whole, parse("v5e:1x1"), 8, 1024, on_devices, prices={"v5e": 1.0, "v6e": 4.1})
    assert advice.topology == "v5e:2x2"


def test_int8_on_the_same_chip_comes_before_more_chips() -> None:
    """Weights of 30 GiB, or 15 as int8, and a cache of 1: 16 do not fit v5e:1x1, and 31 do not fit v6e:1x1."""

    def on(devices: int, quantize: str) -> MemoryEstimate:
        return estimate((30 if quantize == "none" else 15) * GIB // devices, MIB // 8 // devices, 1, 8192)

    def memory(quantize: str) -> ChipMemory:
        found = on(1, quantize)
        return ChipMemory(estimate=found, resident=found.weights + found.cache, decoding=found.copied)

    advice = advise(memory("none"), parse("v6e:1x1"), 1, 8192, on)
    assert (advice.int8, advice.topology_with_int8, advice.topology) == (True, None, "v5e:2x2")
    assert str(advice).startswith("quantize = int8 or ")
    advice = advise(memory("none"), parse("v5e:1x1"), 1, 8192, on)
    assert (advice.int8, advice.topology_with_int8, advice.topology) == (False, "v6e:1x1", "v5e:2x2")
    assert str(advice).endswith("topology v6e:1x1 with quantize = int8 or topology v5e:2x2")
    advice = advise(memory("int8"), parse("v5e:1x1"), 1, 8192, on, quantize="int8")
    assert (advice.int8, advice.topology_with_int8, advice.topology) == (False, None, "v6e:1x1")


def test_copies_and_other_programs_take_turns() -> None:
    """A prompt's program takes 3 GiB, decoding with its copies 5: with fewer slots the prompt's program is larger."""
    whole = chip_memory(10 * GIB, MIB, 5 * GIB, 8, 1024, others=3 * GIB)
    advice = advise(whole, parse("v5e:1x1"), 8, 1024, on_devices)
    assert (advice.slots, advice.context) == (2, 256)


def test_advice_leaves_room_for_the_other_models() -> None:
    """Another model, on the first chip of every topology, takes 2 of the 4.04 GiB."""
    whole = chip_memory(10 * GIB, MIB, 5 * GIB, 8, 1024)
    advice = advise(whole, parse("v5e:1x1"), 8, 1024, on_devices, beside=2 * GIB)
    assert (advice.slots, advice.context, advice.topology) == (1, 128, "v6e:1x1")
    advice = advise(whole, parse("v5e:1x1"), 8, 1024, on_devices, beside=15 * GIB)
    assert (advice.slots, advice.context, advice.topology) == (0, 0, "v6e:2x2")
    assert larger(parse("v5e:1x1"), lambda devices: 20 * GIB) == "v6e:1x1"
    assert larger(parse("v5e:1x1"), lambda devices: 40 * GIB) == "v5p:2x2x1"
    assert larger(parse("v5e:1x1"), lambda devices: 100 * GIB) is None


def test_a_model_on_one_chip_needs_a_larger_chip() -> None:
    """An image model of 20 GiB does not fit eight chips of 16, and fits one of 32, although that is less in all."""
    assert larger(parse("v5e:2x4"), lambda devices: 20 * GIB) == "v6e:1x1"
    assert larger(parse("v5e:2x4"), lambda devices: 160 * GIB // devices) == "v6e:2x4"
    here = Topology(name="8 devices", devices=8, chip=Chip(hbm=int(15.75 * GIB), bandwidth=0.0))
    assert larger(here, lambda devices: int(14.9 * GIB)) == "v6e:1x1"


def test_weights_that_fit_with_no_number_of_slots() -> None:
    whole = chip_memory(20 * GIB, MIB // 8, GIB, 8, 1024)
    advice = advise(whole, parse("v5e:1x1"), 8, 1024, lambda devices, _: estimate(40 * GIB // devices, 128, 8, 1024))
    assert (advice.slots, advice.context, advice.topology) == (0, 0, "v5e:2x2")
    nowhere = advise(whole, parse("v5e:1x1"), 8, 1024, lambda devices, _: estimate(100 * GIB, 128, 8, 1024))
    assert "a smaller model would" in str(nowhere)
