"""Reading a text-to-image checkpoint: any of diffusers' pipeline classes, and the settings of its model card.

The safety checker of old checkpoints is left out.
"""

import hashlib
import inspect
import os
import re
from pathlib import Path
from typing import Any, Protocol

import diffusers
import torch
import transformers
from accelerate import init_empty_weights
from diffusers import DiffusionPipeline
from diffusers.models.modeling_utils import LegacyModelMixin
from diffusers.pipelines.auto_pipeline import (
    AUTO_IMAGE2IMAGE_PIPELINES_MAPPING,
    AUTO_INPAINT_PIPELINES_MAPPING,
    AUTO_TEXT2IMAGE_PIPELINES_MAPPING,
)
from huggingface_hub import ModelCard, try_to_load_from_cache
from transformers import AutoImageProcessor, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from hfjax_app.errors import ModelUnavailable, first_line
from hfjax_app.images.interface import Recommended
from hfjax_app.images.request import MAX_GUIDANCE, MAX_STEPS
from hfjax_app.images.single_file import SingleFile, single_file
from hfjax_app.limits import IMAGE_MAX_SIDE
from hfjax_app.runtime.checkpoints.hub import Checkpoint, OnBytes, fetch
from hfjax_app.runtime.checkpoints.load_errors import (
    explain,
    git_lfs_pointers,
    needs_code,
    needs_git_lfs,
    wants_code,
)
from hfjax_app.runtime.checkpoints.processor import of_pictures
from hfjax_app.runtime.checkpoints.quantized import READABLE
from hfjax_app.runtime.checkpoints.tokenizer_files import check_vocabulary
from hfjax_app.runtime.checkpoints.weight_files import weight_files
from hfjax_app.runtime.seams.diffusers import needed_parts, schedulers_of_stable_diffusion
from hfjax_app.runtime.seams.transformers import built
from hfjax_app.validation import quoted

# By the channels that a denoiser reads besides the latents.
_OTHER_INPUTS = {
    5: "an inpainting model, which reads a mask and a picture; take the text-to-image model that it was made from",
    4: "a model that edits or enlarges pictures, which reads one; take a text-to-image model",
    3: "a model that enlarges pictures, which reads one; take a text-to-image model",
}
# A call's arguments and our names for them; where a class has both scales the second one guides.
_NAMES = {"num_inference_steps": "steps", "guidance_scale": "guidance_scale", "true_cfg_scale": "guidance_scale"}
_IN_CODE = re.compile(r"\b(num_inference_steps|guidance_scale|true_cfg_scale)\s*=\s*([0-9]{1,4}\.?[0-9]{0,4})\b")
# By an argument of their calls.
_OTHER_KINDS = {
    "num_frames": "makes videos",
    "audio_length_in_s": "makes sound",
    "audio_end_in_s": "makes sound",
    "control_image": "follows a picture",
    "image_embeds": "draws from a picture's embedding",
    "layers": "takes a picture apart",
}
# Stable Diffusion 3's T5, which its class draws without, though it doesn't say so.
_MAY_BE_NULL = {"text_encoder_3", "tokenizer_3"}
_WITHOUT = {"safety_checker": None, "requires_safety_checker": False}


class Pipeline(Protocol):
    """The part of diffusers' text-to-image pipelines that is used here; their common base class doesn't declare it."""

    scheduler: Any
    vae: Any

    @property
    def components(self) -> dict[str, Any]: ...

    def set_progress_bar_config(self, *, disable: bool) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def read_empty(source: str | os.PathLike[str]) -> Pipeline:
    """The checkpoint's torch pipeline without its weights, of the class that diffusers has for it.

    It is made from the configs and tokenizers alone. Pipelines read the device of their networks' parameters, so these
    are on the CPU, but take no memory: each is one zero (float32), expanded to its shape.

    Raises:
        ModelUnavailable: in one line: which model, why not, and what would help.
    """
    name = os.fspath(source)
    file = single_file(source)
    folder = fetch(source, weights=False) if file is None else SingleFile(file).configs
    try:
        config = DiffusionPipeline.load_config(folder)
    except Exception as error:
        raise ModelUnavailable(explain(name, error, weights=False)) from error
    if config.get("requires_aesthetics_score"):
        raise ModelUnavailable(
            f"model {name!r} is a refiner: it only finishes pictures that another model began; take that one, such as "
            "stabilityai/stable-diffusion-xl-base-1.0"
        )
    pipeline_kind = _kind(config, name)
    try:
        parts: dict[str, Any] = {key: value for key, value in _WITHOUT.items() if key in config}
        _check_parts(config, pipeline_kind, name)
        parts |= dict.fromkeys(_processors(config))
        for key, value in config.items():
            kind = _network_class(value) if key not in parts else None
            if kind is not None:
                if not (folder / key).is_dir():
                    raise ModelUnavailable(f"model {name!r} has no folder {key}, which its model_index.json names")
                parts[key] = _empty(kind, Checkpoint(folder=folder, name=name).part(key))
        pipeline = pipeline_kind.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, **parts
        )
        pipeline.register_modules(**_loaded_processors(config, folder))
    except ModelUnavailable:
        raise
    except Exception as error:
        if pointers := git_lfs_pointers(folder):
            raise ModelUnavailable(needs_git_lfs(name, pointers)) from error
        if wants_code(error):
            raise ModelUnavailable(needs_code(name)) from error
        raise ModelUnavailable(f"model {name!r} can't be made from its configs: {first_line(error)}") from error
    for key, component in pipeline.components.items():
        if isinstance(component, PreTrainedTokenizerBase):
            check_vocabulary(component, Checkpoint(folder=folder, name=name).part(key))
    if file is not None:
        SingleFile(file).set_scheduler(pipeline)
    _limit_tokenizers(pipeline)
    return _checked(pipeline, name)


def read_whole(source: str | os.PathLike[str]) -> Pipeline:
    """The checkpoint's torch pipeline with its weights on the CPU, float32.

    Raises:
        ModelUnavailable: as `read_empty` and `fetch_weights`.
    """
    empty = read_empty(source)  # checks it
    if file := single_file(source):
        whole: Pipeline = SingleFile(file).pipeline()
    else:
        folder = fetch_weights(source, empty).folder
        try:
            processors = _loaded_processors(DiffusionPipeline.load_config(folder), folder)
            whole = type(empty).from_pretrained(  # type: ignore[attr-defined]
                folder,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                variant=_variant(folder / denoiser_name(empty), os.fspath(source)),
                **{key: value for key, value in _WITHOUT.items() if key in empty.config},  # type: ignore[attr-defined]
                **dict.fromkeys(processors),
            )
            whole.register_modules(**processors)  # type: ignore[attr-defined]
        except Exception as error:
            raise ModelUnavailable(explain(os.fspath(source), error)) from error
    _limit_tokenizers(whole)
    return whole


def _variant(part: Path, name: str) -> str | None:
    """The variant of a network's weight files, as diffusers takes it: "fp16"; None for the plain ones."""
    first, *_ = weight_files(part, name)
    _, *variant, _ = first.name.split(".")
    return variant[0].partition("-")[0] if variant else None


def fetch_weights(source: str | os.PathLike[str], pipeline: Pipeline, on_bytes: OnBytes | None = None) -> Checkpoint:
    """The weight files of the pipeline's networks, each in its folder, downloaded as needed.

    Args:
        source: the folder or hub id of `pipeline`.
        pipeline: has the networks.
        on_bytes: as in `fetch`.

    Raises:
        ModelUnavailable: in one line: which model, why not, and what would help.
    """
    folder = fetch(source, parts=network_names(pipeline), on_bytes=on_bytes)
    return Checkpoint(folder=folder, name=os.fspath(source))


def _kind(config: dict[str, Any], name: str) -> Any:
    """The class that reads a pipeline: the one that it names, or diffusers' text-to-image class for one that edits.

    Raises:
        ModelUnavailable: it is no class of diffusers' that makes pictures of a prompt; says what it is.
    """
    named = str(config.get("_class_name"))
    kind: Any = getattr(diffusers, named, None)
    if not isinstance(kind, type) or not issubclass(kind, DiffusionPipeline):
        raise ModelUnavailable(f"model {name!r}: its class {quoted(named)} is not one of diffusers' pipelines")
    for mapping in (AUTO_IMAGE2IMAGE_PIPELINES_MAPPING, AUTO_INPAINT_PIPELINES_MAPPING):
        for family, other in mapping.items():
            if other is kind and kind not in AUTO_TEXT2IMAGE_PIPELINES_MAPPING.values():
                kind = AUTO_TEXT2IMAGE_PIPELINES_MAPPING.get(family, kind)
    accepted = inspect.signature(kind.__call__).parameters
    what = next((what for option, what in _OTHER_KINDS.items() if option in accepted), None)
    if what is None and "prompt" not in accepted:
        what = "takes no prompt"
    if what is None and "guider" in inspect.signature(kind).parameters:
        what = "guides each step by those before it"
    edits = "strength" not in accepted and kind in AUTO_IMAGE2IMAGE_PIPELINES_MAPPING.values()
    if what is None and "image" in accepted and not draws_from_text(kind) and not edits:
        what = "changes pictures"
    if what is not None:
        raise ModelUnavailable(f"model {name!r} is a {kind.__name__}, which {what}: take a text-to-image model")
    return kind


def draws_from_text(kind: type[Any]) -> bool:
    """Whether a class of pipelines that takes a picture makes one of a prompt alone too."""
    return kind in AUTO_TEXT2IMAGE_PIPELINES_MAPPING.values()


def _network_class(component: Any) -> type[torch.nn.Module] | None:
    """The class of a component that model_index.json names as [library, class]; None where it is not a network."""
    match component:
        case ["diffusers", str(name)]:
            kind = getattr(diffusers, name, None)
        case ["transformers", str(name)]:
            kind = getattr(transformers, name, None)
        case [str(family), str(name)]:  # diffusers' own, for one family of pipelines
            kind = getattr(getattr(diffusers.pipelines, family, None), name, None)
        case _:
            return None
    return kind if isinstance(kind, type) and issubclass(kind, torch.nn.Module) else None


def _processors(config: dict[str, Any]) -> dict[str, type[ProcessorMixin]]:
    """The components of a model_index.json that are a tokenizer with what reads pictures and videos, with the class."""
    named = {key: value[1] for key, value in config.items() if isinstance(value, list | tuple) and len(value) == 2}
    kinds = {key: getattr(transformers, name, None) for key, name in named.items() if isinstance(name, str)}
    return {key: kind for key, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, ProcessorMixin)}


def _loaded_processors(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Those, without what reads videos, which needs a package that is not here; of a tokenizer the tokenizer alone."""
    loaded = {}
    for key, kind in _processors(config).items():
        part, options = folder / key, {"trust_remote_code": False}
        loaded[key] = tokenizer = AutoTokenizer.from_pretrained(part, **options)
        if not key.startswith("tokenizer"):
            images = AutoImageProcessor.from_pretrained(part, backend="pil", **options)
            loaded[key] = of_pictures(kind, part, tokenizer, images)
    return loaded


def _check_parts(config: dict[str, Any], pipeline_kind: type[Any], name: str) -> None:
    """Refuse a model_index.json without a part that the class needs, or with a denoiser of another family."""
    for key in needed_parts(pipeline_kind):
        if config.get(key) in (None, [None, None]) and key not in _MAY_BE_NULL:
            raise ModelUnavailable(f"model {name!r} has no {key}, which a {pipeline_kind.__name__} needs")
    parameters = inspect.signature(pipeline_kind).parameters
    for key in ("unet", "transformer"):
        kind = _network_class(config.get(key))
        wanted = parameters[key].annotation if key in parameters else None
        if kind is not None and isinstance(wanted, type) and not issubclass(kind, (wanted, LegacyModelMixin)):
            raise _other_family(f"{name}/{key}", kind.__name__, f"a {pipeline_kind.__name__} has a {wanted.__name__}")


def _other_family(part: str, found: str, wanted: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"model {part!r} is a {found}, and {wanted}: it is of another family; take all parts from one repository"
    )


def _empty(kind: type[Any], part: Checkpoint) -> torch.nn.Module:
    network: torch.nn.Module
    quantization: Any
    with init_empty_weights(include_buffers=False):
        if issubclass(kind, PreTrainedModel):
            assert kind.config_class is not None
            config = kind.config_class.from_pretrained(part.folder)
            quantization = getattr(config, "quantization_config", None)
            network = built(kind, config, dtype=torch.float32)
        else:
            settings = kind.load_config(part.folder)
            named, quantization = settings.get("_class_name"), settings.get("quantization_config")
            if named not in (None, kind.__name__) and not issubclass(kind, LegacyModelMixin):
                raise _other_family(part.name, str(named), f"model_index.json says {kind.__name__}")
            network = kind.from_config(settings)
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method is not None and method not in READABLE:
        raise ModelUnavailable(f"model {part.name!r} is quantised ({method}): take its unquantised original")
    if isinstance(network, PreTrainedModel):
        network.tie_weights()  # init_empty_weights unties them
    zeros: dict[int, torch.nn.Parameter] = {}  # tied parameters stay tied
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) not in zeros:
                zero = torch.zeros((), dtype=torch.float32).expand(parameter.shape)
                zeros[id(parameter)] = torch.nn.Parameter(zero, requires_grad=False)
            setattr(module, name, zeros[id(parameter)])
    network.eval()
    return network


def _limit_tokenizers(pipeline: Pipeline) -> None:
    """Cut prompts where a text encoder's positions end; a tokenizer's config may name another length, or none."""
    for name in text_encoder_names(pipeline):
        tokenizer: Any = pipeline.components.get(name.replace("text_encoder", "tokenizer"))
        positions = getattr(pipeline.components[name].config, "max_position_embeddings", None)
        if tokenizer is not None and isinstance(positions, int) and tokenizer.model_max_length > positions:
            tokenizer.model_max_length = positions
            if name == "text_encoder" and hasattr(pipeline, "tokenizer_max_length"):
                pipeline.tokenizer_max_length = positions  # Stable Diffusion 3's pipeline keeps it


def _checked(pipeline: Pipeline, name: str) -> Pipeline:
    network: Any = getattr(pipeline, denoiser_name(pipeline), None)
    if not isinstance(network, torch.nn.Module):
        raise ModelUnavailable(f"model {name!r}: it has no unet and no transformer")
    if not isinstance(getattr(pipeline, "vae", None), torch.nn.Module):
        raise ModelUnavailable(f"model {name!r}: it has no vae")
    config: Any = network.config
    channels, latent_channels = config.get("in_channels"), getattr(pipeline.vae.config, "latent_channels", 0)
    if denoiser_name(pipeline) == "unet" and channels != latent_channels:
        raise ModelUnavailable(
            f"model {name!r}: its denoiser reads {channels} channels, and the latents have {latent_channels}: "
            f"{_OTHER_INPUTS.get(channels - latent_channels, 'not a plain text-to-image model')}"
        )
    return pipeline


def network_names(pipeline: Pipeline) -> list[str]:
    """The names of the pipeline's networks: text encoders, denoiser and autoencoder."""
    return [*text_encoder_names(pipeline), denoiser_name(pipeline), "vae"]


def text_encoder_names(pipeline: Pipeline) -> list[str]:
    """The names of the pipeline's components that read the prompt."""
    return [
        name
        for name, component in pipeline.components.items()
        if name.startswith("text_encoder") and component is not None
    ]


def denoiser_name(pipeline: Pipeline) -> str:
    """The name of the pipeline's component that predicts the noise."""
    return "unet" if getattr(pipeline, "unet", None) is not None else "transformer"


def revision_of(source: str | os.PathLike[str]) -> str:
    """The checkpoint's revision: its commit on the hub, or a hash of its folder's files or its single file.

    Returns:
        12 hexadecimal digits.
    """
    folder = Path(source)
    if file := single_file(source):
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()[:12]
    if not folder.is_dir():
        repository, _, named = os.fspath(source).partition("@")
        config = try_to_load_from_cache(repository, "model_index.json", revision=named or None)
        # in the hub's cache: .../snapshots/<commit>/model_index.json
        return Path(config).parent.name[:12] if isinstance(config, str) else "unknown"
    digest = hashlib.sha256()
    for file in sorted(
        path for path in folder.rglob("*") if path.suffix in (".safetensors", ".json", ".txt", ".model")
    ):
        digest.update(file.relative_to(folder).as_posix().encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:12]


def recommended(source: str | os.PathLike[str], pipeline: Pipeline | None = None) -> Recommended:
    """The settings of the checkpoint's model card.

    The card's front matter holds `inference: parameters: {num_inference_steps: ..., guidance_scale: ...}`, in the
    convention of Hugging Face's inference widget, and width and height besides; else its code says them. A card that is
    missing, can't be read, or has values outside the limits is ignored: it never stops a model from loading.

    Args:
        source: the folder or hub id, or a single file, which has the card of the model that it was made from.
        pipeline: its class's own values count where the card has none, unless its scheduler is of the kind that users
            replace, for which a number of our own is enough.
    """
    if file := single_file(source):
        source = SingleFile(file).configs
    card, text, inference = Path(source) / "README.md", "", None
    if not Path(source).exists():
        repository, _, named = os.fspath(source).partition("@")
        kept = _kept_card(repository, named or None)
        card = Path(kept) if isinstance(kept, str) else card
    try:
        if card.is_file():
            text = card.read_text(errors="replace")
            inference = ModelCard(text).data.to_dict().get("inference")
    except Exception:  # a card is free text, and its front matter is any YAML
        inference = None
    parameters = inference.get("parameters") if isinstance(inference, dict) else None
    found = _values_of_class(pipeline) | _values_in_code(text)
    if isinstance(parameters, dict):
        found |= {_NAMES.get(name, name): value for name, value in parameters.items() if isinstance(name, str)}
    kept_values: dict[str, Any] = {}
    steps: Any = found.get("steps")
    guidance: Any = found.get("guidance_scale")
    if type(steps) is int and 1 <= steps <= MAX_STEPS:
        kept_values["steps"] = steps
    if type(guidance) in (int, float) and 0 <= guidance <= MAX_GUIDANCE:
        kept_values["guidance_scale"] = float(guidance)
    width, height = found.get("width"), found.get("height")
    if type(width) is int and type(height) is int and 0 < min(width, height) <= max(width, height) <= IMAGE_MAX_SIDE:
        kept_values["size"] = (width, height)
    return Recommended(**kept_values)


def _kept_card(repository: str, revision: str | None) -> Any:
    try:
        return try_to_load_from_cache(repository, "README.md", revision=revision)
    except Exception:  # no name of a repository
        return None


def _values_of_class(pipeline: Pipeline | None) -> dict[str, Any]:
    if pipeline is None or type(pipeline.scheduler).__name__ in schedulers_of_stable_diffusion():
        return {}
    signature = inspect.signature(pipeline.__call__).parameters
    found = {own: signature[name].default for name, own in _NAMES.items() if name in signature}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def _values_in_code(card: str) -> dict[str, Any]:
    """The values of the first call in a card's code that names the steps."""
    for block in card.split("```")[1::2]:
        values = dict(_IN_CODE.findall(block))
        if "num_inference_steps" in values:
            found = {own: float(values[name]) for name, own in _NAMES.items() if name in values}
            return found | {"steps": int(values["num_inference_steps"].partition(".")[0] or 0)}
    return {}
