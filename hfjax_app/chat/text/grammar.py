"""Constraints on answers, compiled from grammars by llguidance.

The engine samples by their masks, see `Constraint` in `chat/engine/request.py`. Messages of llguidance are not logged,
because they may quote the client's grammar.
"""

import json
import re
import threading
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hfjax_app.chat.sampling.sampler import mask_words
from hfjax_app.chat.text.answer_grammar import AnswerGrammar
from hfjax_app.errors import ConstraintFailed, RequestRejected, first_line
from hfjax_app.limits import GRAMMARS_KEPT

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# llguidance's own limits, in its units; all but the first are below its defaults: a mask takes milliseconds at most.
_LIMITS: dict[str, Any] = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 400_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
}
_FORCED = 16  # tokens without a choice that are tried out before a grammar is accepted
_MESSAGE_CHARACTERS = 300
_FREE = "free{suffix}: /(.|\\n)*/"  # a part before the answer, such as reasoning
_BETWEEN = "/\\n{0,2}/"  # after it


class Grammars:
    """Compiles grammars for a model. Thread-safe; a compilation takes up to a second and does not hold Python's lock.

    Args:
        tokenizer: of transformers.
        vocabulary: number of token ids that the model has.
        end_tokens: ids that end an answer.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, end_tokens: tuple[int, ...]):
        self._hf_tokenizer, self._vocabulary, self._end_tokens = tokenizer, vocabulary, end_tokens
        self._tokenizer: LLTokenizer | None = None
        self._kept: OrderedDict[tuple[AnswerGrammar, str | None], CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()

    def compiled(self, grammar: AnswerGrammar, after: str | None = None) -> "CompiledGrammar":
        """A grammar for this model.

        Args:
            grammar: of the answer.
            after: the text that ends a free part before the answer; None: there is none.

        Raises:
            RequestRejected: the grammar is wrong or too complex, or this model's tokenizer has no grammars.
        """
        key = (grammar, after)
        with self._lock:
            tokenizer = self._made_tokenizer()
            found = self._kept.get(key)
        if found is None:
            found = CompiledGrammar(self._matcher(tokenizer, grammar, after), self._vocabulary)
            try:
                found.try_out()
            except ConstraintFailed as error:
                raise RequestRejected(f"{grammar.name}: {error}") from None
        with self._lock:
            self._kept[key] = found
            self._kept.move_to_end(key)
            while len(self._kept) > GRAMMARS_KEPT:
                self._kept.popitem(last=False)
        return found

    def _made_tokenizer(self) -> "LLTokenizer":
        """llguidance's tokenizer, made once: a second for 200,000 tokens."""
        if self._tokenizer is None:
            from llguidance.hf import from_tokenizer

            try:
                ends = [token for token in self._end_tokens if token < len(self._hf_tokenizer)]
                self._tokenizer = from_tokenizer(self._hf_tokenizer, n_vocab=self._vocabulary, eos_token=ends or None)
            except (ValueError, TypeError):
                why = "this model's tokenizer can't constrain answers: leave the constraint out"
                raise RequestRejected(why) from None
        return self._tokenizer

    def _matcher(self, tokenizer: "LLTokenizer", grammar: AnswerGrammar, after: str | None) -> "LLMatcher":
        from llguidance import LLMatcher, LLParserLimits

        try:
            if grammar.kind == "regex":
                source = LLMatcher.grammar_from_regex(grammar.source)
            else:
                source = LLMatcher.grammar_from_json_schema(
                    grammar.source, overrides={"whitespace_flexible": False, "lenient": False}
                )
        except ValueError as error:
            raise _refused(grammar, str(error)) from None
        if after is not None or grammar.opening or grammar.closing:
            source = self._framed(source, grammar, after)
        limits = LLParserLimits(verbose_errors=False, **_LIMITS)
        matcher = LLMatcher(tokenizer, source, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        return matcher

    def _framed(self, source: str, grammar: AnswerGrammar, after: str | None) -> str:
        """The grammar between the texts around it, behind a free part that ends with the text `after`."""
        parts, rules = [], []
        if after is not None:
            is_token = after in self._added_tokens
            parts += ["free", *(self._text(after) if is_token else []), _BETWEEN]
            rules.append(_FREE.format(suffix="" if is_token else f"[suffix={json.dumps(after)}]"))
        parts += [*self._text(grammar.opening), "@answer", *self._text(grammar.closing)]
        [answer] = json.loads(source)["grammars"]
        lark = "\n".join([f"start: {' '.join(parts)}", *rules])
        return json.dumps({"grammars": [{"lark_grammar": lark}, answer | {"name": "answer"}]})

    def _text(self, text: str) -> list[str]:
        """A text in a grammar: added tokens as such, the rest as it is."""
        known = self._added_tokens
        among = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        pieces = re.split(f"({among})", text) if known else [text]
        return [f"<[{known[piece]}]>" if piece in known else json.dumps(piece) for piece in pieces if piece]

    @cached_property
    def _added_tokens(self) -> dict[str, int]:
        return {str(token): id_ for id_, token in self._hf_tokenizer.added_tokens_decoder.items() if str(token).strip()}


class CompiledGrammar:
    """A grammar that any number of answers follow.

    Args:
        matcher: at the beginning of an answer; it stays there.
        vocabulary: number of token ids that the model has.
    """

    def __init__(self, matcher: "LLMatcher", vocabulary: int):
        self._matcher, self._vocabulary = matcher, vocabulary

    def constraint(self) -> "GrammarConstraint":
        """A constraint on one answer."""
        return GrammarConstraint(self._matcher.deep_copy(), self._vocabulary)

    def try_out(self) -> None:
        """Take the tokens without a choice, because some grammars are found too complex only there.

        Raises:
            ConstraintFailed: it is.
        """
        constraint = self.constraint()
        for _ in range(_FORCED):
            if constraint.is_complete or (token := constraint.forced) is None:
                return
            constraint.accept(token)


class GrammarConstraint:
    """A `Constraint` for one answer by a compiled grammar.

    Args:
        matcher: of the answer, at its beginning; taken over.
        vocabulary: number of token ids that the model has.
    """

    def __init__(self, matcher: "LLMatcher", vocabulary: int):
        self._matcher, self._words = matcher, mask_words(vocabulary)
        self.is_complete = False
        self.allowed = self._next()

    @property
    def forced(self) -> int | None:
        """The only token that may follow; None: there are several."""
        if int(np.bitwise_count(self.allowed).sum()) != 1:
            return None
        return int(np.flatnonzero(np.unpackbits(self.allowed.view(np.uint8), bitorder="little"))[0])

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self.allowed = self._next()

    def _next(self) -> np.ndarray:
        """A new array each time: the device may still read the one before."""
        found = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)  # may have words beyond the vocabulary
        if self._matcher.is_error():
            raise ConstraintFailed("the grammar of the answer is too complex, or can't be fulfilled: simplify it")
        self.is_complete = self._matcher.is_stopped()
        words = np.zeros(self._words, np.uint32)
        words[: found.size] = found[: self._words]
        return words


def _refused(grammar: AnswerGrammar, message: str) -> RequestRejected:
    said = first_line(ValueError(message)) if message.strip() else "it can't be used"
    return RequestRejected(f"{grammar.name}: {said[:_MESSAGE_CHARACTERS]}")
