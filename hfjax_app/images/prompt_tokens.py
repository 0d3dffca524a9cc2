"""A prompt as the tokens of its text encoder: in pieces, cut off at its length, and beside a picture."""

import copy
from bisect import bisect_right
from typing import Any

from transformers import BatchFeature

from hfjax_app.images.prompt_weights import fragments

_JOINTS = 8  # tokens by which a text can be longer than its parts
Piece = list[tuple[list[int], float]]  # token ids and their weight, of the fragments of a prompt's piece


def split(tokenizer: Any, prompt: str, most: int) -> tuple[list[Piece], str]:
    """A prompt's tokens in pieces that a CLIP encoder reads, as in web UIs, and the end of the prompt that is left out.

    Each is as long as it can be, without regard for words, and another one begins at each BREAK.

    Args:
        tokenizer: of the encoder.
        prompt: in the grammar of `prompt_weights.py`.
        most: of the pieces. 1: BREAK is left out too.
    """
    room = tokenizer.model_max_length - 2  # for its begin and end
    pieces: list[Piece] = [[]]
    free = room
    parts = fragments(prompt)
    for number, part in enumerate(parts):
        found = tokenizer(
            part.text, add_special_tokens=False, truncation=False, verbose=False, return_offsets_mapping=True
        )
        ids, at = found.input_ids, 0
        if part.breaks and most > 1 and free < room:
            free = 0
        while at < len(ids):
            if not free:
                if len(pieces) == most:
                    rest = part.text[found.offset_mapping[at][0] :] + "".join(each.text for each in parts[number + 1 :])
                    return pieces, rest.strip()
                pieces.append([])
                free = room
            pieces[-1].append((ids[at : at + free], part.weight))
            taken = len(pieces[-1][-1][0])
            at, free = at + taken, free - taken
    return pieces, ""


class Truncations:
    """Notes the texts that a tokenizer cuts, or would cut, and at how many tokens.

    Args:
        tokenizer: it is not changed.

    Attributes:
        tokenizer: a copy that is watched.
        seen: (text, tokens) of each call since it was cleared, for each of its texts.
        most: tokens of which the pipeline reads the states; None: of all.
        before: tokens of the template before the prompt.
    """

    def __init__(self, tokenizer: Any):
        kind: Any = type(tokenizer)
        self.seen: list[tuple[str, int]] = []
        self.most: int | None = None
        self.before = 0

        def call(own: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("truncation"):
                text: Any = args[0] if args else kwargs.get("text")
                limit = kwargs.get("max_length") or own.model_max_length
                self.seen.extend((str(each), limit) for each in ([text] if isinstance(text, str) else text))
            return kind.__call__(own, *args, **kwargs)

        self.tokenizer = copy.copy(tokenizer)
        self.tokenizer.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, "__call__": call})

    def note_template(self, prompt: str, most: int) -> None:
        """Find out what stands before a prompt.

        Args:
            prompt: of the last call, and nowhere in a template.
            most: see above.
        """
        found = [seen for seen in self.seen if prompt in seen[0]]
        if found:
            text, limit = found[0]
            options = {"truncation": False, "add_special_tokens": False, "verbose": False}
            self.before = len(self.tokenizer(text[: text.index(prompt)], **options).input_ids)
            self.most = min(limit, most)

    def has_room(self, prompt: str) -> bool:
        """Whether a prompt is surely short enough; one that just fits may not be told from one that does not."""
        tokens = len(self.tokenizer(prompt, verbose=False).input_ids)
        return self.most is not None and self.before + tokens + _JOINTS <= self.most

    def cut(self, prompt: str) -> str:
        """The end of a prompt that the first call with it left out, without what a template has behind it."""
        if not self.seen:
            return ""
        text, limit = next((seen for seen in self.seen if prompt in seen[0]), self.seen[0])
        limit = limit if self.most is None else min(limit, self.most)
        begin, at = begin_of_rest(self.tokenizer, text, limit), text.rfind(prompt)
        if begin >= len(text):
            return ""
        return (text[begin:] if at < 0 else prompt[max(begin - at, 0) :]).strip()


def begin_of_rest(tokenizer: Any, text: str, limit: int) -> int:
    """Where in a text what a tokenizer leaves out begins: its length, where it leaves out nothing.

    Args:
        tokenizer: see above; one in Python has no offsets, so that it is asked for parts of the text.
        text: without padding.
        limit: of tokens, with those that it adds.
    """
    options = {"truncation": False, "padding": False, "verbose": False}
    if not tokenizer.is_fast:
        lengths = range(len(text) + 1)
        return bisect_right(lengths, limit, key=lambda end: len(tokenizer(text[:end], **options).input_ids)) - 1
    whole = tokenizer(text, **options, return_offsets_mapping=True)
    if len(whole.input_ids) <= limit:
        return len(text)
    special = [i for i, (begin, end) in enumerate(whole.offset_mapping) if begin == end]
    closing = sum(1 for i in special if i > 0)  # the end token takes the last position
    return int(whole.offset_mapping[limit - closing][0])


class TextsOfPicture:
    """In the place of a processor: each of its texts is one of the same pictures, and all are as long.

    Args:
        processor: of transformers; it is not changed.
        tokenizer: the one that it uses then.
        room: tokens that a text may have more than the first one.
    """

    def __init__(self, processor: Any, tokenizer: Any, room: int):
        self._processor, self._room = copy.copy(processor), room
        self._processor.tokenizer = tokenizer
        self._processor.image_processor = _ReadOnce(processor.image_processor)
        self._limit: int | None = None

    def __call__(self, *, text: list[str], images: Any, **_: Any) -> BatchFeature:
        """As the processor's: token ids and mask [texts, tokens], and what the image processor makes."""
        pictures = images if isinstance(images, list) else [images]
        if self._limit is None:
            first = self._processor(text=text[:1], images=pictures, return_tensors="pt")
            self._limit = first["input_ids"].shape[1] + self._room
        options = {"truncation": True, "max_length": self._limit, "return_tensors": "pt"}
        rows = [self._processor(text=[each], images=pictures, **options) for each in text]
        tokens = self._processor.tokenizer.pad(
            {name: [row[name][0].tolist() for row in rows] for name in ("input_ids", "attention_mask")},
            return_tensors="pt",
        )
        return BatchFeature(dict(rows[0]) | dict(tokens))

    def plain(self, prompt: str) -> str:
        """A prompt in which a place of a picture that a user typed is text."""
        mark: str = self._processor.image_token
        return prompt.replace(mark, f"{mark[:1]} {mark[1:]}")


class _ReadOnce:
    """In the place of an image processor: pictures that are read again are not prepared again."""

    def __init__(self, images: Any):
        self._images = images
        self._last: tuple[list[Any], Any] = [], None  # the pictures, and what they became

    def __getattr__(self, name: str) -> Any:
        return getattr(self._images, name)

    def __call__(self, images: list[Any], **options: Any) -> Any:
        if [*map(id, images)] != [*map(id, self._last[0])]:
            self._last = images, self._images(images, **options)
        return self._last[1]
