"""Who may: API keys, and users with passwords. Secrets are kept as hashes and compared in constant time.

The login of a Hugging Face Space works only where the Space provides it. Elsewhere Gradio would mock it, and everybody
would be the user of this machine.
"""

import asyncio
import hashlib
import hmac
import json
import os
import time
from base64 import b64decode
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import bcrypt

from hfjax_app.client import Client
from hfjax_app.errors import RequestRejected
from hfjax_app.settings import MIN_KEY_CHARACTERS, Settings

OAUTH = "oauth"  # the value of HFJAX_AUTH for a Space's own login
_MAX_PASSWORD_BYTES = 72  # bcrypt's limit
_NOBODY = bcrypt.hashpw(b"nobody", bcrypt.gensalt(4))


@dataclass(frozen=True, kw_only=True)
class _Key:
    digest: bytes
    client: Client


class Credentials:
    """The keys and users of the settings.

    Args:
        settings: `api_keys` and `auth`.

    Raises:
        RequestRejected: a setting that can't be read; the message shows no secret.
    """

    def __init__(self, settings: Settings):
        self._keys = [_key(entry, number) for number, entry in enumerate(_entries(settings.api_keys), 1)]
        names = [key.client.id for key in self._keys]
        if len({*names}) < len(names):
            raise RequestRejected("api_keys: two keys have the same name")
        self.oauth = settings.auth == OAUTH
        self._users = {} if self.oauth else dict(_user(entry, settings) for entry in _entries(settings.auth))

    @property
    def is_open(self) -> bool:
        """Whether everybody may use the studio."""
        return not (self._keys or self._users or self.oauth)

    @property
    def asks(self) -> str:
        """What the login page says."""
        return "Log in." if self._users else "Any name, and an API key as the password."

    def of_key(self, key: str) -> Client | None:
        """The client with this key. The time does not depend on which key is nearly right."""
        digest, found = _digest(key), None
        for each in self._keys:
            if hmac.compare_digest(each.digest, digest):
                found = each.client
        return found

    async def of_login(self, user: str, password: str) -> Client | None:
        """The client with this name and password; without users, the client whose key is the password."""
        if not self._users:
            return self.of_key(password)
        given = password.encode(errors="replace")
        # also for an unknown user, so that the time tells nothing
        is_right = await asyncio.to_thread(_matches, given, self._users.get(user, _NOBODY))
        return Client(id=f"user:{user}", is_known=True) if is_right and user in self._users else None


def _matches(password: bytes, hashed: bytes) -> bool:
    return len(password) <= _MAX_PASSWORD_BYTES and bcrypt.checkpw(password, hashed)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()


def _is_file(value: str) -> bool:
    return value.startswith(("/", "./", "../", "~/"))


def _entries(value: str) -> list[str]:
    """The entries of a list with commas, or the lines of a file; lines that begin with # are comments."""
    if not value:
        return []
    if not _is_file(value):
        return [entry.strip() for entry in value.split(",") if entry.strip()]
    try:
        lines = Path(value).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestRejected(
            f"can't read the file {value}: {getattr(error, 'strerror', None) or 'not text'}"
        ) from None
    entries = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not entries:  # and not: everybody may
        raise RequestRejected(f"the file {value} has no entries")
    return entries


def _key(entry: str, number: int) -> _Key:
    """From KEY, NAME:KEY or NAME:KEY:TOKENS, the tokens a day that this key may use."""
    *name, key = entry.split(":") if ":" in entry else (f"key-{number}", entry)
    daily = None
    if len(name) == 2 and key.isdigit():
        daily = int(key)
        name, key = name[:1], name[1]
    if len(name) != 1 or not name[0]:
        raise RequestRejected(f"api_keys: entry {number} must be KEY, NAME:KEY or NAME:KEY:TOKENS_A_DAY")
    if len(key) < MIN_KEY_CHARACTERS:
        raise RequestRejected(f"api_keys: key {number} of {len(key)} characters: at least {MIN_KEY_CHARACTERS}")
    return _Key(digest=_digest(key), client=Client(id=f"key:{name[0]}", is_known=True, daily_tokens=daily))


def _user(entry: str, settings: Settings) -> tuple[str, bytes]:
    """From USER:PASSWORD in the setting, or USER:HASH in a file, as `htpasswd -B` writes it."""
    user, _, secret = entry.partition(":")
    if not user or not secret:
        raise RequestRejected(f"auth: must be {OAUTH}, USER:PASSWORD, or a file of lines USER:HASH")
    if not _is_file(settings.auth):
        if len(secret.encode()) > _MAX_PASSWORD_BYTES:
            raise RequestRejected(f"auth: the password of {user}: at most {_MAX_PASSWORD_BYTES} bytes")
        return user, bcrypt.hashpw(secret.encode(), bcrypt.gensalt(10))
    if not secret.startswith(("$2a$", "$2b$", "$2y$")) or len(secret) != 60:
        raise RequestRejected(f"auth: the hash of {user} must be of bcrypt, as `htpasswd -B` makes it")
    return user, secret.encode()


_NEEDED = ("SPACE_ID", "OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_SCOPES", "OPENID_PROVIDER_URL")
_KEPT_S = 14 * 86_400  # of Starlette's session cookie


def check_space() -> None:
    """Refuse to start without what a Space with `hf_oauth: true` sets.

    Raises:
        RequestRejected: names what is missing.
    """
    if missing := [name for name in _NEEDED if not os.environ.get(name)]:
        needs = f"it needs a Space with hf_oauth: true; not set: {', '.join(missing)}"
        raise RequestRejected(f"auth = 'oauth': {needs}")
    if missing := [name for name in ("authlib",) if find_spec(name) is None]:
        raise RequestRejected(f"auth = 'oauth': install gradio[oauth]; not there: {', '.join(missing)}")


def user_of(cookie: str) -> str | None:
    """The name of the user in the session cookie of Gradio's login; None: a stranger, or the login has expired."""
    from itsdangerous import BadSignature, TimestampSigner

    from hfjax_app.runtime.seams.gradio import space_cookie_secret

    try:
        signed = TimestampSigner(space_cookie_secret()).unsign(cookie, max_age=_KEPT_S)
        found = json.loads(b64decode(signed))["oauth_info"]
        name = found["userinfo"]["preferred_username"]
        return str(name) if found["expires_at"] > time.time() else None
    except (BadSignature, ValueError, KeyError, TypeError):
        return None
