"""One frozen Settings: defaults, overridden by HFJAX_* environment variables, overridden by command-line flags."""

import ipaddress
import logging
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import CHAT_MAX_CHARACTERS, CLIENT_MAX_SHARE

_log = logging.getLogger(__name__)

PREFIX = "HFJAX_"
MOST_LORA_WEIGHT = 4
SECRET = ("api_keys", "auth", "operator_key")  # never shown
MIN_KEY_CHARACTERS = 16

_SERVE = ("replicas", "most_replicas", "tpus")
_IN_SERVE = "Serve's config file has it, under deployments (docs/ray.md)"
_DECIDED = "the app decides by what is faster"
GONE = {  # settings of earlier versions, and what to do in their place
    "speculation": _DECIDED,
    "warm_up": _DECIDED,
    "pictures": "a chat model that can be shown pictures is",
    "daily_tokens": "write each key's quota behind it, NAME:KEY:TOKENS_A_DAY in api_keys",
    **{f"{kind}_{name}": _IN_SERVE for kind in ("chat", "sentiment", "images") for name in _SERVE},
    "replica_cpus": _IN_SERVE,
}


def _default_host() -> str:
    """This machine only; in a Hugging Face Space all interfaces, because requests come from outside its container."""
    return "0.0.0.0" if "SPACE_ID" in os.environ else "127.0.0.1"


def _default_port() -> Any:
    """The variable that Cloud Run and other hosts set, checked as the field's own value is."""
    return os.environ.get("PORT") or 7860


def _default_frames() -> str:
    """No other pages; in a Space all, because the hub lets visitors embed Spaces anywhere."""
    return "*" if "SPACE_ID" in os.environ else ""


def _default_proxies() -> str:
    """A proxy on this machine; in a Space, whose container only its proxy can reach, all."""
    return "*" if "SPACE_ID" in os.environ else "127.0.0.1,::1"


class Settings(BaseSettings):
    """The options of a deployment. A model is an embedded model's name, a folder, or a hub id."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid")

    host: str = Field(
        default_factory=_default_host,
        min_length=1,
        description="address to listen on; 0.0.0.0, the default in a Space, means all interfaces",
    )
    port: int = Field(
        default_factory=_default_port,
        ge=1,
        le=65535,
        validate_default=True,
        description="port to listen on; default: the variable PORT, or 7860",
    )
    chat_model: str = Field(
        "chat-gemma,chat-llama",
        min_length=1,
        description="causal language models of the chat tab, several with commas; the first is ready first, and "
        "answers requests that name none",
    )
    sentiment_model: str = Field("sentiment", min_length=1, description="sequence classifier of the sentiment tab")
    image_model: str = Field(
        "images", min_length=1, description="text-to-image pipelines of the images tab, several with commas"
    )
    image_sizes: str = Field(
        "",
        pattern=r"^(\d{1,5}x\d{1,5}(,\d{1,5}x\d{1,5})*)?$",
        description="more sizes to compile before the first request, such as 512x768,768x512",
    )
    image_lora: str = Field(
        "",
        description="LoRA that may be chosen for pictures of the (first) image model: a file, a folder or a hub id, "
        "several with commas, such as style.safetensors:0.8,owner/name; one with a weight behind a colon is in "
        "pictures for which nothing is chosen",
    )
    slots: int = Field(4, ge=1, le=256, description="conversations that are answered at the same time")
    context: int = Field(512, ge=64, le=1 << 20, description="tokens of a conversation that the model can read")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="dtype of the chat and image models; auto: bfloat16 on TPU and GPU, float32 on CPU, where bfloat16 "
        "weights of a chat model stay bfloat16 in memory",
    )
    quantize: Literal["none", "int8"] = Field(
        "none", description="int8: 8-bit weights in the chat model's linear layers, half of bfloat16's bytes"
    )
    image_quantize: Literal["none", "int8"] = Field(
        "none",
        description="int8: 8-bit weights in the linear layers of image models' denoisers and text encoders",
    )
    image_text_encoders: Literal["device", "host"] = Field(
        "device",
        description="host: image models' text encoders lie in the host's memory and go through the device for each new "
        "prompt",
    )
    cache_dir: Path | None = Field(None, description="folder of compiled programs; default: the user's cache folder")

    system_prompt: str = Field(
        "",
        max_length=CHAT_MAX_CHARACTERS,
        description="instructions to the chat model for conversations that bring none of their own",
    )
    api_keys: str = Field(
        "",
        repr=False,
        description="keys of who may use the studio and its API: KEY, NAME:KEY or NAME:KEY:TOKENS_A_DAY, several with "
        "commas; or a file, whose path begins with / or ./, with one a line",
    )
    auth: str = Field(
        "",
        repr=False,
        description="users who may: USER:PASSWORD, several with commas; or a file of lines USER:HASH, as htpasswd -B "
        "makes them; or oauth, the login of a Hugging Face Space",
    )
    operator_key: str = Field(
        "",
        repr=False,
        description="key with which models are loaded and unloaded while the server runs; default: on a loopback "
        "address a new one at each start, which is printed, elsewhere none",
    )
    operator_folders: str = Field(
        "",
        description="folders in which the models are that may be loaded with this key, with commas; default: all on a "
        "loopback address, none elsewhere; hub ids may always be named",
    )
    grace: int = Field(
        30, ge=0, le=3600, description="seconds that running requests have to end when the server is told to stop"
    )
    log: Literal["text", "json"] = Field("text", description="form of the log on stderr: one line a request")
    cors_origins: str = Field(
        "",
        pattern=r"^(https?://[^/,\s]+(,https?://[^/,\s]+)*|\*)?$",
        description="origins whose pages may call the API, such as https://example.com, with commas; * for all",
    )
    frame_ancestors: str = Field(
        default_factory=_default_frames,
        pattern=r"^(https?://(\*\.)?[^/,\s;'\"*]+(,https?://(\*\.)?[^/,\s;'\"*]+)*|\*)?$",
        description="origins whose pages may show the studio in a frame, such as https://example.com, with commas; * "
        "for all, the default in a Space",
    )
    forwarded_allow_ips: str = Field(
        default_factory=_default_proxies,
        description="addresses or networks of proxies whose X-Forwarded-* headers are believed, with commas; * for all",
    )
    root_path: str = Field(
        "",
        pattern=r"^(/[A-Za-z0-9._~-]+)*$",
        description="path under which a proxy serves the studio, such as /studio",
    )
    client_requests: int = Field(
        64,
        ge=1,
        le=CLIENT_MAX_SHARE,
        description="requests that one key, login or address may have running and waiting",
    )

    @model_validator(mode="before")
    @classmethod
    def _still_there(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Of arguments: `load_settings` looks at variables."""
        if name := next((name for name in values if name in GONE), None):
            raise ValueError(f"{name} is gone: {GONE[name]}")
        return values

    @field_validator("cache_dir", mode="before")
    @classmethod
    def _a_folder(cls, value: object) -> object:
        """An empty value means unset. A bucket is refused: it would become a local folder of that name."""
        if "://" in str(value):
            raise ValueError("compiled programs are kept in a folder of this machine")
        return value or None

    @field_validator("chat_model", "image_model")
    @classmethod
    def _models(cls, value: str) -> str:
        names = models_of(value)
        if not all(names):
            raise ValueError("between two commas there is no model")
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"{twice[0]} is there twice")
        return value

    @field_validator("operator_key")
    @classmethod
    def _long_enough(cls, value: str) -> str:
        if value and len(value) < MIN_KEY_CHARACTERS:
            raise ValueError(f"a key has at least {MIN_KEY_CHARACTERS} characters")
        return value

    @field_validator("image_lora")
    @classmethod
    def _loras(cls, value: str) -> str:
        _loras_of(value)
        return value

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def chat_models(self) -> list[str]:
        """`chat_model` as a list."""
        return models_of(self.chat_model)

    @property
    def image_models(self) -> list[str]:
        """`image_model` as a list."""
        return models_of(self.image_model)

    @property
    def loras(self) -> list[tuple[str, float]]:
        """`image_lora` as (source, weight)."""
        return _loras_of(self.image_lora)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """`image_sizes` as numbers: (width, height)."""
        sizes = (size.split("x") for size in self.image_sizes.split(",") if size)
        return [(int(width), int(height)) for width, height in sizes]


def models_of(text: str) -> list[str]:
    """The models of a setting such as "chat-gemma,owner/name"."""
    return [name.strip() for name in text.split(",")]


def _loras_of(text: str) -> list[tuple[str, float]]:
    """Sources and weights of a setting such as "style.safetensors:0.8,owner/name"."""
    loras = []
    for part in filter(None, text.split(",")):
        source, colon, weight = part.strip().rpartition(":")
        try:
            loras.append((source, float(weight)) if colon else (weight, 0.0))
        except ValueError:
            raise ValueError(f"{weight!r} behind the colon of {source!r} is no weight, such as 0.8") from None
        if not loras[-1][0] or not -MOST_LORA_WEIGHT <= loras[-1][1] <= MOST_LORA_WEIGHT:
            raise ValueError(
                f"{part.strip()!r}: must be a LoRA and a weight from -{MOST_LORA_WEIGHT} to {MOST_LORA_WEIGHT}"
            )
    return loras


def load_settings(**flags: Any) -> Settings:
    """Settings from the environment and from flags; a flag that is None is not set.

    Raises:
        RequestRejected: names the option, its value and its limit; also for an unknown HFJAX_* variable. One that the
            app decides today is logged and changes nothing.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in sorted(name for name in os.environ if name.startswith(PREFIX) and name.upper() not in known):
        advice = GONE.get(name.removeprefix(PREFIX).lower())
        if advice is None:
            raise RequestRejected(f"unknown setting {name}; known: {', '.join(sorted(known))}")
        if advice != _DECIDED:
            raise RequestRejected(f"{name} is gone: {advice}")
        _log.warning("%s is gone and changes nothing: %s", name, advice)  # of a deployment that worked before
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else "settings"
        value = "..." if field in SECRET else repr(first["input"])
        raise RequestRejected(f"{field} = {value}: {first['msg']}") from None
