"""Results of the last texts, beside a function that counts its calls."""

from typing import Any

import numpy as np
import pytest

from hfjax_app.images.text_encoder import Remembered


def test_the_last_results_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfjax_app.images.text_encoder.IMAGE_REMEMBERED_BYTES", 2 * 3 * 4)
    calls = []

    def doubled(weights: float, arguments: list[Any]) -> list[np.ndarray]:
        calls.append(weights)
        return [arguments[0] * np.float32(weights)]

    remembered: Any = Remembered(doubled)  # type: ignore[arg-type]
    text = np.float32([1, 2, 3])
    first = remembered(2.0, "", [text, None])
    np.testing.assert_array_equal(first[0], [2, 4, 6])
    first[0][:] = 0
    np.testing.assert_array_equal(remembered(2.0, "", [text.copy(), None])[0], [2, 4, 6])
    assert calls == [2.0], "what a caller writes into its result is its own"
    np.testing.assert_array_equal(remembered(3.0, "a", [text, None])[0], [3, 6, 9])
    remembered(2.0, "", [text, None])
    remembered(2.0, "", [-text, None])  # a third one: that of the LoRA goes
    assert calls == [2.0, 3.0, 2.0]
    remembered(2.0, "", [text, None])
    assert calls == [2.0, 3.0, 2.0]
    remembered(3.0, "a", [text, None])
    assert calls == [2.0, 3.0, 2.0, 3.0]
