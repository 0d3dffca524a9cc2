"""The login of a Hugging Face Space: Gradio's OAuth routes, and the user in their session cookie.

Only where the Space provides it. Elsewhere Gradio would mock it, and everybody would be the user of this machine.
"""

import hashlib
import json
import os
import time
from base64 import b64decode
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hfjax_app.errors import RequestRejected

if TYPE_CHECKING:
    from gradio.routes import App

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


def add_login(page: "App") -> None:
    """Add Gradio's OAuth routes to its app, with their own /logout in the place of the other one."""
    from gradio.oauth import attach_oauth

    page.router.routes[:] = [route for route in page.router.routes if getattr(route, "path", "") != "/logout"]
    attach_oauth(page)


def user_of(cookie: str) -> str | None:
    """The name of the user in the session cookie of Gradio's login; None: a stranger, or the login has expired."""
    from itsdangerous import BadSignature, TimestampSigner

    secret = hashlib.sha256(f"{os.environ['OAUTH_CLIENT_SECRET']}-v4".encode()).hexdigest()  # as gradio/oauth.py
    try:
        found = json.loads(b64decode(TimestampSigner(secret).unsign(cookie, max_age=_KEPT_S)))["oauth_info"]
        name = found["userinfo"]["preferred_username"]
        return str(name) if found["expires_at"] > time.time() else None
    except (BadSignature, ValueError, KeyError, TypeError):
        return None
