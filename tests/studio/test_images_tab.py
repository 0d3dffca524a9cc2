"""The images tab in a browser, with the embedded model."""

import io
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from PIL import Image
from playwright.sync_api import Page, expect

from .conftest import Studio

PICTURE_MS = 60_000


def generate(page: Page, prompt: str) -> Image.Image:
    """Type a prompt, wait for the picture and return its PNG as the browser shows it."""
    page.locator("#prompt textarea").fill(prompt)
    page.locator("#generate").click()
    expect(page.locator("#cancel")).to_be_enabled()
    expect(page.locator("#image-progress")).to_contain_text("steps in", timeout=PICTURE_MS)
    expect(page.locator("#generate")).to_be_enabled()
    png = httpx.get(page.locator("#picture img").get_attribute("src")).content
    assert png.startswith(b"\x89PNG")
    return Image.open(io.BytesIO(png)).convert("RGB")


def set_number(page: Page, elem_id: str, value: str) -> None:
    page.locator(f"#{elem_id} input[type=number]").fill(value)
    page.locator(f"#{elem_id} input[type=number]").blur()


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_red_circle_is_red_in_the_middle(studio: Studio, visit: Callable[..., Page]) -> None:
    page = visit(studio, tab="Images")
    picture = generate(page, "a red circle")
    red, green, blue = picture.getpixel((picture.width // 2, picture.height // 2))
    assert red > 128, (red, green, blue)
    assert max(green, blue) < 110, (red, green, blue)
    assert page.locator("#picture img").evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    expect(page.locator("#gallery img")).to_have_count(1)


def test_a_seed_repeats_its_picture(studio: Studio, visit: Callable[..., Page]) -> None:
    """A random seed is shown afterwards; typed in, it gives the same picture, another one another picture."""
    page = visit(studio, tab="Images")
    set_number(page, "steps", "4")
    first = generate(page, "a small blue square")
    seed = page.locator("#seed input").input_value()
    expect(page.locator("#image-progress")).to_contain_text(f"seed {seed}")
    page.locator("#random-seed input").uncheck()
    second = generate(page, "a small blue square")
    set_number(page, "seed", str(int(seed) + 1))
    third = generate(page, "a small blue square")
    assert first.tobytes() == second.tobytes() != third.tobytes()
    expect(page.locator("#gallery img")).to_have_count(3)


def test_the_picture_forms_before_ones_eyes(studio: Studio, visit: Callable[..., Page]) -> None:
    """Previews change, and the bar counts the steps."""
    page = visit(studio, tab="Images")
    page.evaluate("""() => {
        window.seen = new Set()
        const look = () => window.seen.add(document.querySelector('#picture img')?.src)
        new MutationObserver(look).observe(document.body, {subtree: true, childList: true, attributes: true})
    }""")
    generate(page, "two green triangles")
    assert page.evaluate("window.seen.size") >= 4


def test_cancel_stops_the_work(studio: Studio, visit: Callable[..., Page]) -> None:
    """The server's processor falls silent within a moment of Cancel, long before a hundred steps are over."""
    page = visit(studio, tab="Images")
    set_number(page, "steps", "100")
    page.locator("#prompt textarea").fill("a red boat on a lake")
    page.locator("#generate").click()
    expect(page.locator("#image-progress")).to_contain_text(re.compile(r"step \d+ of 100"), timeout=PICTURE_MS)
    page.locator("#cancel").click()
    expect(page.locator("#image-progress")).to_have_text("Cancelled.")
    expect(page.locator("#generate")).to_be_enabled()
    time.sleep(0.5)
    before = cpu_seconds(studio.process.pid)
    time.sleep(1)
    assert cpu_seconds(studio.process.pid) - before < 0.3
    expect(page.locator("#image-progress")).to_have_text("Cancelled.")
    set_number(page, "steps", "2")
    generate(page, "a red boat on a lake")


def test_an_empty_prompt_is_refused(studio: Studio, visit: Callable[..., Page]) -> None:
    page = visit(studio, tab="Images")
    page.locator("#negative-prompt textarea, #negative-prompt input").fill("blue")
    page.locator("#generate").click()
    expect(page.get_by_text("prompt is empty: type something first")).to_be_visible()
    expect(page.locator("#generate")).to_be_enabled()
    expect(page.locator("#negative-prompt textarea, #negative-prompt input")).to_have_value("blue")
