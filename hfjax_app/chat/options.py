"""How a chat engine serves its model: its sizes and its choices, in one object. Imports no numerical library."""

from collections.abc import Sequence
from dataclasses import dataclass

from hfjax_app.errors import RequestRejected

SPECULATION = ("auto", "always", "never")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options of `ChatEngine`.

    Args:
        slots: requests served at the same time, which decode together; more wait in a queue.
        context: tokens of prompt and answer together, which a slot holds.
        quantize: one of QUANTIZATIONS in `runtime/transforms.py`, such as "int8", or "none".
        keep_bf16: whether weights that are bfloat16 in the files may stay bfloat16 where a CPU computes in float32.
        end_tokens: ids that end an answer; None: those that the model's configs name.
        prefill_chunk: prompt tokens of a device call, or four times as many while no answer is running, see
            `prefill_buckets`; None: 64, and the sizes of `buckets.pieces` on accelerators.
        decode_chunk: the most tokens that a device call makes for each request.
        buckets: numbers of requests that a decode program is compiled for, besides `slots`; None: 1, 2, 4, ..., and on
            accelerators those that save time.
        speculation: whether tokens are drafted from the conversation and verified together, for a request that is
            alone; no token changes. "auto": where it was measured to be faster; "always"; "never".
        picture_tokens: budgets; each gives a few sizes in which a model sees pictures, where it leaves a choice.
        lanes: row width of the cache that narrow heads share, see `runtime/head_packing.py`; None: 128 on TPU, where
            that saves copies of the cache, else 1.
        accelerated: whether programs have the sizes of an accelerator's, see `buckets.py`; None: chosen by the devices.

    Raises:
        RequestRejected: slots, context or speculation out of range.
    """

    slots: int = 4
    context: int = 512
    quantize: str = "none"
    keep_bf16: bool = False
    end_tokens: tuple[int, ...] | None = None
    prefill_chunk: int | None = None
    decode_chunk: int = 16
    buckets: Sequence[int] | None = None
    speculation: str = "auto"
    picture_tokens: tuple[int, ...] = (256, 576, 1024)
    lanes: int | None = None
    accelerated: bool | None = None

    def __post_init__(self) -> None:
        if self.slots < 1 or self.context < 2:
            raise RequestRejected(f"slots = {self.slots}, context = {self.context}: at least 1 and 2")
        if self.speculation not in SPECULATION:
            raise RequestRejected(f"speculation = {self.speculation!r}: one of {', '.join(SPECULATION)}")
