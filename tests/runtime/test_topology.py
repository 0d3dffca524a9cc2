"""Chips by name and by cost: figures that can be checked by hand."""

import pytest

from hfjax_app.errors import RequestRejected
from hfjax_app.runtime.topology import NAMES, by_cost, parse, parse_prices

GIB = 1 << 30


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
