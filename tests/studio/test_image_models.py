"""The images tab with a model of today, whose class has other options than the embedded one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.images.families import family

from .conftest import LIMIT_MS, START_S, end, http, running, settled, start


@pytest.mark.slow  # its server starts for a minute
def test_a_flux_draws_replays_and_verifies(visit: Callable[..., Page], second_model: Path, tmp_path: Path) -> None:
    """It leaves out no layers of a text encoder, and a slider from 0 to 0 made every page fail."""
    family("Flux.1 dev").save_pretrained(tmp_path / "flux")
    (tmp_path / "flux" / "README.md").write_text(
        "---\ninference:\n  parameters: {num_inference_steps: 4, guidance_scale: 3.5, width: 64, height: 32}\n---\n"
    )
    studio = start(
        tmp_path / "log",
        HFJAX_CHAT_MODEL=str(second_model),
        HFJAX_IMAGE_MODEL=str(tmp_path / "flux"),
        JAX_DISABLE_MOST_OPTIMIZATIONS="1",
    )
    try:
        studio.wait_until(lambda health: health["backends"]["images"]["state"] == "ready", START_S, "ready")
        page = visit(studio, tab="Images")
        expect(page.locator("#steps input[type=number]")).to_have_value("4")
        page.locator("#prompt textarea").fill("a red dot")
        with running(page, "#cancel:enabled", LIMIT_MS):
            page.locator("#generate").click()
        settled(page)
        file = tmp_path / "dot.png"
        file.write_bytes(http.get(page.locator("#picture img").get_attribute("src")).content)
        page.locator("#recipe button").first.click()
        page.locator("#recipe-file input[type=file]").set_input_files(file)
        expect(page.locator("#recipe-file")).to_contain_text("dot")
        page.locator("#reuse").click()
        expect(page.locator("#image-message")).to_contain_text("The settings of the picture are in place.")
        page.locator("#verify").click()
        expect(page.locator("#image-progress")).to_contain_text("Identical: all 2,048 pixels")
    finally:
        end(studio)
