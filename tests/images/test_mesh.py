"""Pictures over eight simulated devices: two share a guidance pair, and the latents are those of one device."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hfjax_app.images import ImageGenerator, ImageRequest

OPTIONS = {"steps": 4, "guidance_scale": 3.0, "seed": 3, "images": 2, "scheduler": "Euler ancestral"}

SCRIPT = """
import json, re, sys
import jax
import numpy as np
from hfjax_app.images import ImageGenerator, ImageRequest

folder, options, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
generator = ImageGenerator.from_pretrained(folder)
programs = generator._programs.sized(generator.facts.size)

def draw(**changed):
    return [p.latents for p in list(generator.generate(ImageRequest("red dot", **options | changed)))[-1].pictures]

latents = draw()
np.save(out, np.concatenate(latents))
denoise = programs._denoisers[True, False]._step
text = denoise.as_text()
print(json.dumps({
    "devices": [len(jax.devices()), generator.facts.versions["device"]],
    "second_alone": bool((latents[1] == draw(images=1, seed=options["seed"] + 1)[0]).all()),
    "collectives": re.findall(r" (all-[a-z]+|collective-[a-z]+|reduce-scatter)(?:-start)?\\(", text),
    "flops": denoise.cost_analysis()["flops"],
    "in_place": denoise.memory_analysis().alias_size_in_bytes,
    "state": sum(leaf.nbytes for leaf in jax.tree.leaves(programs.start(latents[0]))),
}))
"""


def test_eight_devices_draw_what_one_draws(folder: Path, generator: ImageGenerator, tmp_path: Path) -> None:
    """Both rows of the pair run at once, each on its own device, with one collective a step."""
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, "-c", SCRIPT, str(folder), json.dumps(OPTIONS), str(tmp_path / "latents.npy")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["devices"] == [8, "2 x cpu"]
    pictures = list(generator.generate(ImageRequest("red dot", **OPTIONS)))[-1].pictures
    latents = np.concatenate([picture.latents for picture in pictures])
    assert latents.std() > 0.1, "the comparison needs a picture"
    np.testing.assert_allclose(np.load(tmp_path / "latents.npy"), latents, rtol=0, atol=1e-4)
    assert found["second_alone"], "a seed's picture must not depend on those around it"
    assert len(found["collectives"]) == 1, found["collectives"]
    row = generator._programs.sized(generator.facts.size)._denoisers[True, False]._predict.cost_analysis()["flops"]
    assert found["flops"] < 1.2 * row, "each device has one row of the pair"
    assert found["in_place"] >= found["state"]
