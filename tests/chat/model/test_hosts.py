"""Two processes like two hosts of a TPU slice: one sharded prefill and decode over the devices of both."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.chat.model.test_mesh import LAYERS, SMALL

# Both processes run the same program, as hosts do; the collectives use the loopback interface.
SCRIPT = """
import json, sys
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[2], num_processes=2, process_id=int(sys.argv[3]), initialization_timeout=60)
import numpy as np
from transformers import AutoModelForCausalLM
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.chat.model.slot_functions import PromptChunk
from hfjax_app.chat.options import EngineOptions
from hfjax_app.chat.sampling.params import SamplingParams
from hfjax_app.chat.sampling.sampler import packed, sampler_state
from hfjax_app.runtime.mesh import serving_mesh, mesh_of
from hfjax_app.runtime.process import prepare
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.warm_up import WarmUp
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.safetensors_reader import read

prepare()
prompt = np.random.default_rng(0).integers(5, 512, 16).astype(np.int32)
greedy = packed(sampler_state(SamplingParams(temperature=0.0), 0))

def tokens(mesh):
    model = empty_model(AutoModelForCausalLM, sys.argv[1])
    options = EngineOptions(slots=1, context=48, end_tokens=(), prefill_chunk=16, decode_chunk=16, buckets=())
    runner = ModelRunner(model, options, mesh=mesh)
    weights = read(model, sys.argv[1], transforms=runner.transforms, placement=runner.placement)
    runner.load(weights)
    runner.reset()
    WarmUp(Programs(mesh=mesh), runner.specs(), staged=False).start()
    first = runner.prefill(PromptChunk.of(0, prompt, 0, 16, 17, greedy))
    made, _ = runner.decode([0], 33, 16)
    split = sum(not weight.is_fully_addressable and not weight.is_fully_replicated for weight in weights.values())
    return split, [int(t) for part in (first, made) for t in np.asarray(part.tokens)[:, 0]]

split, made = tokens(mesh_of(jax.devices()))
found = {"devices": [len(jax.devices()), serving_mesh().size], "split": split, "tokens": made}
if jax.process_index() == 1:
    found["alone"] = tokens(None)[1]
print(json.dumps(found))
"""


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_two_processes_make_the_tokens_of_one(tmp_path: Path) -> None:
    """Each process reads only its own devices' parts. The second one also runs programs on its own devices alone."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(num_attention_heads=8, num_key_value_heads=4, **SMALL))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.15)
    model.save_pretrained(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        # A slice's list of hosts has no effect on a process on the CPU, which does not wait for them.
        "TPU_WORKER_HOSTNAMES": "host-0,host-1,host-2",
    }
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), address]
    processes = [
        subprocess.Popen(
            [*command, str(number)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for number in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=500) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, stderr) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, stderr
    first, second = (json.loads(stdout.splitlines()[-1]) for stdout, _ in outputs)
    assert first["tokens"] == second["tokens"] == second["alone"]
    assert len(first["tokens"]) == 17
    assert len(set(first["tokens"])) > 1
    for found in (first, second):
        assert found["devices"] == [4, 2]
        assert found["split"] >= LAYERS * 7 + 1
