"""Settings: which source wins, and the messages for wrong values."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from hfjax_app.errors import RequestRejected
from hfjax_app.settings import load_settings


def test_flags_win_over_the_environment_which_wins_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (load_settings().port, load_settings().slots) == (7860, 4)
    monkeypatch.setenv("HFJAX_PORT", "8001")
    monkeypatch.setenv("HFJAX_SLOTS", "2")
    settings = load_settings(port="8002", host=None)
    assert (settings.port, settings.slots, settings.host) == (8002, 2, "127.0.0.1")


def test_the_defaults_are_the_embedded_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HFJAX_CHAT_MODEL")
    settings = load_settings(image_model="images, ./other")
    assert (settings.chat_models, settings.sentiment_model) == (["chat-gemma", "chat-llama"], "sentiment")
    assert settings.image_models == ["images", "./other"]
    assert settings.cache_dir is None


def test_the_cache_dir_is_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFJAX_CACHE_DIR", "/somewhere/warm")
    assert load_settings().cache_dir == Path("/somewhere/warm")


def test_an_empty_cache_dir_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment file without the value: it meant the working folder."""
    monkeypatch.setenv("HFJAX_CACHE_DIR", "")
    assert load_settings().cache_dir is None


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_settings().port = 1


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("port", "0", "1"),
        ("port", "65536", "65535"),
        ("port", "http", "integer"),
        ("slots", "0", "1"),
        ("slots", "1000000000", "256"),
        ("context", "-1", "64"),
        ("context", "nan", "integer"),
        ("chat_model", "", "1 character"),
        ("chat_model", "chat-gemma,,chat-llama", "between two commas there is no model"),
        ("image_model", "images, images", "images is there twice"),
        ("cache_dir", "gs://bucket/programs", "a folder of this machine"),
        ("frame_ancestors", "example.com", "match pattern"),
        ("frame_ancestors", "https://a.example; script-src *", "match pattern"),
        ("image_sizes", "512", "match pattern"),
        ("image_lora", "style:much", "'much' behind the colon of 'style' is no weight, such as 0.8"),
        ("image_lora", "style:9", "'style:9': must be a LoRA and a weight from -4 to 4"),
        ("image_lora", ":1", "must be a LoRA and a weight"),
        ("image_lora", "style:nan", "must be a LoRA and a weight"),
        ("image_sizes", "512x512;768x512", "match pattern"),
    ],
)
def test_a_wrong_value_is_named_with_its_limit(name: str, value: str, limit: str) -> None:
    with pytest.raises(RequestRejected) as error:
        load_settings(**{name: value})
    message = str(error.value)
    assert message.startswith(f"{name} = {value!r}: ")
    assert limit in message
    assert "\n" not in message


def test_a_wrong_variable_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFJAX_QUANTIZE", "sometimes")
    with pytest.raises(RequestRejected) as error:
        load_settings()
    assert str(error.value) == "quantize = 'sometimes': Input should be 'none' or 'int8'"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("daily_tokens", "NAME:KEY:TOKENS_A_DAY"),
        ("chat_replicas", "Serve's config file"),
    ],
)
def test_a_setting_of_an_earlier_version_says_what_to_do(name: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestRejected, match=f"{name} is gone: .*{says}"):
        load_settings(**{name: 2})
    monkeypatch.setenv(f"HFJAX_{name.upper()}", "2")
    with pytest.raises(RequestRejected, match=f"HFJAX_{name.upper()} is gone: .*{says}"):
        load_settings()


def test_a_deployment_that_set_what_the_app_decides_today_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HFJAX_SPECULATION", "never")
    load_settings()
    assert caplog.messages == ["HFJAX_SPECULATION is gone and changes nothing: the app decides by what is faster"]
    with pytest.raises(RequestRejected, match="speculation is gone: the app decides by what is faster"):
        load_settings(speculation="never")


def test_a_misspelt_variable_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """HFJAX_CHATMODEL instead of HFJAX_CHAT_MODEL would otherwise serve the embedded model without a message."""
    monkeypatch.setenv("HFJAX_CHATMODEL", "google/gemma-3-1b-it")
    with pytest.raises(RequestRejected, match=r"HFJAX_CHATMODEL.*HFJAX_CHAT_MODEL"):
        load_settings()


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(RequestRejected, match="speed"):
        load_settings(speed=11)


def test_a_space_listens_to_the_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face names the Space in SPACE_ID; its container is reached over the network."""
    monkeypatch.setenv("SPACE_ID", "someone/studio")
    assert load_settings().host == "0.0.0.0"
    monkeypatch.setenv("HFJAX_HOST", "127.0.0.1")
    assert load_settings().host == "127.0.0.1"


def test_the_port_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cloud Run and others say in PORT where they look for the app."""
    monkeypatch.setenv("PORT", "8080")
    assert load_settings().port == 8080
    monkeypatch.setenv("HFJAX_PORT", "8001")
    assert load_settings().port == 8001
    monkeypatch.delenv("HFJAX_PORT")
    monkeypatch.setenv("PORT", "http")
    with pytest.raises(RequestRejected, match="port = 'http'"):
        load_settings()


def test_who_may_show_the_page_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub lets everybody embed a public Space, and browsers refused the frame."""
    assert load_settings().frame_ancestors == ""
    monkeypatch.setenv("SPACE_ID", "someone/studio")
    assert load_settings().frame_ancestors == "*"
    monkeypatch.setenv("HFJAX_FRAME_ANCESTORS", "https://a.example,https://*.b.example:8443")
    assert load_settings().frame_ancestors == "https://a.example,https://*.b.example:8443"


def test_an_empty_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty host would have listened on every interface."""
    for name in ("HFJAX_HOST", "HFJAX_PORT", "HFJAX_CHAT_MODEL"):
        monkeypatch.setenv(name, "")
    settings = load_settings()
    assert (settings.host, settings.port, settings.chat_model) == ("127.0.0.1", 7860, "chat-gemma,chat-llama")
    with pytest.raises(RequestRejected, match="host"):
        load_settings(host="")


def test_loras() -> None:
    settings = load_settings(image_lora="a/b.safetensors:0.8, owner/name,folder:-1")
    assert settings.loras == [("a/b.safetensors", 0.8), ("owner/name", 0.0), ("folder", -1.0)]
    assert load_settings().loras == []
