"""Other programs' names of schedulers: the one here with the same formulas, or the nearest that a model is offered.

Web UIs, ComfyUI, Fooocus, InvokeAI and diffusers write them in their own ways. Does not make schedulers: `samplers.py`
does.
"""

import re
from collections.abc import Sequence

_KARRAS = " Karras"
_SAME = {
    "ddim": "DDIM",
    "euler": "Euler",
    "euler a": "Euler ancestral",
    "euler ancestral": "Euler ancestral",
    "heun": "Heun",
    "dpm++ 2m": "DPM++ 2M",
    "dpm++ 2m sde": "DPM++ 2M SDE",
    "dpm++ sde": "DPM++ SDE",
    "unipc": "UniPC",
    "uni pc": "UniPC",
    "uni pc bh2": "UniPC",
    "lcm": "LCM",
    "plms": "PNDMScheduler",
    "pndm": "PNDMScheduler",
    "pndmscheduler": "PNDMScheduler",
}
# The nearest of those that have formulas of their own, and of those that a model is not offered.
_ALIKE = {
    "Heun": "Euler",
    "DPM++ SDE": "DPM++ 2M SDE",
    "DPM++ 2M SDE": "Euler ancestral",
    "DPM++ 2M": "Euler",
    "UniPC": "DPM++ 2M",
    "PNDMScheduler": "DDIM",
    "dpm++ 3m sde": "DPM++ 2M SDE",
    "dpm++ 2m sde heun": "DPM++ 2M SDE",
    "dpm++ 2s a": "DPM++ SDE",
    "dpm++ 2s ancestral": "DPM++ SDE",
    "dpm2": "Heun",
    "dpm 2": "Heun",
    "kdpm 2": "Heun",
    "dpm2 a": "Euler ancestral",
    "dpm 2 ancestral": "Euler ancestral",
    "kdpm 2 a": "Euler ancestral",
    "ddpm": "Euler ancestral",
    "lms": "Euler",
    "restart": "Euler",
    "deis": "DPM++ 2M",
    "ipndm": "DPM++ 2M",
    "dpm fast": "DPM++ 2M",
    "dpm adaptive": "DPM++ 2M",
    "tcd": "LCM",
}
# Endings that name how the noise falls. Only Karras' is another one here.
_SCHEDULE = re.compile(
    r" (karras|k|normal|simple|automatic|exponential|polyexponential|sgm uniform|ddim uniform|uniform|ddim|beta|turbo|"
    r"linear quadratic|kl optimal|align your steps|ays|native)$"
)
_USUAL = {"", "karras", "k", "normal", "simple", "automatic", "native"}


def canonical(name: str) -> str:
    """The name here for another program's, or the same text where none has its formulas."""
    base, schedule = _split(name)
    if base not in _SAME or schedule not in _USUAL:
        return name
    return _SAME[base] + (_KARRAS if _is_karras(base, schedule) else "")


def nearest(name: str, offered: Sequence[str]) -> str:
    """The most alike of the offered names.

    Args:
        name: any program's.
        offered: a model's, its own scheduler first, which stands for what nothing is like.
    """
    if name in offered:
        return name
    base, schedule = _split(name)
    karras = _is_karras(base, schedule)
    like: str | None = _SAME.get(base, base)
    while like is not None:
        for candidate in (like + _KARRAS, like) if karras else (like, like + _KARRAS):
            if candidate in offered:
                return candidate
        like = _ALIKE.get(like)
    return offered[0]


def _split(name: str) -> tuple[str, str]:
    """A name without its noise schedule, and this, both in one way of writing."""
    plain = re.sub(r"[\s_-]+", " ", name.lower()).strip().replace("dpmpp", "dpm++").removeprefix("k ")
    plain = re.sub(r" (gpu|cfg\+\+|cfg pp)\b", "", plain)
    found = _SCHEDULE.search(plain)
    return (plain[: found.start()], found[1]) if found else (plain, "")


def _is_karras(base: str, schedule: str) -> bool:
    """Whether a scheduler has Karras' noise; the web UI's DPM++ samplers have it unless told otherwise."""
    return schedule in ("karras", "k") or (schedule == "automatic" and base.startswith("dpm++"))
