"""The settings of a conversation, in the panel beside it. What their values mean is in `hfjax_app/chat/sampling`."""

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from hfjax_app.chat import SamplingParams
from hfjax_app.chat.interface import ChatModel
from hfjax_app.chat.request import AnswerForm, ChatRequest
from hfjax_app.chat.text.messages import Message
from hfjax_app.client import sender
from hfjax_app.studio.tab import typed_seed

# The presets and the buttons are drawn by assets/chat_settings.js.
_TOP = """<div class="panel-head"><h2 id="settings-title">Settings</h2>
<button class="icon" type="button" data-flip="chat-settings" aria-label="Close settings" title="Close settings">
<svg class="i" viewBox="0 0 24 24" aria-hidden="true"><path d="M6 6l12 12M18 6 6 18"/></svg></button></div>
<div id="presets"></div>"""
_BOTTOM = (
    '<div id="preset-buttons"></div><p class="quiet">Settings belong to this conversation and come back with it.</p>'
)


class ChatSettings:
    """Components in the surrounding blocks.

    Args:
        most: tokens of the context, the most that an answer may have.
        max_tokens: of an answer at first.

    Attributes:
        components: all of them, in the order of the values that `request` takes.
        of_model: those that a model has values for; whether it thinks is shown where its template can switch that.
    """

    def __init__(self, *, most: int, max_tokens: int):
        defaults = SamplingParams()
        gr.HTML(_TOP, apply_default_css=False)
        with gr.Column(elem_classes="fields"):
            system_prompt = gr.Textbox(
                "",
                label="System prompt",
                placeholder="Instructions for the model",
                lines=3,
                max_lines=8,
                elem_id="system-prompt",
            )
            temperature = gr.Slider(
                0, 2, defaults.temperature, step=0.05, label="Temperature", elem_id="temperature", buttons=[]
            )
            top_p = gr.Slider(0.05, 1, defaults.top_p, step=0.05, label="Top-p", elem_id="top-p", buttons=[])
            longest = gr.Slider(
                1, most, max_tokens, step=1, label="Longest answer, tokens", elem_id="max-tokens", buttons=[]
            )
            stops = gr.Textbox(
                "", label="Stop at", placeholder="words, one a line", lines=1, max_lines=4, elem_id="stop-strings"
            )
            think = gr.Checkbox(True, label="Think before it answers", visible=False, elem_id="think")
            with gr.Accordion("Finer sampling", open=False, elem_id="finer-sampling"):
                top_k = gr.Slider(0, 200, defaults.top_k, step=1, label="Top-k (0: all)", elem_id="top-k", buttons=[])
                min_p = gr.Slider(
                    0, 0.5, defaults.min_p, step=0.01, label="Min-p (0: all)", elem_id="min-p", buttons=[]
                )
                repetition_penalty = gr.Slider(
                    1,
                    2,
                    defaults.repetition_penalty,
                    step=0.05,
                    label="Repetition penalty (1: none)",
                    elem_id="repetition-penalty",
                    buttons=[],
                )
                seed = gr.Textbox("", label="Seed", placeholder="random", max_lines=1, elem_id="chat-seed")
        gr.HTML(_BOTTOM, apply_default_css=False)
        self._fields: Mapping[str, gr.Textbox | gr.Slider | gr.Checkbox] = {
            "system_prompt": system_prompt,
            "max_tokens": longest,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "seed": seed,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "stop": stops,
            "think": think,
        }
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        sliders = (temperature, top_p, top_k, min_p, repetition_penalty)
        self._sampling: Mapping[str, gr.Slider] = dict(zip(names, sliders, strict=True))
        self.of_model: Sequence[gr.Slider | gr.Checkbox] = (*self._sampling.values(), think)
        self.components: Sequence[gr.Textbox | gr.Slider | gr.Checkbox] = tuple(self._fields.values())

    def recommended(self, model: ChatModel) -> dict[str, float]:
        """The values that a model recommends, by name."""
        sampling = {name: getattr(model.recommended, name) for name in self._sampling}
        return sampling | {"think": model.thinks is not False}

    def fitted(self, model: ChatModel) -> list[dict[str, Any]]:
        """`of_model` with a model's values, also where one is out of the usual range."""
        params, sliders = model.recommended, []
        for name, slider in self._sampling.items():
            value = getattr(params, name)
            low, high = min(slider.minimum, value), max(slider.maximum, value)
            sliders.append(gr.update(minimum=low, maximum=high, value=value))
        return [*sliders, gr.update(value=model.thinks is not False, visible=model.thinks is not None)]

    def request(
        self,
        values: Sequence[Any],
        messages: list[Message],
        *,
        model: str,
        beginning: str = "",
    ) -> ChatRequest:
        """A request with the values of `components`, as the client sent them.

        Args:
            values: of all components.
            messages: the conversation.
            model: the model's name.
            beginning: the first part of the answer, which replies leave out.

        Raises:
            RequestRejected: see `ChatRequest`.
        """
        value_of = dict(zip(self._fields, values, strict=True))
        system_prompt, stop, thinks = (value_of.pop(name) for name in ("system_prompt", "stop", "think"))
        value_of["seed"] = typed_seed(value_of["seed"])
        return ChatRequest(
            messages=messages,
            system_prompt=system_prompt,
            sampling=SamplingParams.from_options(value_of),
            stop=[line for line in stop.splitlines() if line] if isinstance(stop, str) else stop,
            form=AnswerForm(beginning=beginning),
            thinks=thinks,
            model=model,
            client=sender().id,
        )
