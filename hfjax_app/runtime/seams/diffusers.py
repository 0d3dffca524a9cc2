"""diffusers: single files of whole models, the parts that take a LoRA, and the schedulers of Stable Diffusion."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from hfjax_app.runtime.seams import Seam, moved, needed, part

VERSIONS = {"diffusers": "0.42.1"}
SEAMS = (
    Seam(
        name="kinds of single files",
        what="infer_diffusers_model_type of diffusers.loaders.single_file_utils",
        without="single files of models can't be loaded",
    ),
    Seam(
        name="parts with a LoRA",
        what="`_lora_loadable_modules` of pipelines",
        without="models with a LoRA can't be loaded",
    ),
    Seam(
        name="old names in checkpoints",
        what="`_fix_state_dict_keys_on_load` of models",
        without="checkpoints with the names of older releases can't be loaded",
    ),
    Seam(
        name="schedulers of a family",
        what="the enumeration diffusers.schedulers.KarrasDiffusionSchedulers",
        without="a checkpoint's own scheduler is the only choice, unless it is LCM",
    ),
)

_SINGLE_FILES = "diffusers.loaders.single_file_utils"


def kind_of_file(keys: Mapping[str, Any]) -> str:
    """diffusers' name for the kind of model that has these tensors.

    Args:
        keys: name -> anything with a `shape`.

    Raises:
        Moved: that can't be found out.
    """
    return str(needed(f"{_SINGLE_FILES}:infer_diffusers_model_type")(keys))


def parts_with_lora(pipeline: Any) -> list[str]:
    """The names of a pipeline's parts that a LoRA may change, those that it has.

    Raises:
        Moved: that can't be found out.
    """
    names = getattr(pipeline, "_lora_loadable_modules", None)
    if names is None:
        raise moved(f"diffusers:{type(pipeline).__name__}._lora_loadable_modules")
    return [name for name in names if getattr(pipeline, name, None) is not None]


def rename_old_keys(model: Any, values: "OrderedDict[str, Any]") -> None:
    """Move the values of keys that an older release wrote to the keys of today, as `from_pretrained` does."""
    where = "diffusers:ModelMixin._fix_state_dict_keys_on_load"
    if part(where, without="checkpoints of older releases can't be loaded") is not None:
        model._fix_state_dict_keys_on_load(values)


def schedulers_of_stable_diffusion() -> set[str]:
    """The names of the scheduler classes that can take each other's place."""
    where = "diffusers.schedulers:KarrasDiffusionSchedulers"
    family = part(where, without="a model's own scheduler is the only choice")
    return {member.name for member in family or ()}
