"""The same forward on all devices of this machine: tensor parallelism.

The program does not change, only where its arrays are. Of two consecutive projections the first is split by its outputs
and the second by its inputs, so each device computes a part of every layer and one sum over the devices ends it. XLA
sees the shardings of the weights and puts the sums where they are needed. Which weight is split how is transformers'
own plan for the architecture (`runtime/mesh.py`).
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import torchax

from hfjax_app.ladder.chat.task import ChatTask, Run
from hfjax_app.runtime.mesh import TensorParallel, mesh_of, replicated


def prepare(task: ChatTask) -> Run:
    mesh = mesh_of(jax.local_devices())
    model = task.load()
    sharding = TensorParallel(mesh, model)
    whole, forward = torchax.extract_jax(model)
    weights = {name: jax.device_put(array, sharding(name, array.shape)) for name, array in whole.items()}
    compiled = jax.jit(
        lambda weights, ids: forward(weights, (ids,), {"use_cache": False, "return_dict": False})[0],
        out_shardings=replicated(mesh),
    )

    def run() -> Iterator[int]:
        for _ in range(task.tokens):
            logits = compiled(weights, jax.device_put(jnp.array([task.prompt]), replicated(mesh)))
            yield int(logits[0, -1].argmax())

    return run
