"""Whether something fits, and what would: figures small enough to check by hand."""

import pytest

from hfjax_app.errors import RequestRejected
from hfjax_app.planning.topology import NAMES, Chip, Topology, parse
from hfjax_app.planning.verdict import Footprint, advise, decode_floor, fits, larger

GIB = 1 << 30


def footprint(weights: int, cache: int, temporary: int, slots: int, context: int) -> Footprint:
    return Footprint(
        weights=weights,
        cache=cache,
        per_slot_token=cache // (slots * context),
        resident=weights + cache,
        temporary=temporary,
    )


def test_topologies_by_name() -> None:
    assert {name: parse(name).devices for name in NAMES} == {
        "v5e:1x1": 1,
        "v5e:2x2": 4,
        "v5e:2x4": 8,
        "v6e:1x1": 1,
        "v6e:2x2": 4,
    }
    assert parse("v5e:1x1").usable == int(16 * GIB * 0.94)
    assert (parse("cpu:8").devices, parse("cpu:8").usable) == (8, None)


@pytest.mark.parametrize("name", ["", "v5e:3x3", "v4:2x2", "cpu:0", "cpu:65", "cpu:x", "cpu:\u0663", "v5e:1x1\n"])
def test_an_unknown_topology_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(RequestRejected, match=r"v5e:2x4.*cpu:N|1 to 64") as error:
        parse(name)
    assert repr(name) in str(error.value)
    assert "\n" not in str(error.value)


def test_what_fits_needs_no_advice() -> None:
    assert fits(footprint(10 * GIB, 4 * GIB, GIB, 8, 1024).peak, parse("v5e:1x1"))
    assert not fits(footprint(10 * GIB, 4 * GIB, 2 * GIB, 8, 1024).peak, parse("v5e:1x1"))
    assert fits(footprint(10 * GIB, 400 * GIB, 2 * GIB, 8, 1024).peak, parse("cpu:1"))


def test_advice_is_the_largest_that_fits() -> None:
    """15.04 GiB are usable: beside 10 of weights and 1 temporary, 4.04 are left, and a slot of 1,024 tokens takes 1."""
    need = footprint(10 * GIB, 8 * GIB, GIB, 8, 1024)
    advice = advise(need, parse("v5e:1x1"), 8, 1024, lambda devices: (10 * GIB // devices, 8 * GIB // devices))
    assert (advice.slots, advice.context, advice.topology) == (4, 512, "v5e:2x2")
    assert str(advice) == "slots = 4 or context = 512 or topology v5e:2x2"


def test_advice_leaves_room_for_the_other_models() -> None:
    """2 of the 4.04 GiB are taken by a model that lies on the first chip of every topology."""
    need = footprint(10 * GIB, 8 * GIB, GIB, 8, 1024)

    def on_devices(count: int) -> tuple[int, int]:
        return 10 * GIB // count, 8 * GIB // count

    advice = advise(need, parse("v5e:1x1"), 8, 1024, on_devices, beside=2 * GIB)
    assert (advice.slots, advice.context, advice.topology) == (2, 256, "v5e:2x2")
    advice = advise(need, parse("v5e:1x1"), 8, 1024, on_devices, beside=15 * GIB)
    assert (advice.slots, advice.context, advice.topology) == (0, 0, "v6e:2x2")
    assert larger(parse("v5e:1x1"), lambda devices: 20 * GIB) == "v6e:1x1"
    assert larger(parse("v5e:1x1"), lambda devices: 40 * GIB) is None


def test_what_lies_whole_on_one_chip_needs_a_larger_chip() -> None:
    """An image model of 20 GiB on eight chips of 16: one of 32 takes it, though that is less in all."""
    assert larger(parse("v5e:2x4"), lambda devices: 20 * GIB) == "v6e:1x1"
    assert larger(parse("v5e:2x4"), lambda devices: 160 * GIB // devices) is None
    here = Topology(name="8 devices", devices=8, chip=Chip(hbm=int(15.75 * GIB), bandwidth=0.0))
    assert larger(here, lambda devices: int(14.9 * GIB)) == "v6e:1x1"


def test_weights_that_no_number_of_slots_makes_room_for() -> None:
    need = footprint(20 * GIB, GIB, GIB, 8, 1024)
    advice = advise(need, parse("v5e:1x1"), 8, 1024, lambda devices: (20 * GIB // devices, GIB // devices))
    assert (advice.slots, advice.context, advice.topology) == (0, 0, "v5e:2x2")
    nowhere = advise(need, parse("v5e:1x1"), 8, 1024, lambda devices: (90 * GIB, GIB))
    assert "a smaller model, or int8" in str(nowhere)


def test_the_floor_is_bytes_over_bandwidth() -> None:
    floor = decode_floor(weights_read=1638 * 10**6, cache=0, slots=8, topology=parse("v5e:1x1"))
    assert floor.seconds == pytest.approx(2e-3)
    assert (floor.per_user, floor.in_all) == (pytest.approx(500), pytest.approx(4000))
    assert decode_floor(weights_read=1, cache=1, slots=1, topology=parse("cpu:1")) is None
