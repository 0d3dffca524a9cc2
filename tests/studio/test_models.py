"""Several models on one server: a visitor picks one, and the operator loads another."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from hfjax_app.limits import LOGIN_FAILURES
from tests.chat.conftest import make_model, make_tokenizer

from .conftest import LIMIT_MS, LIMIT_S, SECOND, Studio, http, reload, running, settled

Visit = Callable[..., Page]
ANSWER_MS = 2 * LIMIT_MS
CALL = "/gradio_api/call/v2"


def key_of(studio: Studio) -> str:
    """The key that the server printed at its start."""
    found = re.search(r"operator's key of this run.*: (\S+)", studio.output.read_text())
    assert found is not None
    return found[1]


def call(studio: Studio, name: str, body: dict[str, Any], client: httpx.Client = http) -> str:
    """The last result of an endpoint, or its refusal."""
    joined = client.post(f"{studio.url}{CALL}/{name}", json=body)
    if joined.status_code != 200:
        return f"{joined.status_code} {joined.json()['detail']}"
    with client.stream("GET", f"{studio.url}{CALL}/{name}/{joined.json()['event_id']}", timeout=LIMIT_S) as stream:
        lines = [line for line in stream.iter_lines() if line.startswith("data: ")]
    return json.dumps(json.loads(lines[-1].removeprefix("data: ")))


def models(studio: Studio) -> list[str]:
    return [model["model"] for model in studio.health()["models"]]


def ask(page: Page, text: str) -> None:
    page.locator("#message textarea").fill(text)
    with running(page, "#message .stop-button", ANSWER_MS):
        page.locator("#message textarea").press("Enter")


def test_a_conversation_goes_on_with_another_model(studio: Studio, visit: Visit) -> None:
    """By keyboard. The model's name is in the metrics of who answered, and the choice outlives a reload."""

    def made() -> float:
        found = re.search(
            r'hfjax_tokens_total\{kind="made",model="second"\} (\S+)', http.get(f"{studio.url}/metrics").text
        )
        return 0.0 if found is None else float(found[1])

    page = visit(studio)
    models = page.get_by_role("combobox", name="Model", exact=True)
    expect(models).to_have_value("chat-gemma")
    ask(page, "What is JAX?")
    before = made()
    models.focus()
    page.keyboard.press("ArrowDown")
    expect(models).to_have_value(SECOND)
    expect(models).to_be_focused()
    settled(page)
    ask(page, "Hello!")
    expect(page.locator("#conversation [data-testid=user]")).to_have_count(2)
    assert made() > before
    reload(page)
    expect(models).to_have_value(SECOND)
    before = made()
    ask(page, "Hello again!")
    assert made() > before


def test_reasoning_is_switched_off_where_the_model_s_template_can(studio: Studio, visit: Visit) -> None:
    """The switch is there for such a model only, and what it says reaches the prompt."""

    def prompted() -> float:
        text = http.get(f"{studio.url}/metrics").text
        found = re.findall(r"^hfjax_prompt_tokens_total(?:{[^}]*})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    page = visit(studio)
    think = page.get_by_label("Think before it answers")
    expect(think).to_be_hidden()
    page.get_by_role("combobox", name="Model", exact=True).select_option(SECOND)
    expect(think).to_be_checked()
    settled(page)
    counts = []
    for is_on in (True, False):
        page.get_by_role("button", name="New chat").click()
        settled(page)
        think.set_checked(is_on)
        settled(page)
        before = prompted()
        ask(page, "Hello!")
        counts.append(prompted() - before)
    assert counts[1] > counts[0] > 0


def test_only_the_operator_loads_models(studio: Studio, second_model: Path) -> None:
    key, before = key_of(studio), models(studio)
    for name, body in (
        ("load_model", {"model": SECOND}),
        ("unload_model", {"model": SECOND}),
        ("cancel_load", {}),
    ):
        for wrong in ("", "wrong", None):
            assert call(studio, name, body | {"key": wrong}).startswith("403 this is not the operator's key")
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.9"), timeout=LIMIT_S) as stranger:
        for _ in range(LOGIN_FAILURES):
            assert call(studio, "cancel_load", {"key": "wrong"}, stranger).startswith("403 ")
        assert call(studio, "cancel_load", {"key": key}, stranger).startswith("429 10 wrong operator's keys")
    assert "no model is being loaded" in call(studio, "cancel_load", {"key": key})
    assert call(studio, "load_model", {"model": "/no/such/folder", "key": key}).startswith("422 ")
    assert "'second' is there already" in call(studio, "load_model", {"model": str(second_model), "key": key})
    assert "'sentiment': one of chat, images" in call(
        studio, "load_model", {"model": "sentiment", "key": key, "kind": "sentiment"}
    )
    assert models(studio) == before


@pytest.mark.slow
def test_the_operator_loads_and_unloads_a_model_on_the_page(studio: Studio, visit: Visit, tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path / "tiny")
    make_tokenizer().save_pretrained(tmp_path / "tiny")
    page, key = visit(studio), key_of(studio)
    page.get_by_text("Load another model").click()
    models = page.get_by_role("combobox", name="Model", exact=True)
    status = page.locator("#chat-loader [role=status]")
    page.get_by_label("Operator's key").fill(key)
    source = page.get_by_role("textbox", name="Model", exact=True)
    shutil.copytree(tmp_path / "tiny", tmp_path / "pickled", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "pickled" / "pytorch_model.bin").touch()
    load = page.get_by_role("button", name="Load", exact=True)
    for name, says in (("pickled", "has weights, but none as safetensors"), ("tiny", "ready; ")):
        source.fill(str(tmp_path / name))
        load.dblclick()
        expect(page.locator(".toast-body").last).to_contain_text(f"'{name}' is being loaded: wait for it, or cancel")
        expect(status).to_contain_text(says, timeout=5 * LIMIT_MS)
    models.select_option("tiny")
    ask(page, "w1 w2")
    page.get_by_role("button", name="Unload the picked model").click()
    expect(status).to_contain_text("tiny was unloaded")
    expect(models).to_have_value("chat-gemma")
