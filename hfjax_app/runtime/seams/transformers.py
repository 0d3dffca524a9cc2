"""transformers: which class a configuration has, how its checkpoints are named, and what building a model changes."""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from hfjax_app.runtime.seams import Seam, missing, moved, part

if TYPE_CHECKING:
    import re

    import torch
    from transformers import PreTrainedModel

VERSIONS = {"transformers": "5.23.0"}
SEAMS = (
    Seam(
        name="classes of configurations",
        what="`_model_mapping` of the auto classes",
        without="models can't be loaded",
    ),
    Seam(
        name="models without weights",
        what="the class method `_from_config` of models",
        without="models can't be loaded",
    ),
    Seam(
        name="kept in float32",
        what="`_get_dtype_plan` of models, and build_glob_alternation of transformers.core_model_loading",
        without="all tensors have the model's dtype, also those that its authors keep in float32",
    ),
    Seam(
        name="buffers computed again",
        what="the private attribute `_is_hf_initialized` of modules with buffers that no checkpoint contains",
        without="`initialize_weights` skips modules with this attribute, whose buffers are then in the model's dtype",
    ),
    Seam(
        name="names in checkpoints",
        what="get_model_conversion_mapping of transformers.conversion_mapping, and WeightConverter, WeightRenaming and "
        "rename_source_key of transformers.core_model_loading",
        without="only checkpoints are read whose tensors are named as in the model",
    ),
    Seam(
        name="experts",
        what="the registry ALL_EXPERTS_FUNCTIONS, and `_is_expert_parallel` and `_apply_gate` of modules with experts",
        without="mixtures of experts can't be loaded",
    ),
    Seam(
        name="registries in code",
        what="the source code of a model's module, searched for a registry's name",
        without="without source code models keep their own attention, which is slower",
    ),
    Seam(
        name="sets in order",
        what="`set` in the modules of a model's classes is a set with a fixed order of iteration",
        without="models are traced in the order of sets of strings, which differs from process to process",
    ),
    Seam(
        name="attention of a model",
        what="`_attn_implementation` of configurations",
        without="classifiers of long texts read fewer tokens, as if all scores were in memory at once",
    ),
    Seam(
        name="cache layers",
        what="attributes of StaticLayer and LinearAttentionLayer, set by hand; layers without their constructors",
        without="chat models can't be traced: why they can't run is told in one line",
        file="chat/model/slot_view.py",
    ),
    Seam(
        name="one model at a time",
        what="models are built and traced by one thread at a time",
        without="building a model changes torch's default dtype for the whole process",
        file="runtime/tracing.py",
    ),
)


class OrderedSet(set[Any]):
    """A set that iterates in the order of its elements' representations."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=repr))


def order_sets(*classes: type) -> None:
    """Replace `set` by OrderedSet in the modules that define these classes, but for torch's own modules.

    Python orders a set of strings by hashes that differ from process to process. Code such as `for layer_type in
    set(config.layer_types)` (Gemma 3 and others) is traced in that order, so every other start compiled all programs
    again. Set displays ({a, b}) and results of set operators keep Python's order.
    """
    for name in {cls.__module__ for cls in classes}:
        if not name.startswith("torch."):
            vars(sys.modules[name])["set"] = OrderedSet


def has_class(auto_class: Any, config: Any) -> bool:
    """Whether an auto class has a class for a configuration; imports none.

    Raises:
        Moved: that can't be found out.
    """
    return type(config) in _classes_of(auto_class)


def class_of(auto_class: Any, config: Any) -> Any:
    """The class that an auto class has for a configuration; None: it has none.

    Raises:
        Moved: as `has_class`.
    """
    return _classes_of(auto_class).get(type(config), None)


def _classes_of(auto_class: Any) -> Any:
    classes = getattr(auto_class, "_model_mapping", None)
    if classes is None:
        raise moved(f"transformers:{auto_class.__name__}._model_mapping")
    return classes


def built(model_class: Any, config: Any, **options: Any) -> "PreTrainedModel":
    """A model of a configuration, with initial weights wherever the surrounding context puts them.

    Args:
        options: `dtype` and `attn_implementation`.

    Raises:
        Moved: this release builds models in another way.
    """
    build = getattr(model_class, "_from_config", None)
    if build is None:
        raise moved("transformers:PreTrainedModel._from_config")
    model: PreTrainedModel = build(config, **options)
    return model


def initialise_again(module: "torch.nn.Module") -> None:
    """Let the next `initialize_weights` compute the buffers of this module."""
    module._is_hf_initialized = False  # type: ignore[assignment]


def kept_in_float32(model: "PreTrainedModel", dtype: "torch.dtype") -> "re.Pattern[str] | None":
    """Matches the names of tensors that stay float32 in a model of this dtype; None: there are none."""
    without = "all tensors of a model have its dtype"
    plan = part("transformers:PreTrainedModel._get_dtype_plan", without=without)
    alternation = part("transformers.core_model_loading:build_glob_alternation", without=without)
    if plan is None or alternation is None or not (names := plan(model, dtype)):
        return None
    pattern: re.Pattern[str] = alternation(list(names))[0]
    return pattern


def renamed(
    model: "PreTrainedModel", keys: Iterable[tuple[str, str]], known: dict[str, "torch.Tensor"]
) -> list[tuple[str, str, Any, str | None]]:
    """The tensors of a checkpoint that a model knows, by transformers' rules for the model.

    Args:
        keys: pairs of a checkpoint's key and the name that the rules are for.
        known: the model's tensors.

    Returns:
        For each the key, its name in the model, and for one of several sources the converter (with `convert`) and the
        pattern of it that has matched.
    """
    loading, without = "transformers.core_model_loading", "tensors of checkpoints are looked for by their own names"
    rules_of = part("transformers.conversion_mapping:get_model_conversion_mapping", without=without)
    rename = part(f"{loading}:rename_source_key", without=without)
    kinds = [part(f"{loading}:{name}", without=without) for name in ("WeightRenaming", "WeightConverter")]
    if rules_of is None or rename is None or None in kinds:
        return [(key, own, None, None) for key, own in keys if own in known]
    rules = rules_of(model)
    renamings, converters = ([rule for rule in rules if isinstance(rule, kind)] for kind in kinds)
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    found: list[tuple[str, str, Any, str | None]] = []
    for key, own in keys:
        name, pattern = rename(own, renamings, converters, model.base_model_prefix, known)
        if name in known:
            found.append((key, name, None if pattern is None else by_pattern[pattern], pattern))
        elif own in known:
            found.append((key, own, None, None))
    return found


def holds_experts(module: "torch.nn.Module") -> bool:
    """Whether experts of this module are computed by a function of the registry."""
    return hasattr(module, "_is_expert_parallel")


def gate_of(module: Any) -> Callable[["torch.Tensor"], "torch.Tensor"]:
    """What a module with experts computes of the products of its first matrix, [rows, 2 * inner] to [rows, inner]."""
    gate: Callable[[torch.Tensor], torch.Tensor] = module._apply_gate
    return gate


def register_experts(name: str, function: Callable[..., Any]) -> None:
    """Add a function to the registry, for `set_experts_implementation(name)`."""
    where = "transformers.integrations.moe:ALL_EXPERTS_FUNCTIONS"
    if (registry := part(where, without="mixtures of experts can't be loaded")) is not None:
        registry.register(name, function)


def attention_of(model: Any) -> str:
    """The name of the attention that a model computes, such as "sdpa" or "eager"."""
    return str(getattr(model.config, "_attn_implementation", ""))


def mentions(model_class: type, name: str) -> bool:
    """Whether an architecture's code names one of transformers' registries. No attribute of the class tells."""
    try:
        return name in inspect.getsource(sys.modules[model_class.__module__])
    except OSError:
        missing(f"the source code of {model_class.__module__}", "its models keep their own attention")
        return False
