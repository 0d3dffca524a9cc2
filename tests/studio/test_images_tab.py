"""The images tab in a browser, with the embedded model."""

import io
import json
import re
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from hfjax_app.images.start_picture import digest
from hfjax_app.limits import HTTP_MAX_BODY, IMAGES_SERVED_TOGETHER

from .conftest import LIMIT_MS, LIMIT_S, Studio, http, open_tab, reload, running, settled
from .test_accessibility import THEMES, in_theme, violations
from .test_request_log import values

PICTURE_MS = 2 * LIMIT_MS
SEED = "#seed input"
COLD_SIZE = (72, 64)  # no other test uses it


@pytest.fixture
def page(studio: Studio, revisit: Callable[..., Page]) -> Page:
    """The tab as the last test left it, for one picture in twenty steps from a random seed."""
    page = revisit(studio, tab="Images")
    set_number(page, "steps", "20")
    set_number(page, "count", "1")
    page.locator("#random-seed input").check()
    return page


def anew(page: Page) -> None:
    """Load the page as a new visitor does: with nothing kept, and the usual settings."""
    page.evaluate("() => { sessionStorage.clear(); localStorage.clear() }")
    open_tab(reload(page), "Images")


def generate(page: Page, prompt: str) -> Image.Image:
    """Type a prompt, wait for the picture and return its PNG as the browser shows it."""
    page.locator("#prompt textarea").fill(prompt)
    with running(page, "#cancel:enabled", PICTURE_MS):
        page.locator("#generate").click()
    expect(page.locator("#image-progress")).to_contain_text("steps in")
    settled(page)
    png = http.get(page.locator("#picture img").get_attribute("src")).content
    assert png.startswith(b"\x89PNG")
    return Image.open(io.BytesIO(png))


def shown(page: Page) -> bytes:
    settled(page)
    return http.get(page.locator("#picture img").get_attribute("src")).content


def choose(page: Page, elem_id: str, option: str) -> None:
    page.locator(f"#{elem_id} input").click()
    page.get_by_role("option", name=option, exact=True).click()
    settled(page)


def set_number(page: Page, elem_id: str, value: str) -> None:
    page.locator(f"#{elem_id} input[type=number]").fill(value)
    page.locator(f"#{elem_id} input[type=number]").blur()


def open_editor(page: Page) -> Locator:
    page.locator("#start-from button").first.click()
    editor = page.locator("#source-picture")
    expect(editor.locator("canvas").first).to_be_visible()
    page.wait_for_function("window.editor?.ready.then(() => true)")  # shown before it takes files
    settled(page)
    return editor


def changes(page: Page) -> int:
    """How many changes the editor could undo."""
    return page.evaluate(
        """() => {
            let count = 0
            for (let at = editor.command_manager.history; at?.previous; at = at.previous) count++
            return count
        }"""
    )


def steps_made(studio: Studio) -> float:
    """Denoising steps since the server's start."""
    return values(studio)["hfjax_image_steps_total,model=images"]


def test_a_red_circle_is_red_in_the_middle(page: Page) -> None:
    picture = generate(page, "a red circle")
    red, green, blue = picture.convert("RGB").getpixel((picture.width // 2, picture.height // 2))
    assert red > 128, (red, green, blue)
    assert max(green, blue) < 110, (red, green, blue)
    assert page.locator("#picture img").evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    expect(page.locator("#gallery img")).to_have_count(1)


def test_the_gallery_outlives_a_reload(page: Page) -> None:
    """New pictures are added. Stored paths of files that were not made here are ignored: they could be any file."""
    gallery = page.locator("#gallery img")
    set_number(page, "steps", "2")
    generate(page, "a yellow star")
    stored = json.loads(page.evaluate("sessionStorage.gallery"))
    [[file, caption]] = [picture for picture in stored if picture[1].startswith("a yellow star · seed ")]
    forged = [[str(Path("README.md").resolve()), "x"], [file, 1], 2, [file, caption]]
    page.evaluate("stored => { sessionStorage.gallery = stored; }", json.dumps(forged))
    open_tab(reload(page), "Images")
    expect(gallery).to_have_count(1)
    set_number(page, "steps", "2")
    generate(page, "a yellow star")
    expect(gallery).to_have_count(2)


def test_a_seed_repeats_its_picture(page: Page) -> None:
    """A random seed is shown afterwards. The same seed gives the same picture, another seed another picture."""
    set_number(page, "steps", "4")
    before = page.locator("#gallery img").count()
    first = generate(page, "a small blue square")
    seed = page.locator(SEED).input_value()
    expect(page.locator("#image-progress")).to_contain_text(f"seed {seed}")
    page.locator("#random-seed input").uncheck()
    second = generate(page, "a small blue square")
    page.locator(SEED).fill(str(int(seed) + 1))
    third = generate(page, "a small blue square")
    assert first.tobytes() == second.tobytes() != third.tobytes()
    expect(page.locator("#gallery img")).to_have_count(before + 3)


def test_a_downloaded_picture_brings_its_settings_back(page: Page, tmp_path: Path) -> None:
    """Another browser takes the unusual settings from an uploaded picture, and draws the same pixels."""
    anew(page)
    set_number(page, "steps", "5")
    set_number(page, "guidance", "3.5")
    set_number(page, "count", "3")
    choose(page, "scheduler", "Euler ancestral")
    sheet = generate(page, "a yellow star")
    assert sheet.size == (128, 128), "four places, three pictures"
    of_sheet = sheet.info["parameters"]
    expect(page.locator("#gallery img")).to_have_count(3)
    seed = int(page.locator(SEED).input_value())
    source = page.locator("#gallery img").nth(2).get_attribute("src")
    file = tmp_path / "third.png"
    file.write_bytes(http.get(source).content)
    with Image.open(file) as picture:
        assert f"Steps: 5, Sampler: Euler a, CFG scale: 3.5, Seed: {seed + 2}" in picture.info["parameters"]
        assert of_sheet == picture.info["parameters"].replace(str(seed + 2), str(seed)), "the first one's settings"

    anew(page)
    page.locator("#recipe button").first.click()
    page.locator("#recipe-file input[type=file]").set_input_files(file)
    expect(page.locator("#recipe-file")).to_contain_text("third")
    page.locator("#reuse").click()
    expect(page.locator("#image-message")).to_contain_text("The settings of the picture are in place.")
    expect(page.locator("#prompt textarea")).to_have_value("a yellow star")
    expect(page.locator(SEED)).to_have_value(str(seed + 2))
    expect(page.locator("#random-seed input")).not_to_be_checked()
    expect(page.locator("#steps input[type=number]")).to_have_value("5")
    expect(page.locator("#scheduler input")).to_have_value("Euler ancestral")
    page.locator("#verify").click()
    expect(page.locator("#image-progress")).to_contain_text("Identical: all 4,096 pixels", timeout=PICTURE_MS)


def test_a_large_seed_is_brought_back_to_the_last_digit(page: Page, tmp_path: Path) -> None:
    """The field was a number field, and browsers round numbers from 2^53 on: the settings drew another picture."""
    seed = 2**64 - 1
    set_number(page, "steps", "2")
    expect(page.locator("#random-seed input")).to_be_checked()
    page.locator(SEED).fill("minus one")
    expect(page.locator("#random-seed input")).not_to_be_checked()
    page.locator("#prompt textarea").fill("a yellow star")
    page.locator("#generate").click()
    expect(page.get_by_text("seed = 'minus one': must be a whole number")).to_be_visible()
    page.locator(SEED).fill(str(seed))
    first = generate(page, "a yellow star")
    file = tmp_path / "star.png"
    file.write_bytes(shown(page))
    anew(page)
    page.locator("#recipe button").first.click()
    page.locator("#recipe-file input[type=file]").set_input_files(file)
    expect(page.locator("#recipe-file")).to_contain_text("star")
    page.locator("#reuse").click()
    expect(page.locator(SEED)).to_have_value(str(seed))
    assert generate(page, "a yellow star").tobytes() == first.tobytes()


def test_a_file_without_settings_is_rejected(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "plain.png"
    Image.new("RGB", (8, 8)).save(file)
    anew(page)
    page.locator("#recipe button").first.click()
    page.locator("#recipe-file input[type=file]").set_input_files(file)
    expect(page.locator("#recipe-file")).to_contain_text("plain")
    page.locator("#verify").click()
    expect(page.get_by_text("the picture has no settings inside")).to_be_visible()
    expect(page.locator("#generate")).to_be_enabled()


def test_a_long_prompt_is_counted_in_pieces(page: Page) -> None:
    """What follows the first piece matters too."""
    count = page.locator("#prompt-length")
    page.locator("#prompt textarea").fill("a red circle")
    expect(count).to_have_text(re.compile(r"^\s*\d+ of \d+ tokens\s*$"))
    page.locator("#prompt textarea").fill("a red circle, " * 30)
    expect(count).to_have_text(re.compile(r"^\s*\d+ tokens in \d pieces of \d+\s*$"))
    page.locator("#prompt textarea").fill("a red circle, " * 300)
    expect(count).to_contain_text("the end is not read")
    generate(page, "a red circle, " * 30)
    page.locator("#prompt textarea").fill("")
    expect(count).not_to_contain_text("tokens")


def test_only_what_is_painted_over_is_drawn_anew(studio: Studio, visit: Callable[..., Page], tmp_path: Path) -> None:
    """A blue picture with a painted stroke across its middle: the corner stays, the parameters hold picture and mask.

    Reusing the settings of a picture that started from none removes it from the editor.
    """
    file, plain = tmp_path / "blue.png", tmp_path / "plain.png"
    Image.new("RGB", (64, 64), (30, 60, 220)).save(file)
    page = visit(studio, tab="Images")
    generate(page, "a red circle")
    plain.write_bytes(shown(page))
    editor = open_editor(page)
    canvas = editor.locator("canvas").first
    editor.locator("input[type=file]").first.set_input_files(file)
    expect(page.get_by_text("Upload an image")).to_be_hidden()
    settled(page)  # a picture that arrives takes the tool back
    brush = editor.get_by_role("button", name="Brush", exact=True)
    if "highlight" not in brush.get_attribute("class"):
        brush.click()
    canvas.scroll_into_view_if_needed()
    settled(page)
    expect(brush).to_have_class(re.compile("highlight"))
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    before, deadline = changes(page), time.monotonic() + LIMIT_S
    while changes(page) == before:  # the brush paints a moment after it is chosen, and nothing says when
        assert time.monotonic() < deadline, "no stroke is taken"
        page.mouse.move(x - 12, y)
        page.mouse.down()
        page.mouse.move(x + 12, y, steps=5)
        page.mouse.up()
        page.mouse.move(0, 0)
        settled(page)
    page.locator("#only-marked input").check()
    page.locator("#expand input, #expand textarea").fill("0, 16, 0, 0")
    picture = generate(page, "a red circle on a blue background")
    parameters = json.loads(picture.info["hfjax"])
    assert (parameters["strength"], parameters["softness"]) == (0.8, 1.0)
    assert (parameters["region"], parameters["expand"]) == ("marked", "0,16,0,0")
    assert parameters["image"]
    assert parameters["mask"]
    assert picture.size == (80, 64)
    assert picture.convert("RGB").getpixel((2, 2)) == (30, 60, 220)
    expect(page.locator("#prompt-length")).to_contain_text("tokens")
    page.locator("#recipe button").first.click()
    page.locator("#recipe-file input[type=file]").set_input_files(plain)
    expect(page.locator("#recipe-file")).to_contain_text("plain")
    page.locator("#reuse").click()
    expect(page.locator("#image-message")).to_contain_text("The settings of the picture are in place.")
    expect(page.locator("#only-marked input")).not_to_be_checked()
    expect(page.locator("#expand input, #expand textarea")).to_have_value("")
    generate(page, "a red circle")
    assert shown(page) == plain.read_bytes()


def test_a_picture_of_the_gallery_is_used_again(studio: Studio, visit: Callable[..., Page], tmp_path: Path) -> None:
    """Large, its settings, as a picture to start from, and with the others in a zip file."""
    page = visit(studio, tab="Images")
    set_number(page, "steps", "3")
    generate(page, "a small blue square")
    first = shown(page)
    set_number(page, "steps", "2")
    generate(page, "a yellow star")
    page.locator("#gallery .thumbnail-item").nth(1).click()
    expect(page.locator("#image-progress")).to_contain_text("a small blue square")
    assert shown(page) == first
    settled(page)
    large, thumbnail = (page.locator(f"{name} img").first.bounding_box() for name in ("#picture", "#gallery"))
    assert large["height"] > 2 * thumbnail["height"]
    page.locator("#again").click()
    expect(page.locator("#prompt textarea")).to_have_value("a small blue square")
    expect(page.locator("#steps input[type=number]")).to_have_value("3")
    with page.expect_download() as downloaded:
        page.locator("#all-as-zip").click()
    downloaded.value.save_as(tmp_path / "pictures.zip")
    with zipfile.ZipFile(tmp_path / "pictures.zip") as archive:
        assert archive.read(archive.namelist()[1]) == first
    page.locator("#paint-over").click()
    brush = page.locator("#source-picture").get_by_role("button", name="Brush", exact=True)
    expect(brush).to_have_class(re.compile("highlight"))
    again = generate(page, "a red circle")
    assert json.loads(again.info["hfjax"])["image"] == digest(Image.open(io.BytesIO(first)))
    expect(page.locator("#image-progress")).to_contain_text("from a picture, strength 0.8")


def test_variations_of_a_picture(page: Page) -> None:
    """Four pictures near it, whose settings say so; the next picture is near it too until that is switched off."""
    set_number(page, "steps", "2")
    generate(page, "a yellow star")
    seed = page.locator(SEED).input_value()
    with running(page, "#cancel:enabled", PICTURE_MS):
        page.locator("#vary").click()
    expect(page.locator("#image-progress")).to_contain_text(f"near seed {seed}, 0.3 from it")
    expect(page.locator("#picture-actions")).to_be_hidden()  # until one of the four is picked
    page.locator("#gallery .thumbnail-item").nth(3).click()
    expect(page.locator("#picture-actions")).to_be_visible()
    parameters = json.loads(Image.open(io.BytesIO(shown(page))).info["hfjax"])
    assert (parameters["variation_of"], parameters["variation"]) == (int(seed), 0.3)
    expect(page.locator("#variation-of input")).to_have_value(seed)
    page.locator("#variation-of input").fill("")
    set_number(page, "count", "1")
    assert json.loads(generate(page, "a yellow star").info["hfjax"])["variation_of"] is None


def test_an_emptied_number_gets_its_value_back(page: Page) -> None:
    """It became the smallest one."""
    set_number(page, "guidance", "3.5")
    set_number(page, "guidance", "")
    expect(page.locator("#guidance input[type=number]")).to_have_value("3.5")
    expect(page.locator("#guidance input[type=range]")).to_have_value("3.5")


@pytest.mark.parametrize("height", [800, 844])
def test_generate_is_within_reach(page: Page, height: int) -> None:
    """Also on a phone, whose settings are a drawer."""
    page.set_viewport_size({"width": 1280 if height == 800 else 390, "height": height})
    try:
        page.evaluate("scrollTo(0, 0)")
        settled(page)
        box = page.locator("#generate").bounding_box()
        assert box["y"] + box["height"] < height / 2
        expect(page.locator("#image-settings")).to_be_visible(visible=height == 800)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


@pytest.mark.parametrize("theme", THEMES)
def test_pictures_and_their_controls_have_no_violations(page: Page, theme: str) -> None:
    in_theme(page, theme)
    expect(page.locator("#picture img")).to_be_visible()
    assert violations(page) == []


def test_the_page_shows_previews(page: Page) -> None:
    """Previews change, and the bar counts the steps."""
    page.evaluate("""() => {
        window.seen = new Set()
        const look = () => window.seen.add(document.querySelector('#picture img')?.src)
        new MutationObserver(look).observe(document.body, {subtree: true, childList: true, attributes: true})
    }""")
    generate(page, "two green triangles")
    assert page.evaluate("window.seen.size") >= 4


def test_cancel_stops_the_work(studio: Studio, page: Page) -> None:
    """The server draws no more steps soon after Cancel, long before a hundred are over."""
    before = steps_made(studio)
    set_number(page, "steps", "100")
    page.locator("#prompt textarea").fill("a red boat on a lake")
    page.locator("#generate").click()
    expect(page.locator("#image-progress")).to_contain_text(re.compile(r"step \d+ of 100"), timeout=PICTURE_MS)
    page.locator("#cancel").click()
    expect(page.locator("#image-progress .note")).to_have_text("Cancelled.")
    expect(page.locator("#generate")).to_be_enabled()
    made, deadline = steps_made(studio), time.monotonic() + LIMIT_S
    while time.sleep(0.5) or made < (now := steps_made(studio)):
        made = now
        assert time.monotonic() < deadline, "it goes on"
    assert 0 < made - before < 100
    expect(page.locator("#image-progress .note")).to_have_text("Cancelled.")
    set_number(page, "steps", "2")
    generate(page, "a red boat on a lake")


def test_an_empty_prompt_is_rejected(page: Page) -> None:
    negative = page.locator("#negative-prompt textarea, #negative-prompt input")
    negative.fill("blue")
    page.locator("#prompt textarea").fill("")
    page.locator("#generate").click()
    expect(page.get_by_text("prompt is empty: type something first")).to_be_visible()
    expect(page.locator("#generate")).to_be_enabled()
    expect(negative).to_have_value("blue")
    negative.fill("")


def test_a_photo_is_made_smaller_before_it_is_sent(studio: Studio, visit: Callable[..., Page], tmp_path: Path) -> None:
    """As PNG, the canvas of a grainy photo exceeds the limit of a request: nothing was drawn, without an error."""
    noise = np.random.default_rng(0).integers(0, 256, (1700, 2500, 3), np.uint8)
    photo = tmp_path / "photo.jpg"
    Image.fromarray(noise).save(photo, quality=50)
    assert noise.nbytes > HTTP_MAX_BODY * 3 / 4, "as text"
    page = visit(studio, tab="Images")
    set_number(page, "steps", "2")
    editor = open_editor(page)
    editor.locator("input[type=file]").first.set_input_files(photo)
    expect(page.get_by_text("Upload an image")).to_be_hidden()
    settled(page)
    assert json.loads(generate(page, "a red circle").info["hfjax"])["image"]


def test_files_for_the_editor(studio: Studio, visit: Callable[..., Page], tmp_path: Path) -> None:
    """One that is no picture is an error below it. What is transparent in a picture gets the chosen colour."""
    words, clear = tmp_path / "words.png", tmp_path / "clear.png"
    words.write_text("no picture")
    Image.new("RGBA", (64, 64), (0, 0, 0, 0)).save(clear)
    page = visit(studio, tab="Images")
    set_number(page, "steps", "2")
    page.evaluate("window.addEventListener('unhandledrejection', event => event.preventDefault())")
    editor = open_editor(page)
    editor.locator("input[type=file]").first.set_input_files(words)
    expect(page.locator("#source-note")).to_have_text("This file can't be read as a picture.")
    expect(page.locator("#background")).to_contain_text("white unless you pick another")
    page.locator("#background input").fill("#00ff00")
    editor.locator("input[type=file]").first.set_input_files(clear)
    expect(page.get_by_text("Upload an image")).to_be_hidden()
    settled(page)
    picture = generate(page, "a red circle")
    assert json.loads(picture.info["hfjax"])["background"] == "#00ff00"
    said = "what is transparent in the picture to start from was #00ff00"
    expect(page.locator("#image-progress")).to_contain_text(said)


def test_a_client_gets_a_message_that_a_size_compiles_first(studio: Studio) -> None:
    """Tested with a client, because a page may skip the message when the programs come from the cache.

    The new programs are reported like those of the warm-up; the backend must not count as warming up again.
    """
    before = studio.health()["backends"]["images"]["progress"]
    url = f"{studio.url}/gradio_api/call/generate"
    options = ["a red circle", "", 2, 7.5, 1, 1, *COLD_SIZE, None, None, None, 0.8]
    event = http.post(url, json={"data": options}).json()["event_id"]
    with http.stream("GET", f"{url}/{event}") as stream:
        sent = "".join(stream.iter_lines())
    assert re.search(rf'"waiting": "{COLD_SIZE[0]} x {COLD_SIZE[1]} compiles about \d+ s first"', sent), sent[:1000]
    after = studio.health()["backends"]["images"]
    assert after["state"] == "ready"
    ready = re.compile(r"ready; (\d+) programs in ([\d.]+) s")
    for less, more in zip(ready.fullmatch(before).groups(), ready.fullmatch(after["progress"]).groups(), strict=True):
        assert float(more) > float(less)


def test_only_buttons_with_a_use_are_shown(page: Page) -> None:
    """The button that counts the prompt's tokens is the page's own: it stood beside the prompt as "Run"."""
    expect(page.locator("#generate")).to_be_visible()
    expect(page.locator("#count-prompt")).to_be_hidden()


def test_another_size_is_offered_from_then_on(page: Page) -> None:
    """With a prompt that is longer than the model reads; the cut part is shown at the end."""
    size = f"{COLD_SIZE[0]} x {COLD_SIZE[1]}"
    set_number(page, "steps", "2")
    page.locator("#size input").fill(size)
    page.locator("#size input").press("Enter")
    assert generate(page, "a red circle " * 250).size == COLD_SIZE
    expect(page.locator("#image-progress")).to_contain_text("the end of the prompt was not read: 'a red circle")
    page.locator("#size input").click()
    expect(page.get_by_role("option", name=size, exact=True)).to_be_visible()


def test_shapes_are_those_of_warm_sizes(page: Page) -> None:
    """They appear where there is more than one; the size that a test above has compiled is another."""
    generate(page, "a red circle")  # the page hears of it
    page.locator("#shape").get_by_text("9:8").click()
    expect(page.locator("#size input")).to_have_value(f"{COLD_SIZE[0]} x {COLD_SIZE[1]}")
    set_number(page, "steps", "2")
    assert generate(page, "a red circle").size == COLD_SIZE
    page.locator("#shape").get_by_text("1:1").click()
    expect(page.locator("#size input")).to_have_value("64 x 64")


def test_a_typed_seed_is_the_one_that_is_used(page: Page) -> None:
    set_number(page, "steps", "2")
    expect(page.locator("#random-seed input")).to_be_checked()
    page.locator(SEED).press("Control+a")
    page.locator(SEED).press_sequentially("12345")
    expect(page.locator("#random-seed input")).not_to_be_checked()
    generate(page, "a red circle")
    expect(page.locator("#image-progress")).to_contain_text("12345")


@contextmanager
def drawing(studio: Studio) -> Iterator[None]:
    """Another visitor's pictures, which are drawn when the block begins; the visitor leaves at its end."""
    url = f"{studio.url}/gradio_api/call/generate"
    event = http.post(url, json={"data": ["a red boat on a lake", "", 100, 7.5, 1, 4]}).json()["event_id"]
    with http.stream("GET", f"{url}/{event}") as stream:
        lines = stream.iter_lines()  # a variable, because the connection ends when the iterator is collected
        next(line for line in lines if '"step": ' in line)
        yield


def test_a_waiting_page_shows_its_place_in_line(studio: Studio, page: Page) -> None:
    """Four visitors' pictures are drawn at the same time; one that leaves makes room."""
    set_number(page, "steps", "2")
    page.locator("#prompt textarea").fill("a red circle")
    with ExitStack() as others:
        for _ in range(IMAGES_SERVED_TOGETHER - 1):
            others.enter_context(drawing(studio))
        with drawing(studio):
            page.locator("#generate").click()
            expect(page.locator("#image-progress")).to_contain_text("Waiting: number 1 in the line.")
        expect(page.locator("#image-progress")).to_contain_text("steps in", timeout=PICTURE_MS)
