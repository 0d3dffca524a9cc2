"""The sampling parameters that a checkpoint recommends, from its generation_config.

Page, API and command line start from them.
"""

from dataclasses import replace
from typing import Any

from hfjax_app.chat.sampling.params import SamplingParams
from hfjax_app.errors import RequestRejected

_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def recommended(generation_config: Any) -> SamplingParams:
    """The app's defaults with what a generation_config says instead.

    Without sampling (`do_sample` false) it is greedy. Where `do_sample` is missing, only the parameters that are given
    count; where it is true, the temperature is 1 if none is given, as in transformers' `generate`. A value that is out
    of range does not count.

    Args:
        generation_config: of transformers; None: there is none.
    """
    params = SamplingParams()
    given = {name: value for name in _NAMES if (value := getattr(generation_config, name, None)) is not None}
    match getattr(generation_config, "do_sample", None):
        case False:
            given = {"temperature": 0.0, **{name: given[name] for name in ("repetition_penalty",) if name in given}}
        case True:
            given = {"temperature": 1.0, **given}
    for name, value in given.items():
        try:
            params = replace(params, **{name: value})
        except RequestRejected:
            continue
    return params
