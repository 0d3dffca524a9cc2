"""Rung 2: the UNet and the text encoder compiled.

`torchax.compile` puts a module with a compiled forward in the place of another, and the pipeline does not notice. Two
things are needed. Options that the forward's Python code branches on, such as `return_dict`, are static: they belong to
the program and not to its data. And the classes of results must be pytrees, which JAX takes apart into arrays.
"""

from typing import Any

import jax
import torchax
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling
from transformers.utils import ModelOutput

from hfjax_app.images.checkpoint import denoiser_name, text_encoder_names
from hfjax_app.ladder.images.eager_pipeline import drawing, on_jax
from hfjax_app.ladder.images.task import ImageTask, Run

STATIC = ("return_dict", "output_hidden_states")


def is_pytree(kind: type[ModelOutput]) -> bool:
    """Whether JAX knows this class of results; one that it doesn't know is a leaf."""
    return not jax.tree_util.all_leaves([kind()])


def register(kind: type[ModelOutput]) -> None:
    """Tell JAX how a result is taken apart and put together again."""
    jax.tree_util.register_pytree_node(
        kind,
        lambda output: (tuple(output.values()), tuple(output.keys())),
        lambda names, values: kind(**dict(zip(names, values, strict=True))),
    )


def compile_networks(pipeline: Any) -> None:
    for kind in (BaseModelOutput, BaseModelOutputWithPooling):
        if not is_pytree(kind):
            register(kind)
    options = torchax.CompileOptions(jax_jit_kwargs={"static_argnames": STATIC})
    with torchax.default_env():
        for name in (denoiser_name(pipeline), *text_encoder_names(pipeline)):
            setattr(pipeline, name, torchax.compile(getattr(pipeline, name), options))


def prepare(task: ImageTask) -> Run:
    pipeline = on_jax(task)
    compile_networks(pipeline)
    return drawing(pipeline, task)
