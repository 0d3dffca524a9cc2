"""Rung 3: the VAE's decoder compiled too.

`torchax.compile` compiles a module's forward, and a pipeline never calls the VAE's: it calls `decode`. Without
`methods_to_compile` the largest picture of all, the one of the last layers, is computed one operator at a time.
"""

import torchax

from hfjax_app.ladder.images.compiled_networks import STATIC, compile_networks
from hfjax_app.ladder.images.eager_pipeline import drawing, on_jax
from hfjax_app.ladder.images.task import ImageTask, Run


def prepare(task: ImageTask) -> Run:
    pipeline = on_jax(task)
    compile_networks(pipeline)
    options = torchax.CompileOptions(methods_to_compile=["decode"], jax_jit_kwargs={"static_argnames": STATIC})
    with torchax.default_env():
        pipeline.vae = torchax.compile(pipeline.vae, options)
    return drawing(pipeline, task)
