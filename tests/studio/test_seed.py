"""The seed's field gives the whole number that was typed, to the last digit, or None."""

import pytest

from hfjax_app.errors import RequestRejected
from hfjax_app.images.request import ImageRequest
from hfjax_app.studio.tab import typed_seed


def test_a_typed_seed_is_read_exactly() -> None:
    assert typed_seed(" 18446744073709551615 ") == 2**64 - 1
    assert typed_seed(" ") is None
    assert typed_seed("minus one") == "minus one"


def test_more_digits_than_python_reads_are_rejected() -> None:
    """Above 4,300 digits int() raises a ValueError, which is not shown to visitors."""
    with pytest.raises(RequestRejected, match="must be a whole number"):
        ImageRequest("a", seed=typed_seed("9" * 5000))
