"""Who may load and unload models while the app runs, and which: by a key that is always asked for.

Also on a loopback address: strangers behind a proxy of this machine come from there too.
"""

import hashlib
import hmac
import re
import secrets
from pathlib import Path

from hfjax_app.attempts import Attempts
from hfjax_app.embedded import MODELS
from hfjax_app.errors import NotAllowed, RequestRejected
from hfjax_app.limits import OPERATOR_MAX_CHARACTERS
from hfjax_app.settings import Settings
from hfjax_app.validation import checked_text, quoted

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", re.ASCII)


class Operator:
    """The operator's key and folders.

    Args:
        settings: `operator_key`, `operator_folders`, and the address.

    Attributes:
        one_time_key: what the server prints at its start; None where the setting has a key, or no key opens it.
    """

    def __init__(self, settings: Settings):
        makes_one = not settings.operator_key and settings.is_local
        self.one_time_key = secrets.token_urlsafe(18) if makes_one else None
        key = self.one_time_key or settings.operator_key
        self._digest = _digest(key) if key else None
        self._attempts = Attempts("operator's keys")
        named = [Path(name.strip()) for name in settings.operator_folders.split(",") if name.strip()]
        usual = [Path("/")] if settings.is_local else []
        self._folders = [folder.expanduser().resolve() for folder in named or usual]

    @property
    def has_key(self) -> bool:
        """Whether models can be loaded at all."""
        return self._digest is not None

    def check(self, key: object, client: str) -> None:
        """Let the operator in. The time does not depend on how nearly right a key is.

        Args:
            key: what a client sent, of any type.
            client: its id.

        Raises:
            NotAllowed: a wrong key, or there is none.
            Overloaded: too many keys of this client were wrong.
        """
        if self._digest is None:
            raise NotAllowed("no models are loaded here while the server runs: HFJAX_OPERATOR_KEY is not set")
        forgive = self._attempts.begin(client)
        if not isinstance(key, str) or not hmac.compare_digest(_digest(key), self._digest):
            raise NotAllowed(
                "this is not the operator's key: the server printed it at its start, or HFJAX_OPERATOR_KEY is it"
            )
        forgive()

    def checked_model(self, model: object) -> str:
        """The model that the operator names: an embedded one's name, a whole path, or a hub id.

        Args:
            model: what a client sent, of any type.

        Raises:
            RequestRejected: it can't be a model.
            NotAllowed: a folder outside of `operator_folders`, whether it exists or not.
        """
        name = checked_text(model, "model", OPERATOR_MAX_CHARACTERS).strip()
        if "," in name:
            raise RequestRejected(f"model {quoted(name)}: one model at a time, whose name has no comma")
        if name in MODELS:
            return name
        path = Path(name)
        if path.is_absolute() or name.startswith((".", "~")) or "\\" in name or path.exists():
            return self._checked_folder(name)
        if not _HUB_ID.fullmatch(name):
            raise RequestRejected(f"model {quoted(name)}: name a folder by its whole path, or a hub id as owner/name")
        return name

    def _checked_folder(self, name: str) -> str:
        try:
            path = Path(name).expanduser().resolve()
        except (OSError, RuntimeError):  # a ring of links, or ~ of an unknown user
            raise RequestRejected(f"model {quoted(name)}: there is no such folder") from None
        if not any(path.is_relative_to(folder) for folder in self._folders):
            raise NotAllowed(f"model {quoted(name)}: only folders in HFJAX_OPERATOR_FOLDERS may be named, and hub ids")
        if not path.is_dir():
            raise RequestRejected(f"model {quoted(name)}: there is no such folder")
        return str(path)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()
