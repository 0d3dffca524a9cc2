"""The chat backend: a decoding engine for any causal language model, and conversations on top of it."""

from hfjax_app.public import on_demand

__all__ = ["ChatAssistant", "ChatEngine", "Reply", "SamplingParams", "ZeroShot"]

__getattr__ = on_demand(
    __name__,
    {
        "assistant": ("ChatAssistant", "Reply"),
        "engine": ("ChatEngine",),
        "params": ("SamplingParams",),
        "zero_shot": ("ZeroShot",),
    },
)
