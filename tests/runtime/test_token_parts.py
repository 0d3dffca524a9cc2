"""Attention whose rows, heads or queries are split over simulated devices: the numbers of one device."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# By rows, tokens and heads: 4 heads and 514 tokens are divided by some and not by others.
ON_MESHES = """
import re
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from hfjax_app.runtime import flash_attention, token_parts
from hfjax_app.runtime.mesh import PICTURE_AXES, TOKENS

random = np.random.default_rng(0)
query, key, value = (jnp.asarray(random.normal(size=(2, 4, 514, 16)), jnp.bfloat16) for _ in range(3))
of_keys = (jnp.arange(514) < jnp.array([[400], [514]]))[:, None, None]
of_queries = jnp.tri(514, dtype=bool)

def kernel(query, key, value, mask):
    return flash_attention.attention(query, key, value, mask=mask, scale=0.25, interpret=True)

def plain(query, key, value, mask):
    query, key, value = (each.astype(jnp.float32) for each in (query, key, value))
    scores = jnp.where(True if mask is None else mask, query @ key.swapaxes(-1, -2) / 4, -1e9)
    return jax.nn.softmax(scores) @ value

def on(shape, attend, arrays, mask):
    devices = np.array(jax.devices()[: np.prod(shape)]).reshape(shape)
    mesh = Mesh(devices, PICTURE_AXES)
    place = NamedSharding(mesh, PartitionSpec(None, None, TOKENS))
    placed = [jax.device_put(array, place) for array in arrays]
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        program = jax.jit(lambda *arrays: token_parts.attention(attend, *arrays, mask)).lower(*placed).compile()
    exchanged = re.findall(r" (all-[a-z-]+|collective-[a-z]+)\\(", program.as_text())
    return np.asarray(program(*placed), np.float32), exchanged

arrays = query, key, value
for attend, mask in ((kernel, of_keys), (plain, of_keys), (plain, of_queries), (plain, None)):
    alone = np.asarray(jax.jit(attend)(*arrays, mask), np.float32)
    for shape in ((2, 1, 1), (1, 1, 4), (2, 2, 1), (1, 1, 8), (8, 1, 1)):
        found, _ = on(shape, attend, arrays, mask)
        np.testing.assert_allclose(found, alone, rtol=0, atol=0 if attend is kernel else 1e-5)
_, exchanged = on((1, 2, 1), kernel, arrays, of_keys)
assert set(exchanged) == {"all-to-all"}, exchanged
_, exchanged = on((1, 2, 1), plain, (query, key[:, :, :78], value[:, :, :78]), None)  # of a prompt: all keys to each
assert set(exchanged) == {"all-gather"}, exchanged
print("equal")
"""


def test_devices_compute_their_rows_heads_or_queries() -> None:
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-c", ON_MESHES]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "equal\n"
