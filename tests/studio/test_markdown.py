"""Texts that Gradio's Markdown would draw in part: what is changed for it, and that it comes back."""

import random

import pytest

from hfjax_app.studio.markdown import as_typed, as_written, drawable

JOINER = "\N{WORD JOINER}"


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("a <div> or </p>, i<b and 1 < 2", "a &#0060;div> or &#0060;/p>, i&#0060;b and 1 < 2"),
        ("<!-- x --> <?php List<List<b>>", "&#0060;!-- x --> &#0060;?php List&#0060;List&#0060;b>>"),
        ("`<a>` ``<b> ` <c>`` `<d>", "`<a>` ``<b> ` <c>`` `&#0060;d>"),
        ("```\n<a>\n```\n<b>\n\n    <c>\n\n> ~~~\n> <d>", "```\n<a>\n```\n&#0060;b>\n\n    <c>\n\n> ~~~\n> <d>"),
        (r"\(a<b\) and \(alone, \[x", rf"{JOINER}\(a<b\){JOINER} and &#0092;(alone, &#0092;[x"),
        (
            "$$x$$ and $y_1$, $5 and $10, \\$z",
            f"{JOINER}$$x$${JOINER} and {JOINER}$y_1${JOINER}, $5 and $10, \\$z",
        ),
        ("\\[\nx\n\\]\n\n```\n\\[\n```", f"{JOINER}\\[\nx\n\\]{JOINER}\n\n```\n\\[\n```"),
        ("Typed: &#0060; and &lt;", "Typed: &#0038;#0060; and &lt;"),
        ("[1]: https://x.example", "&#0091;1]: https://x.example"),
        ("```mermaid\ngraph\n```", f"```{JOINER}mermaid\ngraph\n```"),
        ("**bold** and `code`", "**bold** and `code`"),
    ],
)
def test_an_answer_is_drawn_whole(text: str, drawn: str) -> None:
    """The words of an answer disappeared: <div> as HTML, a backslash as an escape, a definition of a link."""
    assert drawable(text) == drawn
    assert as_written(drawn) == text


@pytest.mark.timeout(20)
@pytest.mark.parametrize("opening", ["\\(", "\\[", "$$a"])
def test_a_text_of_openings_is_read_once(opening: str) -> None:
    """One such answer in a conversation that a page sent held the event loop for minutes."""
    assert as_written(drawable(opening * 130_000)) == opening * 130_000


def test_a_message_of_the_user_gets_invisible_characters_only() -> None:
    """The page shows it in a field too, where a number of HTML would be seen."""
    typed = "Is <div> bigger, in `<b>`? \\(x\\), \\(, [1]\n\n[1]: x"
    assert drawable(typed, editable=True).replace(JOINER, "") == typed
    assert "<div>" not in drawable(typed, editable=True)
    assert as_typed(drawable(typed, editable=True)) == typed


def test_every_text_comes_back() -> None:
    special = [
        "<",
        "<b>",
        "`",
        "```",
        "~~~",
        "\\(",
        "\\)",
        "\\[",
        "\\]",
        "$",
        "$$",
        "&#0060;",
        "&",
        "#",
        "[a]: b",
        "\\",
    ]
    parts = [*special, "mermaid", "\n", "\n\n", "x", " ", "    ", "> ", "- ", "\r\n", "\u2028", "\x0c", "é"]
    rng = random.Random(0)
    for _ in range(2_000):
        text = "".join(rng.choices(parts, k=rng.randrange(1, 25)))
        assert as_written(drawable(text)) == text
        assert as_typed(drawable(text, editable=True)) == text
