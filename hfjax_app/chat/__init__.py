"""The chat backend: a decoding engine for any causal language model, and conversations on top of it."""

from typing import TYPE_CHECKING

from hfjax_app.lazy_import import on_demand

if TYPE_CHECKING:  # for type checkers, which can't follow `__getattr__`
    from hfjax_app.chat.assistant import ChatAssistant
    from hfjax_app.chat.engine.llm_engine import ChatEngine
    from hfjax_app.chat.options import EngineOptions
    from hfjax_app.chat.reply import Reply
    from hfjax_app.chat.request import ChatRequest
    from hfjax_app.chat.sampling.params import SamplingParams
    from hfjax_app.chat.zero_shot import ZeroShot

__all__ = ["ChatAssistant", "ChatEngine", "ChatRequest", "EngineOptions", "Reply", "SamplingParams", "ZeroShot"]

__getattr__ = on_demand(
    __name__,
    {
        "assistant": ("ChatAssistant",),
        "engine.llm_engine": ("ChatEngine",),
        "options": ("EngineOptions",),
        "reply": ("Reply",),
        "request": ("ChatRequest",),
        "sampling.params": ("SamplingParams",),
        "zero_shot": ("ZeroShot",),
    },
)
