"""The sampling parameters of a request, with their limits.

Imports no numerical library, so that a bad value is rejected at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hfjax_app.errors import RequestRejected
from hfjax_app.validation import quoted

MAX_TEMPERATURE = 10.0
MIN_TEMPERATURE = 1e-5  # float32 logits divided by less may overflow; below it, sampling is greedy anyway
MAX_SEED = 2**64 - 1
MIN_REPETITION, MAX_REPETITION = 0.1, 10.0
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
MAX_BIASES = 64
MAX_LOGPROBS = 5


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object, low: float, high: float) -> bool:
    """Whether it is a number in [low, high]. NaN is in no range; a huge int is compared without conversion."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How a request's tokens are chosen.

    Logits go through logit bias, repetition penalty, frequency and presence penalty, temperature, top-k, top-p and
    min-p, in this order. It is the order of transformers' `generate`; frequency and presence penalty, which it lacks,
    are where vLLM applies them. At temperature 0 the first four still apply.

    Args:
        max_tokens: the most tokens to make, at least 1; also limited by the engine's context.
        temperature: 0 ... 10; logits are divided by it; below 1e-5, sampling is greedy.
        top_p: nucleus sampling, in (0, 1]: the smallest set of tokens whose probability reaches it.
        top_k: only the k most likely tokens; 0 is all of them.
        min_p: in [0, 1]: only tokens at least min_p times as likely as the most likely one; 0 is all of them.
        repetition_penalty: 0.1 ... 10: the logit of a token in prompt or answer is divided by it where positive and
            multiplied where negative; 1 is off, more avoids repetition (arXiv:1909.05858, section 4.1).
        presence_penalty: -2 ... 2: subtracted from the logit of every token that is in the answer so far.
        frequency_penalty: -2 ... 2: subtracted from a token's logit as often as the answer has the token so far.
        logit_bias: token id -> a number of -100 ... 100 that is added to its logit; at most 64 entries.
        min_tokens: 0 ... max_tokens: before so many tokens are made, nothing ends the answer, unless it follows a
            grammar, which says itself when it ends.
        ignore_eos: whether no end token is sampled at all, so that the answer goes on to its greatest length.
        logprobs: None: none. 0 ... 5: the log-probability of each sampled token, and of this many of the most likely
            tokens at its position, under the model's own distribution, before any of the above.
        prompt_logprobs: the same of each token of the prompt, given those before it; None: none. The prompt is then
            read anew, whatever is known of it.
        seed: 0 ... 2**64 - 1; the same seed gives the same tokens, whichever other requests run. None: a random one.
        left_out: the names of fields that a client did not give; `completed` fills them in.

    Raises:
        RequestRejected: with the value given and the limit.
    """

    max_tokens: int = 256
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    left_out: frozenset[str] = frozenset()

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> "SamplingParams":
        """The values that a client gave, by name. None is as left out."""
        known = {name: value for name, value in values.items() if value is not None}
        return cls(**known, left_out=frozenset(each.name for each in fields(cls)) - known.keys() - {"left_out"})

    def completed(self, recommended: "SamplingParams", max_tokens: int) -> "SamplingParams":
        """With what the model recommends in the place of what was left out.

        Args:
            recommended: by the model.
            max_tokens: of an answer whose length was left out.
        """
        if not self.left_out:
            return self
        filled = {name: getattr(recommended, name) for name in self.left_out}
        if "max_tokens" in filled:
            filled["max_tokens"] = max_tokens
        return replace(self, **filled, left_out=frozenset())

    def __post_init__(self) -> None:
        if not _is_int(self.max_tokens) or self.max_tokens < 1:
            self._refuse("max tokens", self.max_tokens, "a whole number of at least 1")
        if not _is_number(self.temperature, 0, MAX_TEMPERATURE):
            self._refuse("temperature", self.temperature, f"a number from 0 to {MAX_TEMPERATURE:g}")
        if not _is_number(self.top_p, 0, 1) or self.top_p == 0:
            self._refuse("top-p", self.top_p, "a number over 0 and at most 1")
        if not _is_int(self.top_k) or not 0 <= self.top_k < 2**31:
            self._refuse("top-k", self.top_k, "a whole number from 0 (all tokens) to 2^31 - 1")
        if not _is_number(self.min_p, 0, 1):
            self._refuse("min-p", self.min_p, "a number from 0 to 1")
        if not _is_number(self.repetition_penalty, MIN_REPETITION, MAX_REPETITION):
            limits = f"a number from {MIN_REPETITION:g} to {MAX_REPETITION:g}"
            self._refuse("repetition penalty", self.repetition_penalty, limits)
        for name in ("presence", "frequency"):
            penalty = getattr(self, f"{name}_penalty")
            if not _is_number(penalty, -MAX_PENALTY, MAX_PENALTY):
                self._refuse(f"{name} penalty", penalty, f"a number from {-MAX_PENALTY:g} to {MAX_PENALTY:g}")
        if not isinstance(self.logit_bias, Mapping):
            self._refuse("logit bias", self.logit_bias, "a mapping of token ids to numbers")
        if len(self.logit_bias) > MAX_BIASES:
            raise RequestRejected(f"logit bias of {len(self.logit_bias)} tokens: at most {MAX_BIASES}")
        for token, bias in self.logit_bias.items():
            if not _is_int(token) or token < 0:
                self._refuse("logit bias for token id", token, "a whole number of at least 0")
            if not _is_number(bias, -MAX_BIAS, MAX_BIAS):
                limits = f"a number from {-MAX_BIAS:g} to {MAX_BIAS:g}"
                self._refuse(f"logit bias of token {quoted(token)}", bias, limits)
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))  # the caller may change its own later
        if not _is_int(self.min_tokens) or not 0 <= self.min_tokens <= self.max_tokens:
            self._refuse("min tokens", self.min_tokens, f"a whole number from 0 to max tokens, {self.max_tokens}")
        if not isinstance(self.ignore_eos, bool):
            self._refuse("ignore eos", self.ignore_eos, "true or false")
        for name in ("logprobs", "prompt_logprobs"):
            top = getattr(self, name)
            if top is not None and (not _is_int(top) or not 0 <= top <= MAX_LOGPROBS):
                self._refuse(name.replace("_", " "), top, f"None or a whole number from 0 to {MAX_LOGPROBS}")
        if self.seed is not None and (not _is_int(self.seed) or not 0 <= self.seed <= MAX_SEED):
            self._refuse("seed", self.seed, "a whole number from 0 to 2^64 - 1")

    @staticmethod
    def _refuse(name: str, value: object, limits: str) -> None:
        raise RequestRejected(f"{name} = {quoted(value)}: must be {limits}")


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
