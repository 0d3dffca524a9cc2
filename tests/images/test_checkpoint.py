"""What a model card recommends, and what tells one checkpoint from another."""

from pathlib import Path

import pytest

from hfjax_app.images.checkpoint import Recommended, recommended, revision_of

CARD = "---\ninference:\n  parameters:\n    {}\n---\n# A model\n"


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("guidance_scale: 4", Recommended(guidance_scale=4.0)),
        ("{num_inference_steps: 1, guidance_scale: 0.0}", Recommended(steps=1, guidance_scale=0.0)),
        ("{num_inference_steps: 2.5, guidance_scale: .nan}", Recommended()),
        ("{num_inference_steps: 100000, guidance_scale: -1}", Recommended()),
        ("{num_inference_steps: true, guidance_scale: 'x'}", Recommended()),
        ("- 4", Recommended()),
    ],
)
def test_the_card_recommends(tmp_path: Path, parameters: str, expected: Recommended) -> None:
    (tmp_path / "README.md").write_text(CARD.format(parameters))
    assert recommended(tmp_path) == expected


@pytest.mark.parametrize("card", ["", "# no front matter", "---\n: [\n---\n", "---\ninference: false\n---\n", "\x00"])
def test_a_card_never_keeps_a_model_from_being_used(tmp_path: Path, card: str) -> None:
    (tmp_path / "README.md").write_text(card)
    assert recommended(tmp_path) == Recommended()
    assert recommended(tmp_path / "missing") == recommended("owner/name") == Recommended()


def test_a_revision_follows_the_weights_and_not_the_card(tmp_path: Path) -> None:
    weights = tmp_path / "unet" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"one")
    (tmp_path / "README.md").write_text("# One")
    first = revision_of(tmp_path)
    (tmp_path / "README.md").write_text("# Two")
    assert revision_of(tmp_path) == first
    weights.write_bytes(b"two")
    assert revision_of(tmp_path) != first
    assert len(first) == 12
