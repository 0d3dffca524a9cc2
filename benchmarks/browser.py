"""The speed that visitors see: answers in Chromium pages, compared with the same answers from the engine.

`python -m benchmarks.browser` makes a Llama of SmolLM2-135M's shape with random weights and the embedded tokenizer's
vocabulary, serves it with app.py, and sends prompts from one page, then from eight pages at once. In turns with that,
the engine answers as many prompts of the same length in this process. The time of a page is from Enter to the frame
that shows the last token and its note. Chromium shares the processor. The last line of output is JSON.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from hfjax_app.runtime.process import prepare

prepare()  # before jax and torch start

import torch  # noqa: E402
from playwright.sync_api import Page, expect, sync_playwright  # noqa: E402
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: E402

from benchmarks.contenders import SHAPES, Engine  # noqa: E402
from benchmarks.hardware import describe  # noqa: E402
from hfjax_app.chat import ChatEngine  # noqa: E402
from hfjax_app.chat.text.chat_template import ChatFormat  # noqa: E402
from hfjax_app.embedded import resolve  # noqa: E402
from tests.studio.conftest import CHROMIUM, FLAGS, end, start  # noqa: E402

NEW_TOKENS, SLOTS, CONTEXT = 128, 8, 512
WARM_S = 1800  # to compile twelve programs on a busy machine


def make_model(folder: Path, shape: str) -> None:
    """A checkpoint that never ends an answer."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("chat-llama"))
    tokenizer.save_pretrained(folder)
    sizes = SHAPES[shape] | {"vocab_size": len(tokenizer)}
    config = LlamaConfig(**sizes, max_position_embeddings=4096, bos_token_id=None, eos_token_id=None)
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)


def prepare_page(page: Page, url: str) -> None:
    page.goto(url)
    page.get_by_role("tab", name="Chat").click()
    page.locator("#chat-settings").get_by_text("Settings").click()
    page.wait_for_timeout(1000)
    for option, value in (("max-tokens", str(NEW_TOKENS)), ("temperature", "0")):
        field = page.locator(f"#{option} input[type=number]")
        field.fill(value)
        field.blur()
    page.locator("#chat-settings").get_by_text("Settings").click()


# Resolves to the epoch milliseconds of the next Enter, and of the frame after the one with the end of the answer's
# note. The page measures both: polling from outside would be up to half a second late and use the processor.
WATCH = """end => {
  const now = () => performance.timeOrigin + performance.now()
  window.answered = new Promise(resolve => {
    const ask = event => {
      if (event.key !== "Enter") return
      const entered = now()
      removeEventListener("keydown", ask, true)
      const observer = new MutationObserver(() => {
        const notes = document.querySelectorAll("#conversation small.note")
        if (!notes.length || !notes[notes.length - 1].textContent.endsWith(end)) return
        observer.disconnect()
        requestAnimationFrame(() => requestAnimationFrame(() => resolve([entered, now()])))
      })
      observer.observe(document.body, {subtree: true, childList: true, characterData: true})
    }
    addEventListener("keydown", ask, true)
  })
}"""


def seen(pages: list[Page], text: str) -> float:
    """Tokens per second of these pages together; all send the same message at once, each in a new conversation."""
    notes = [page.locator("#conversation small.note") for page in pages]
    for page, note in zip(pages, notes, strict=True):
        if note.count():
            page.get_by_role("button", name="Clear").click()
            expect(note).to_have_count(0)
        page.locator("#message textarea").fill(text)
        page.evaluate(WATCH, "ended at max tokens")
    for page in pages:
        page.locator("#message textarea").press("Enter")
    entered, ended = zip(*(page.evaluate("answered") for page in pages), strict=True)
    for note in notes:
        expect(note).to_contain_text(f"· {NEW_TOKENS} tokens · ")
    return len(pages) * NEW_TOKENS * 1000 / (max(ended) - min(entered))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="smollm2-135m", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        model, missing = Path(place) / "model", str(Path(place) / "missing")
        make_model(model, arguments.shape)
        options = {"HFJAX_CHAT_MODEL": str(model), "HFJAX_SLOTS": str(SLOTS), "HFJAX_CONTEXT": str(CONTEXT)}
        studio = start(Path(place) / "log", HFJAX_SENTIMENT_MODEL=missing, HFJAX_IMAGE_MODEL=missing, **options)
        try:
            studio.wait_until(lambda health: health["backends"]["chat"]["state"] == "ready", WARM_S, "warm")
            chat = ChatEngine.from_pretrained(model, slots=SLOTS, context=CONTEXT)
            engine = Engine("engine", chat, 0)
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            rates: dict[int, dict[str, list[float]]] = {n: {"browser": [], "engine": []} for n in (1, SLOTS)}
            for users, taken in rates.items():
                pages = [browser.new_context().new_page() for _ in range(users)]
                for page in pages:
                    prepare_page(page, studio.url)
                for round_ in range(arguments.rounds + 1):
                    text = f"Tell me story number {round_} of {users}."  # a new text, so that no prefix is reused
                    prompt = ChatFormat(chat.tokenizer).encode([{"role": "user", "content": text}])
                    measured = (
                        seen(pages, text),
                        users * NEW_TOKENS / engine.run([prompt] * users, NEW_TOKENS).seconds,
                    )
                    if round_:
                        for name, rate in zip(("browser", "engine"), measured, strict=True):
                            taken[name].append(rate)
                for page in pages:
                    page.context.close()
            browser.close()
            chat.stop()
        finally:
            end(studio)
    report = {"benchmark": "browser", "shape": arguments.shape, "hardware": describe(), "rounds": arguments.rounds}
    for users, taken in rates.items():
        medians = {name: statistics.median(values) for name, values in taken.items()}
        share = statistics.median(b / e for b, e in zip(taken["browser"], taken["engine"], strict=True))
        print(f"{users} users, tokens/s: {json.dumps(medians)}, share {share:.0%}")
        report[f"{users}_users"] = {"tokens_per_s": medians, "share": share}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
