"""What every test runs under: the CPU, no hub, and a cache of compiled programs of its own that runs share."""

import os
from pathlib import Path

# Before jax and huggingface_hub are imported; subprocesses of the tests inherit it.
for name in [name for name in os.environ if name.startswith("HFJAX_")]:
    del os.environ[name]
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parent.parent / ".pytest_cache" / "programs")
os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported, so too late for the commands that tests run in-process
