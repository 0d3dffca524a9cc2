"""The chat backend: a decoding engine for any causal language model, and conversations on top of it."""

from hfjax_app.chat.assistant import ChatAssistant, Reply
from hfjax_app.chat.engine import ChatEngine
from hfjax_app.chat.sampling import SamplingParams
from hfjax_app.chat.zero_shot import ZeroShot

__all__ = ["ChatAssistant", "ChatEngine", "Reply", "SamplingParams", "ZeroShot"]
