"""The login of a Hugging Face Space: what it needs, and the user in the session cookie of Gradio's OAuth routes.

Only where the Space provides it. Elsewhere Gradio would mock it, and everybody would be the user of this machine.
"""

import json
import os
import time
from base64 import b64decode
from importlib.util import find_spec

from hfjax_app.errors import RequestRejected

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
