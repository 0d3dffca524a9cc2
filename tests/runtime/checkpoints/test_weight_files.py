"""Which files of a folder are a checkpoint's weights, by the names that transformers and diffusers give them."""

import json
from pathlib import Path

import pytest

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.weight_files import weight_files


def test_weight_files_of_a_folder(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}}))
    for file in ("model-1.safetensors", "model-2.safetensors", "consolidated.safetensors"):
        (tmp_path / file).touch()
    assert [path.name for path in weight_files(tmp_path, "m")] == ["model-1.safetensors", "model-2.safetensors"]


def test_weight_files_of_diffusers(tmp_path: Path) -> None:
    """float16 weights only if there are no others, in one file or several."""
    half, whole = "diffusion_pytorch_model.fp16.safetensors", "diffusion_pytorch_model.safetensors"
    for names in ([half], [half, whole]):
        (tmp_path / names[-1]).touch()
        assert [path.name for path in weight_files(tmp_path, "m")] == names[-1:]
    (tmp_path / half).unlink()
    (tmp_path / whole).unlink()
    shard = "diffusion_pytorch_model.fp16-00001-of-00001.safetensors"
    index = tmp_path / "diffusion_pytorch_model.safetensors.index.fp16.json"
    index.write_text(json.dumps({"weight_map": {"a": shard}}))
    (tmp_path / shard).touch()
    assert [path.name for path in weight_files(tmp_path, "m")] == [shard]


def test_weight_files_of_another_variant_and_without_an_index(tmp_path: Path) -> None:
    """bfloat16 files were refused for want of an index, which such a checkpoint never has."""

    def found(*names: str) -> list[str]:
        for path in tmp_path.iterdir():
            path.unlink()
        for name in names:
            (tmp_path / name).touch()
        return [path.name for path in weight_files(tmp_path, "m")]

    bf16, fp16, own = (f"model{variant}.safetensors" for variant in (".bf16", ".fp16", ""))
    assert found(bf16) == [bf16]
    assert found("diffusion_pytorch_model.non_ema.safetensors") == ["diffusion_pytorch_model.non_ema.safetensors"]
    assert found(bf16, fp16) == [fp16]
    assert found(bf16, fp16, own) == [own]
    parts = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert found(bf16, *parts) == parts
    assert found(*(part.replace("model", "model.bf16") for part in parts))[1] == "model.bf16-00002-of-00002.safetensors"
    with pytest.raises(ModelUnavailable, match="'m' is here in part: 1 of 2 weight files are missing"):
        found(parts[1])
    with pytest.raises(ModelUnavailable, match="has weights, but none as safetensors"):
        found("else.bf16.safetensors", "model.bin")


def test_an_incomplete_download(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    (tmp_path / "model-1.safetensors").touch()
    with pytest.raises(
        ModelUnavailable, match=r"'m' is here in part: 1 of 2 weight files are missing, such as model-2"
    ):
        weight_files(tmp_path, "m")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": "../secret"}}'])
def test_an_invalid_index(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(
        ModelUnavailable, match=r"model 'm': model\.safetensors\.index\.json (is no index|names '\.\./)"
    ):
        weight_files(tmp_path, "m")
