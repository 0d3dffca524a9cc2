"""The chat backend: a decoding engine for any causal language model, and conversations on top of it."""

from hfjax_app.lazy_import import on_demand

__all__ = ["ChatAssistant", "ChatEngine", "Reply", "SamplingParams", "ZeroShot"]

__getattr__ = on_demand(
    __name__,
    {
        "assistant": ("ChatAssistant", "Reply"),
        "engine.llm_engine": ("ChatEngine",),
        "sampling.params": ("SamplingParams",),
        "zero_shot": ("ZeroShot",),
    },
)
