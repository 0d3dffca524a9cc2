"""A pipeline's text encoders as programs, and what the pipeline's own `__call__` makes of a prompt with them.

Each of diffusers' pipeline classes reads prompts in its own way: one to three text encoders, chat templates, pooled
states, masks. So the class's own code runs here, unmodified (`pipeline_call.py`): its text encoders' forwards are
compiled programs. A prompt with weights of words reaches it as embeddings.
"""

import copy
import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers import CLIPTextModel, CLIPTextModelWithProjection, PreTrainedTokenizerBase, ProcessorMixin

from hfjax_app.errors import ModelUnavailable
from hfjax_app.images.checkpoint import Pipeline, denoiser_name, text_encoder_names
from hfjax_app.images.interface import PromptLength
from hfjax_app.images.networks import adapted_weights, same_tensors
from hfjax_app.images.picture_call import picture_call
from hfjax_app.images.pipeline_call import Form, PipelineCall, blank
from hfjax_app.images.prompt_tokens import Piece, TextsOfPicture, Truncations, begin_of_rest, split
from hfjax_app.images.prompt_weights import has_weights, plain, unweighted
from hfjax_app.images.request import MAX_CLIP_SKIP, ImageRequest
from hfjax_app.images.start_picture import start_image
from hfjax_app.images.text_encoder import CompiledEncoder, CompiledForward, as_array
from hfjax_app.limits import IMAGE_MAX_PIECES
from hfjax_app.runtime.checkpoints.hub import Checkpoint
from hfjax_app.runtime.module import Shapes, Weights
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.seams.diffusers import pads_prompts

# Text encoders whose embeddings can be weighted.
_CLIP = (CLIPTextModel, CLIPTextModelWithProjection)

GUIDED, ALONE = 2.0, 0.0  # above and below each class's threshold
_LONGER = "a longer prompt " * 20
_TYPED = "4711 "  # by a user: in no template
_KEPT_EMPTY = 2 * MAX_CLIP_SKIP  # of `_weighted`

# A denoiser's arguments for the text, by which longer ones than usual can be passed and masked.
STATES, MASK = "encoder_hidden_states", "encoder_attention_mask"

Forward = Callable[[torch.Tensor], Any]  # token ids [1, length] -> the text encoder's output


@dataclass(frozen=True, kw_only=True, eq=False)
class Conditioning:
    """What a pipeline makes of prompts, for its loop.

    Attributes:
        arrays: the tensors among the answers of its methods, as NumPy arrays (float32, int32 or bool); None in the
            places of other values.
        form: what is static.
        weights: the denoiser's for this picture.
    """

    arrays: list[np.ndarray | None]
    form: Form
    weights: Weights | Shapes = field(default_factory=dict)


class PromptReader:
    """A pipeline's text encoders on the device, and its own code from prompts to the denoiser's arguments.

    Args:
        pipeline: on the CPU; it is not changed.
        programs: compiles; each text encoder's program at its first prompt.
        dtype: of the text encoders' weights.
        checkpoint: the weight files; None: the weights are in the pipeline.
        quantize: of the text encoders' weights, as in `networks.Storage`.
        on_host: whether the text encoders' weights lie in the host's memory.

    Attributes:
        takes_negative: whether the pipeline takes a negative prompt.
        max_clip_skip: the most layers of the text encoder that a request may leave out; 0 where the class has no such
            option, or, as Stable Diffusion XL, another one of this name.
        takes_weights: whether weights of words are read, see `prompt_weights.py`.
        most_pieces: how many pieces of a prompt are read, each as long as the text encoder's sequence.
        takes_guidance: whether the guidance scale changes pictures.
        pictures: the call that starts from a picture; None: diffusers has none for the class.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        programs: Programs,
        dtype: Any = jnp.float32,
        checkpoint: Checkpoint | None = None,
        quantize: str = "none",
        *,
        on_host: bool = False,
    ):
        self._pipeline = copy.copy(pipeline)
        self._pipeline.set_progress_bar_config(disable=True)
        self._pipeline.scheduler = copy.deepcopy(pipeline.scheduler)
        accepted = inspect.signature(pipeline.__call__).parameters
        encoders = {name: getattr(pipeline, name) for name in text_encoder_names(pipeline)}
        layers = [each.config.num_hidden_layers for each in encoders.values() if isinstance(each, CLIPTextModel)]
        skips = "clip_skip" in accepted and len(layers) == len(encoders) == 1
        self.max_clip_skip = min(MAX_CLIP_SKIP, *layers) if skips else 0
        self._encoders: dict[str, CompiledForward | CompiledEncoder] = {}
        for name, encoder in encoders.items():
            files = checkpoint and checkpoint.part(name)
            weights, adapted = adapted_weights(
                programs, encoder, dtype, files, quantize=quantize, splits=True, on_host=on_host
            )
            program = name.replace("text_encoder", "encode_prompt")
            self._encoders[name] = (
                CompiledForward(program, adapted, weights, programs, skips=skips)
                if isinstance(encoder, _CLIP)
                else CompiledEncoder(program, adapted, weights, programs)
            )
            setattr(self._pipeline, name, _with_forward(encoder, self._encoders[name]))
        # While another thread traces a network for a new size, its parameters are tracers: here are copies.
        for name in (denoiser_name(pipeline), "vae"):
            setattr(self._pipeline, name, same_tensors(getattr(pipeline, name)))
        self.call = PipelineCall(self._pipeline)
        self.takes_negative = self.call.takes_negative
        self.takes_weights = "prompt_embeds" in accepted and all(isinstance(each, _CLIP) for each in encoders.values())
        self._takes_padding = pads_prompts(getattr(pipeline, denoiser_name(pipeline)))
        self._filler, self._longest = "", 0
        self._pads: dict[bool, set[int]] = {}  # by whether there is guidance: which arrays are padded to the longest
        self._counts: dict[bool, dict[int, torch.Tensor]] = {}  # what is static then: numbers of tokens with padding
        self._masks: dict[bool, dict[int, np.ndarray]] = {}  # by whether there is guidance
        self._is_planned = programs.planned
        self._kept: list[Any] = []  # programs of text encoders that read no picture
        self._texts: TextsOfPicture | None = None
        self._truncations: dict[str, Truncations] = {}  # of text encoders that are not CLIP's
        self._takes_pooled = "pooled_prompt_embeds" in accepted
        signature = inspect.signature(getattr(pipeline, denoiser_name(pipeline)).forward).parameters
        self.most_pieces = IMAGE_MAX_PIECES if self.takes_weights and {STATES, MASK} <= signature.keys() else 1
        self._counting, self._counters = threading.Lock(), dict[str, Any]()
        # Because compel keeps what an empty text becomes: by the clip skip and the LoRAs, of which the last few are
        # kept; made at the first prompt that has weights.
        self._weighted: dict[tuple[int, str], _WeightedPrompts] = {}
        self._lock = threading.RLock()  # tokenizers and pipelines have state, which threads must not share
        self._learn()
        self.pictures = None if self.call.edits else picture_call(self._pipeline, self.call)

    def _learn(self) -> None:
        """Find out what the pipeline reads of its text encoders, to which length, and compile them."""
        others = self._other_encoders
        for name in others:
            tokenizer = getattr(self._pipeline, _tokenizer_of(name), None)
            if isinstance(tokenizer, PreTrainedTokenizerBase):
                self._truncations[name] = Truncations(tokenizer)
                object.__setattr__(self._pipeline, _tokenizer_of(name), self._truncations[name].tokenizer)
        processor = getattr(self._pipeline, "processor", None)
        if isinstance(processor, ProcessorMixin) and self._truncations:
            [truncations], room = self._truncations.values(), int(self.call.accepted["max_sequence_length"] or 0)
            self._texts = TextsOfPicture(processor, truncations.tokenizer, room)
            object.__setattr__(self._pipeline, "processor", self._texts)
        request = ImageRequest("a", guidance_scale=GUIDED)
        self.read(request)
        for name, truncations in self._truncations.items():
            others[name].pad_to(max((tokens for _, tokens in truncations.seen), default=0))
        short = self.read(request)
        longer = replace(request, prompt=_LONGER if self.most_pieces == 1 else _LONGER[:5])
        if _shapes(short) != _shapes(self.read(longer)):
            self._longest = max((encoder.longest for encoder in others.values()), default=0)
            if self._takes_padding and others:
                for scale in (GUIDED, ALONE):
                    known = self.read(replace(request, guidance_scale=scale))
                    negative = _LONGER if self.takes_negative else ""
                    other = self.read(replace(longer, guidance_scale=scale, negative_prompt=negative))
                    self._pads[known.form.guided] = _varying(known, other)
                    self._counts[known.form.guided] = _counts(known, other, self._longest)
            else:  # the class pads the prompts of a batch to the longest: the second one fills the length
                self._filler = "a " * self._longest
                for encoder in others.values():
                    encoder.is_filled = True
            read = self.read(request)
            # without a mask the class lets a prompt's padding take part
            masked = bool(self._pads) or any(each is not None and each.dtype.kind in "bi" for each in read.arrays)
            if not masked or _shapes(read) != _shapes(self.read(longer)):
                raise ModelUnavailable(
                    f"{type(self._pipeline).__name__} can't run in compiled programs: each length of a prompt needs "
                    "another one"
                )
            if self._filler:
                for scale in (GUIDED, ALONE):
                    known = self.read(replace(request, guidance_scale=scale))
                    self._masks[known.form.guided] = _full_masks(known)
        self.takes_guidance = not self.call.thresholds or _shapes(self.read(request)) != _shapes(
            self.read(replace(request, guidance_scale=ALONE))
        )
        if self._truncations:
            longest = max(encoder.longest for encoder in others.values())
            read = self.read(replace(request, prompt=_TYPED + "a " * longest))
            states = [each for each in read.arrays if each is not None and each.dtype.kind == "f"]
            most = 1 + int(max(np.nanmax(each, initial=0) for each in states))
            for truncations in self._truncations.values():
                truncations.note_template(_TYPED.strip(), most)
        for encoder in others.values():
            if self.call.needs_picture:
                encoder.forget()
            else:
                self._kept.append(encoder.learn())
            encoder.is_dry = self._is_planned

    def shaped(self, request: ImageRequest) -> Conditioning:
        """As `read`, but of the text encoders only shapes count: they do not run."""
        with self._lock, self._dry():
            return self.read(request)

    def learn(self, name: str) -> list[Any]:
        """Compile the programs for a picture in the size of the last requests of `shaped`.

        Args:
            name: the end of the programs' names.

        Returns:
            The programs: they are kept as long as these are.
        """
        return [encoder.learn(name) for encoder in self._other_encoders.values()]

    @contextmanager
    def _dry(self) -> Iterator[None]:
        """Inside the block no text encoder runs that is not CLIP's. Use it with the lock."""
        others = self._other_encoders.values()
        for other in others:
            other.is_dry = True
        try:
            yield
        finally:
            for other in others:
                other.is_dry = self._is_planned

    @property
    def _other_encoders(self) -> dict[str, CompiledEncoder]:
        """Those that are not CLIP's."""
        return {name: each for name, each in self._encoders.items() if isinstance(each, CompiledEncoder)}

    @property
    def weights(self) -> dict[str, Weights | Shapes]:
        """Of each text encoder, by its name."""
        return {name: encoder.weights for name, encoder in self._encoders.items()}

    def read_with(self, merged: Mapping[str, Weights], request: ImageRequest) -> Conditioning:
        """As `read`, by text encoders with other weights, by their names."""
        with self._lock:
            own = self.weights
            try:
                for name, encoder in self._encoders.items():
                    encoder.weights, encoder.loras = merged[name], request.loras or ""
                return self.read(request)
            finally:
                for name, encoder in self._encoders.items():
                    encoder.weights, encoder.loras = own[name], ""

    def read(self, request: ImageRequest) -> Conditioning:
        """The conditioning for one picture.

        Args:
            request: with its guidance scale. A blank negative prompt is ignored where the class has one of its own.
                What a class that edits makes of its picture with the autoencoder is NaN.
        """
        size = (request.width, request.height) if request.width and request.height else None
        picture = None
        if self.call.edits and request.image is not None:
            assert size is not None, "a drawing has a size"
            picture = start_image(request.image, size, request.background)
        elif self.call.needs_picture:
            picture = blank(size)
        with self._lock:
            for truncations in self._truncations.values():
                truncations.seen.clear()
            encoders = [*self._encoders.values()]
            for encoder in encoders:
                encoder.clip_skip = request.clip_skip
            pieces = self._pieces(request)
            loras = request.loras or ""
            prompts: dict[str, Any] = dict(self._prompt(request.prompt, pieces, loras))
            for encoder in encoders:  # only the prompt's, as in diffusers, which reads it before the negative one
                encoder.clip_skip = 0
            # of a long prompt, no pipeline makes embeddings of an empty one that are as long
            if (negative := request.negative_prompt.strip()) or (pieces > 1 and not self._zeros_for_empty):
                negated = self._prompt(request.negative_prompt if negative else "", pieces, loras)
                prompts |= {f"negative_{name}": value for name, value in negated.items()}
            elif self.call.needs_negative:
                prompts["negative_prompt"] = " "
            for encoder in encoders:
                encoder.next_skip = request.clip_skip if "prompt" in prompts else None
            tensors, form = self.call.read(prompts, size, request.guidance_scale or 0.0, self._filler, picture)
        for i, tensor in enumerate(tensors):
            if tensor is None or i in form.reference:
                continue
            if pieces > 1:
                tensor = _with_room(tensor, self.most_pieces / pieces)
            tensors[i] = _padded(tensor, self._longest) if i in self._pads.get(form.guided, ()) else tensor
        if pieces > 1:
            form = replace(form, is_long=True)
        if counts := self._counts.get(form.guided):
            tensors = [None if i in counts else tensor for i, tensor in enumerate(tensors)]
            form = replace(form, rest=[counts.get(i, leaf) for i, leaf in enumerate(form.rest)])
        arrays = [None if tensor is None else as_array(tensor) for tensor in tensors]
        # a class may leave out the mask of a prompt that fills the length
        for i, mask in self._masks.get(form.guided, {}).items():
            arrays[i] = mask if arrays[i] is None else arrays[i]
        return Conditioning(arrays=arrays, form=form)

    def is_long(self, request: ImageRequest) -> bool:
        """Whether a prompt of the request has several pieces."""
        with self._lock:
            return self._pieces(request) > 1

    def _pieces(self, request: ImageRequest) -> int:
        """Of the longer one of its prompts. Call with the lock."""
        if self.most_pieces == 1:
            return 1
        texts = [request.prompt, request.negative_prompt]
        return max(len(self._split(name, text)) for name in self._encoders for text in texts)

    def _split(self, encoder: str, prompt: str) -> list[Piece]:
        return split(self._tokenizer(encoder), prompt, self.most_pieces)[0]

    @property
    def _zeros_for_empty(self) -> bool:
        """Whether the pipeline has zeros for an empty negative prompt, as Stable Diffusion XL."""
        return bool(getattr(getattr(self._pipeline, "config", None), "force_zeros_for_empty_prompt", False))

    def _prompt(self, prompt: str, pieces: int, loras: str) -> Mapping[str, Any]:
        """The pipeline's arguments for a prompt: its text, or its embeddings if it has weights or several pieces.

        Call with the lock.
        """
        if not self.takes_weights:
            return {"prompt": self._plain(prompt)}
        if pieces == 1 and not has_weights(prompt):
            return {"prompt": plain(prompt)}
        key = next(iter(self._encoders.values())).clip_skip, loras
        if key not in self._weighted:
            clips = ((name, each) for name, each in self._encoders.items() if isinstance(each, CompiledForward))
            encoders = [(self._tokenizer(name), each.again) for name, each in clips]
            for other in list(self._weighted)[:-_KEPT_EMPTY]:
                del self._weighted[other]
            self._weighted[key] = _WeightedPrompts(encoders, pooled=self._takes_pooled)
        return self._weighted[key].embeddings([self._split(name, prompt) for name in self._encoders], pieces)

    def _plain(self, prompt: str) -> str:
        """A prompt as a class gets it that takes no weights of words."""
        return unweighted(prompt) if self._texts is None else self._texts.plain(unweighted(prompt))

    def _tokenizer(self, encoder: str) -> Any:
        return getattr(self._pipeline, _tokenizer_of(encoder))

    def length(self, prompt: str) -> PromptLength:
        """How long a prompt is. Waits for no other prompt that is read: it has tokenizers of its own."""
        with self._counting:
            if not self._counters:
                self._counters = {name: copy.deepcopy(self._tokenizer(name)) for name in self._encoders}
            found = [self._length(name, prompt) for name in self._encoders]
        return max(found, key=lambda each: (each.room, each.tokens))

    def _length(self, name: str, prompt: str) -> PromptLength:
        tokenizer = self._counters[name]
        if not self.takes_weights:
            tokens, special = (len(tokenizer(text, verbose=False).input_ids) for text in (self._plain(prompt), ""))
            longest, before = self._encoders[name].longest, 0
            if truncations := self._truncations.get(name):
                longest, before = min(longest, truncations.most or longest), truncations.before
            room = longest - before
            return PromptLength(tokens=tokens - special, room=room - special, pieces=1, is_cut=tokens > room)
        pieces, rest = split(tokenizer, prompt, self.most_pieces)
        read = sum(len(ids) for piece in pieces for ids, _ in piece)
        more = len(tokenizer(rest, add_special_tokens=False, verbose=False).input_ids)
        room = tokenizer.model_max_length - 2
        return PromptLength(tokens=read + more, room=room, pieces=len(pieces), is_cut=bool(rest))

    def cut(self, prompt: str, size: tuple[int, int] | None = None) -> str:
        """The end of a prompt that no text encoder reads; "" where one of them reads the whole prompt.

        Args:
            prompt: of a request.
            size: (width, height) of its drawing; of no matter where no picture is read with the prompt.
        """
        if self.takes_weights:
            with self._lock:
                rest = [split(self._tokenizer(name), prompt, self.most_pieces)[1] for name in self._encoders]
            return min(rest, key=len)
        prompt = self._plain(prompt)
        if not prompt.strip():
            return ""
        ends, (width, height) = [], size or (None, None)
        with self._lock:
            if any(truncations.has_room(prompt) for truncations in self._truncations.values()):
                return ""
            if self._other_encoders:  # for what the class makes of the prompt, no text encoder runs
                with self._dry():
                    self.read(ImageRequest(prompt, guidance_scale=GUIDED, width=width, height=height))
                ends += [truncations.cut(prompt) for truncations in self._truncations.values()]
            for name, encoder in self._encoders.items():
                if isinstance(encoder, CompiledForward):
                    begin = begin_of_rest(self._tokenizer(name), prompt, encoder.longest)
                    ends.append(prompt[begin:].strip())
        return min(ends, key=len, default="")


class _WeightedPrompts:
    """Embeddings of prompts by compel's formulas: a word's distance from an empty prompt is scaled by its weight.

    Args:
        encoders: the tokenizer and the forward of each text encoder, all of them CLIP's.
        pooled: whether the class also takes pooled embeddings, as Stable Diffusion XL: then the embeddings are those
            before the last layer, of all encoders side by side.
    """

    def __init__(self, encoders: Sequence[tuple[Any, Forward]], *, pooled: bool):
        from compel.embeddings_provider import EmbeddingsProvider, ReturnedEmbeddingsType

        kinds = ReturnedEmbeddingsType
        self._pooled = pooled
        self._forwards = [forward for _, forward in encoders]
        self._providers = [
            EmbeddingsProvider(
                tokenizer,
                _ForCompel(forward),
                returned_embeddings_type=(
                    kinds.PENULTIMATE_HIDDEN_STATES_NON_NORMALIZED if pooled else kinds.LAST_HIDDEN_STATES_NORMALIZED
                ),
            )
            for tokenizer, forward in encoders
        ]

    def embeddings(self, prompts: Sequence[Sequence[Piece]], count: int) -> Mapping[str, torch.Tensor]:
        """The pipeline's arguments for a prompt: "prompt_embeds" [1, count * length, width], "pooled_prompt_embeds".

        Args:
            prompts: the prompt's pieces for each encoder.
            count: of pieces; those that a prompt lacks are empty.
        """
        made = []
        for provider, pieces in zip(self._providers, prompts, strict=True):
            empty = [provider.empty_z] * (count - len(pieces))
            made.append(torch.cat([*(_embedded(provider, piece) for piece in pieces), *empty], dim=1))
        found = {"prompt_embeds": torch.cat(made, dim=-1)}
        if self._pooled:  # of the first piece, without weights: a pooled embedding has no words
            ids, _ = _framed(self._providers[-1], prompts[-1][0])
            found["pooled_prompt_embeds"] = self._forwards[-1](torch.tensor([ids]))[0]
        return found


def _embedded(provider: Any, piece: Piece) -> torch.Tensor:
    """A piece's states [1, length, width].

    Weights below 1 also mix in the states of the piece without these words, by compel's shares. (By its other way,
    masks, an encoder would need another program. Its own loop can't follow a piece that others stand beside.)
    """

    def states(parts: Piece) -> torch.Tensor:
        ids, weights = _framed(provider, parts)
        made: torch.Tensor = provider.build_weighted_embedding_tensor(torch.tensor(ids), torch.tensor(weights))
        return made

    mixed, shares = [states(piece)], [1.0]
    for at, (_, weight) in enumerate(piece):
        if weight < 1:
            mixed.append(states(piece[:at] + piece[at + 1 :]))
            shares.append(math.tan((1 - max(weight, 1e-5)) * math.pi / 2))
    whole: torch.Tensor = provider.apply_embedding_weights(torch.stack(mixed, dim=1), shares, normalize=True)
    return whole


def _framed(provider: Any, piece: Piece) -> tuple[list[int], list[float]]:
    """Token ids and weights of a piece with its begin, its end and padding."""
    ids = [token for part, _ in piece for token in part]
    weights = [weight for part, weight in piece for _ in part]
    padding = provider.max_token_count - len(ids) - 2
    framed = [*provider.bos_sequence, *ids, *provider.eos_sequence, *[provider.tokenizer.pad_token_id] * padding]
    return framed, [1.0, *weights, *[1.0] * (padding + 1)]


class _ForCompel:
    """What compel calls: token ids -> an output, without a mask, which would need another program."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, forward: Forward):
        self._forward = forward

    def __call__(self, ids: torch.Tensor, *_: Any, **__: Any) -> Any:
        return self._forward(ids)


def _with_room(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """States [1, tokens, width] with room for more tokens; other tensors as they are."""
    if tensor.ndim != 3:
        return tensor
    return _padded(tensor, round(tensor.shape[1] * factor))


def _full_masks(conditioning: Conditioning) -> dict[int, np.ndarray]:
    """Masks that leave out nothing, in the places of conditioning's masks."""
    arrays = enumerate(conditioning.arrays)
    return {i: np.ones_like(each) for i, each in arrays if each is not None and each.dtype.kind in "bi"}


def _varying(one: Conditioning, other: Conditioning) -> set[int]:
    """The places of arrays of different shapes."""
    pairs = enumerate(zip(one.arrays, other.arrays, strict=True))
    return {i for i, (each, its) in pairs if each is not None and its is not None and each.shape != its.shape}


def _counts(one: Conditioning, other: Conditioning, longest: int) -> dict[int, torch.Tensor]:
    """Lists of numbers of tokens, by their places, with the number that padded prompts have."""
    found = {}
    for i, (each, its) in enumerate(zip(one.arrays, other.arrays, strict=True)):
        lists = [array for array in (each, its) if array is not None and array.ndim == 1 and array.dtype.kind == "i"]
        if len(lists) == 2 and lists[0].shape == lists[1].shape and (lists[0] != lists[1]).any():
            found[i] = torch.from_numpy(np.where(lists[0] == lists[0].max(), longest, lists[0]))
    return found


def _padded(tensor: torch.Tensor, longest: int) -> torch.Tensor:
    """States of a prompt's tokens [..., tokens, width], with rows of NaN behind them."""
    return torch.nn.functional.pad(tensor, (0, 0, 0, longest - tensor.shape[-2]), value=math.nan)


def _tokenizer_of(encoder: str) -> str:
    return encoder.replace("text_encoder", "tokenizer")


def _shapes(conditioning: Conditioning) -> str:
    """Tells the programs apart that take such conditioning."""
    shapes = [None if array is None else (array.shape, str(array.dtype)) for array in conditioning.arrays]
    return str((shapes, conditioning.form.structure))


def shapes_of(arrays: Any) -> Any:
    """The same pytree with shapes and dtypes instead of arrays."""
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, jnp.asarray(array).dtype), arrays)


def _with_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> torch.nn.Module:
    """A copy of the module with another forward; it shares everything else with the module."""
    changed = copy.copy(module)
    changed.forward = forward
    return changed
