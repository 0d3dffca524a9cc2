"""One GPU: tokens a second and seconds a picture, compared with PyTorch on the same card, on the same random weights.

`python -m benchmarks.gpu` makes checkpoints of Llama 3.2 1B's and Stable Diffusion 2's shapes in bfloat16 and measures
each contender in a process of its own, because torch and jax both reserve the card's memory. Contenders take turns in
every round, and medians count. The floor of a step is the bytes of the weights divided by the card's bandwidth, which
a copy measures. Needs `requirements-cuda.txt` and a torch that sees the card. The last line of output is JSON.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.shapes import LLAMA_2_7B, LLAMA_3_2_1B, STABLE_DIFFUSION_2

CONTEXT, PROMPT, LONG_PROMPT, NEW = 1024, 64, 512, 128
STEPS, SIZE, GUIDANCE = 20, 512, 7.5
CROWDS = (1, 8)
SHAPES = {"llama-3.2-1b": LLAMA_3_2_1B, "llama-2-7b": LLAMA_2_7B}
CHAT = ("hfjax", "hfjax int8", "torch eager", "torch.compile")
IMAGES = ("hfjax", "torch eager", "torch.compile")
GIB = 2**30

# Takes a request's fields and returns seconds by name.
Run = Callable[..., dict[str, float]]


def make_llama(folder: Path, shape: str) -> None:
    """A checkpoint as the hub has it, with the embedded model's small tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0, "rms_norm_eps": 1e-5}
    with torch.device("cuda"):
        config = LlamaConfig(**SHAPES[shape], max_position_embeddings=8192, **special)
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(Path("hfjax_app/embedded/chat-llama")).save_pretrained(folder)


def make_stable_diffusion(folder: Path) -> None:
    """A pipeline as the hub has it, with a tokenizer of letters."""
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["<|startoftext|>", "<|endoftext|>", *letters, *(letter + "</w>" for letter in letters)]
    with torch.device("cuda"):
        networks: dict[str, Any] = {
            "text_encoder": CLIPTextModel(CLIPTextConfig(**STABLE_DIFFUSION_2["text_encoder"])),
            "unet": UNet2DConditionModel(**STABLE_DIFFUSION_2["unet"]),
            "vae": AutoencoderKL(**STABLE_DIFFUSION_2["vae"]),
        }
    pipeline = StableDiffusionPipeline(
        **{name: network.eval().to(torch.bfloat16) for name, network in networks.items()},
        tokenizer=CLIPTokenizer(vocab={p: i for i, p in enumerate(pieces)}, merges=[], model_max_length=77),
        scheduler=DDIMScheduler(beta_schedule="scaled_linear", clip_sample=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder)


def _our_chat(folder: str, **options: Any) -> Run:
    from hfjax_app.chat import ChatEngine, SamplingParams

    engine = ChatEngine.from_pretrained(
        folder, slots=max(CROWDS), context=CONTEXT, speculation="never", **options
    ).start()

    def run(prompts: list[list[int]], new: int) -> dict[str, float]:
        params = SamplingParams(max_tokens=new, temperature=0.0)
        started = time.perf_counter()
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(engine.stream(prompt, params)) for prompt in prompts]
            for stream in streams:
                next(stream)
            first = time.perf_counter() - started
            for stream in streams:
                for _ in stream:
                    pass
        return {"first": first, "all": time.perf_counter() - started}

    return run


def _torch_chat(folder: str, *, compiled: bool) -> Run:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cuda").eval()
    options = {"cache_implementation": "static"} if compiled else {}  # generate compiles its forward by itself

    def run(prompts: list[list[int]], new: int) -> dict[str, float]:
        started = time.perf_counter()
        ids = torch.tensor(prompts, device="cuda")
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                **options,
            )
        torch.cuda.synchronize()
        return {"all": time.perf_counter() - started}

    return run


def _our_images(folder: str) -> Run:
    from hfjax_app.images import ImageGenerator, ImageRequest

    generator = ImageGenerator.from_pretrained(folder)
    request = ImageRequest("a red circle", steps=STEPS, guidance_scale=GUIDANCE, seed=1)

    def run() -> dict[str, float]:
        started = time.perf_counter()
        for _ in generator.generate(request):
            pass
        return {"all": time.perf_counter() - started}

    return run


def _torch_images(folder: str, *, compiled: bool) -> Run:
    import torch
    from diffusers import StableDiffusionPipeline

    pipeline = StableDiffusionPipeline.from_pretrained(folder, torch_dtype=torch.bfloat16).to("cuda")
    pipeline.set_progress_bar_config(disable=True)
    if compiled:
        pipeline.unet = torch.compile(pipeline.unet, mode="reduce-overhead")
        pipeline.vae.decode = torch.compile(pipeline.vae.decode)

    def run() -> dict[str, float]:
        started = time.perf_counter()
        pipeline("a red circle", num_inference_steps=STEPS, guidance_scale=GUIDANCE)
        torch.cuda.synchronize()
        return {"all": time.perf_counter() - started}

    return run


def worker(kind: str, name: str, folder: str) -> None:
    """Load a contender and answer requests, JSON lines on stdin, with its seconds."""
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print
    makers: dict[tuple[str, str], Callable[[], Run]] = {
        ("chat", "hfjax"): lambda: _our_chat(folder),
        ("chat", "hfjax int8"): lambda: _our_chat(folder, quantize="int8"),
        ("chat", "torch eager"): lambda: _torch_chat(folder, compiled=False),
        ("chat", "torch.compile"): lambda: _torch_chat(folder, compiled=True),
        ("images", "hfjax"): lambda: _our_images(folder),
        ("images", "torch eager"): lambda: _torch_images(folder, compiled=False),
        ("images", "torch.compile"): lambda: _torch_images(folder, compiled=True),
    }
    started = time.perf_counter()
    run = makers[kind, name]()
    print(json.dumps({"ready": time.perf_counter() - started}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), file=answers, flush=True)


class Contender:
    """A process of `worker`."""

    def __init__(self, kind: str, name: str, folder: Path):
        self.name = name
        environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        command = [sys.executable, "-m", "benchmarks.gpu", "--worker", kind, name, str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.ready = self._read()["ready"]
        print(f"{name}: ready after {self.ready:.1f} s", flush=True)

    def run(self, **request: Any) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self._process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def contenders(kind: str, names: tuple[str, ...], folder: Path) -> Iterator[list[Contender]]:
    """Those that can be loaded."""
    made: list[Contender] = []
    try:
        for name in names:
            try:
                made.append(Contender(kind, name, folder))
            except RuntimeError as error:
                print(error, flush=True)
        yield made
    finally:
        for contender in made:
            contender.end()


def turns(made: list[Contender], rounds: int, request: Callable[[int], dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Medians over rounds after two that warm up."""
    taken: dict[str, list[dict[str, float]]] = {contender.name: [] for contender in made}
    for turn in range(rounds + 2):
        for contender in made:
            answer = contender.run(**request(turn))
            if turn > 1:
                taken[contender.name].append(answer)
    return {name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in taken.items()}


def prompts(users: int, length: int, seed: int) -> list[list[int]]:
    """Other tokens in each round, so that no contender answers from a cache of earlier prompts."""
    import random

    draw = random.Random(seed)
    return [[draw.randrange(1, 512) for _ in range(length)] for _ in range(users)]


def chat(shape: str, rounds: int, names: tuple[str, ...]) -> dict[str, Any]:
    """Seconds of answers; a torch contender's first token is a whole answer of one token."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        in_process(make_llama, Path(folder), shape)
        with contenders("chat", names, Path(folder)) as made:
            result["ready"] = {contender.name: contender.ready for contender in made}
            for users in CROWDS:
                found = turns(made, rounds, lambda t, u=users: {"prompts": prompts(u, PROMPT, 100 * t + u), "new": NEW})
                result[f"{users} users"] = {name: users * NEW / run["all"] for name, run in found.items()}
                print(f"{shape}, {users} users, tokens/s: {shown(result[f'{users} users'])}", flush=True)
            found = turns(made, rounds, lambda t: {"prompts": prompts(1, LONG_PROMPT, 7 * t), "new": 1})
            result[f"first of {LONG_PROMPT}"] = {name: run["all"] * 1e3 for name, run in found.items()}
            print(f"{shape}, first token of {LONG_PROMPT}, ms: {shown(result[f'first of {LONG_PROMPT}'])}", flush=True)
    return result


def images(rounds: int, names: tuple[str, ...]) -> dict[str, Any]:
    """Seconds of a picture."""
    with tempfile.TemporaryDirectory() as folder:
        in_process(make_stable_diffusion, Path(folder))
        with contenders("images", names, Path(folder)) as made:
            ready = {contender.name: contender.ready for contender in made}
            found = turns(made, rounds, lambda t: {})
    seconds = {name: run["all"] for name, run in found.items()}
    print(f"{SIZE}x{SIZE}, {STEPS} steps, s: {shown(seconds)}", flush=True)
    return {"ready": ready, "seconds": seconds}


def in_process(make: Callable[..., None], *arguments: Any) -> None:
    """Call it in a process of its own, so that this one takes no memory of the card."""
    import multiprocessing

    process = multiprocessing.get_context("spawn").Process(target=make, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{make.__name__} ended with {process.exitcode}")


def describe_card(queue: Any) -> None:
    """Put the card's name, its bandwidth in bytes a second (of a copy, read and written), and versions."""
    import torch

    source = torch.randint(0, 255, (4 * GIB,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    seconds = []
    for _ in range(12):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    queue.put({"card": torch.cuda.get_device_name(), "bandwidth": 8 * GIB / statistics.median(seconds[2:])})


def card() -> dict[str, Any]:
    """See `describe_card`."""
    import multiprocessing
    from importlib.metadata import version

    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=describe_card, args=(queue,))
    process.start()
    found: dict[str, Any] = queue.get(timeout=120)
    process.join()
    return found | {name: version(name) for name in ("jax", "jaxlib", "torch", "torchax", "transformers", "diffusers")}


def shown(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.2f}" for name, value in values.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="measured rounds (default: 5)")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="of a chat model; may be given several times")
    parser.add_argument("--only", choices=("chat", "images"))
    parser.add_argument("--without", action="append", default=[], help="leave out this contender")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(*arguments.worker)
        return
    result: dict[str, Any] = {"benchmark": "gpu", "machine": card()}
    print(json.dumps(result["machine"]), flush=True)
    if arguments.only != "images":
        names = tuple(name for name in CHAT if name not in arguments.without)
        for shape in arguments.shape or ["llama-3.2-1b"]:
            result[shape] = chat(shape, arguments.rounds, names)
    if arguments.only != "chat":
        names = tuple(name for name in IMAGES if name not in arguments.without)
        result["stable diffusion 2"] = images(arguments.rounds, names)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
