"""Who may: keys, logins, a Space's login, quotas; and what a closed door leaves open."""

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bcrypt
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from itsdangerous import TimestampSigner

from hfjax_app.backends import Backends
from hfjax_app.client import Client
from hfjax_app.errors import Overloaded, RequestRejected
from hfjax_app.server.app import build_app
from hfjax_app.server.credentials import Credentials
from hfjax_app.service.usage import Usage
from hfjax_app.settings import Settings, load_settings

KEY, OTHER = "a-key-of-the-tests-1", "a-key-of-the-tests-2"
CLOSED = ("/config", "/health", "/gradio_api/info", "/gradio_api/queue/data?session_hash=a", "/gradio_api/file=/a")


def door(**settings: object) -> TestClient:
    """A studio whose models were never started."""

    async def build() -> FastAPI:  # without a running loop, Gradio makes its own and never closes it
        return build_app(Backends(Settings(**settings))).app

    return TestClient(asyncio.run(build()))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def keys() -> Iterator[TestClient]:
    with door(api_keys=f"ada:{KEY},{OTHER}") as client:
        yield client


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    file = tmp_path_factory.mktemp("auth") / "users"
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    file.write_text(f"# users\n\nada:{hashed}\n")
    with door(auth=str(file)) as client:
        yield client


@pytest.mark.parametrize("kind", ["keys", "logins"])
def test_a_closed_door_is_closed(kind: str, request: pytest.FixtureRequest) -> None:
    client: TestClient = request.getfixturevalue(kind)
    client.cookies.clear()
    for path in CLOSED:
        answer = client.get(path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
        assert client.get(path, headers=bearer("a-key-of-nobody-at-all")).status_code == 401, path
    for path in ("/gradio_api/call/classify", "/gradio_api/queue/join", "/gradio_api/upload", "/gradio_api/run/x"):
        assert client.post(path, json={}).status_code == 401, path
    page = client.get("/")
    assert page.status_code == 200
    assert '"auth_required":true' in page.text.replace(" ", "")
    assert "chat-gemma" not in page.text


def test_a_key_opens_the_api(keys: TestClient) -> None:
    for headers in (bearer(KEY), {"X-Api-Key": OTHER}):
        assert keys.get("/config", headers=headers).json()["title"] == "hfjax studio"
        answer = keys.post("/gradio_api/call/classify", json={"data": ["x"]}, headers=headers)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "sentiment is warming up" in answer.json()["detail"]


def test_the_studio_asks_for_a_key(keys: TestClient) -> None:
    """A login with a key is that key's client, whatever name is typed."""
    assert keys.post("/login", data={"username": "x", "password": "a-key-of-nobody"}).status_code == 400
    answer = keys.post("/login", data={"username": "someone else", "password": KEY})
    assert answer.json() == {"success": True}
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=lax"} <= {part.strip() for part in cookie.split(";")}
    assert keys.get("/config").status_code == 200
    assert "chat-gemma" in keys.get("/").text
    keys.get("/logout")
    keys.cookies.clear()
    assert keys.get("/config", headers={"cookie": cookie}).status_code == 401, "ended on the server too"


def test_a_login_opens_the_api(logins: TestClient) -> None:
    logins.cookies.clear()
    for user, password in (("ada", "wrong"), ("eve", "right"), ("", ""), ("ada", "x" * 100)):
        assert logins.post("/login", data={"username": user, "password": password}).status_code == 400
    assert logins.post("/login", data={"username": "ada"}).status_code == 422
    assert logins.post("/login", data={"username": "ada", "password": "right"}).status_code == 200
    assert logins.get("/config").status_code == 200


def test_passwords_can_not_be_tried_without_end() -> None:
    with door(auth="ada:right") as client:
        statuses = [client.post("/login", data={"username": "ada", "password": "no"}).status_code for _ in range(12)]
        assert statuses == [400] * 10 + [429] * 2
        refused = client.post("/login", data={"username": "ada", "password": "right"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")


def test_passwords_can_not_be_tried_side_by_side() -> None:
    """Failures were counted after the comparison: as many as came at the same time were compared."""
    with door(auth="ada:right") as client, ThreadPoolExecutor(15) as pool:
        tried = pool.map(lambda _: client.post("/login", data={"username": "ada", "password": "no"}), range(15))
        assert sorted(answer.status_code for answer in tried) == [400] * 10 + [429] * 5


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"api_keys": "short"}, "at least 16"),
        ({"api_keys": f"a:{KEY},a:{OTHER}"}, "same name"),
        ({"api_keys": f"a:b:c:{KEY}"}, "NAME:KEY"),
        ({"api_keys": "/no/such/file"}, "No such file"),
        ({"auth": "ada"}, "USER:PASSWORD"),
        ({"auth": "ada:" + "x" * 73}, "at most 72 bytes"),
    ],
)
def test_wrong_settings_are_refused_without_their_secrets(settings: dict[str, str], says: str) -> None:
    with pytest.raises(RequestRejected, match=says) as error:
        Credentials(load_settings(**settings))
    assert KEY not in str(error.value)


def test_files_hold_keys_and_hashes(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"# ours\nada:{KEY}:500\n{OTHER}\n")
    credentials = Credentials(load_settings(api_keys=str(tmp_path / "keys")))
    assert credentials.of_key(KEY) == Client(id="key:ada", is_known=True, daily_tokens=500)
    assert credentials.of_key(OTHER) == Client(id="key:key-2", is_known=True, daily_tokens=None)
    (tmp_path / "users").write_text("ada:right\n")
    with pytest.raises(RequestRejected, match="must be of bcrypt"):
        Credentials(load_settings(auth=str(tmp_path / "users")))
    (tmp_path / "empty").write_text("# none\n")
    with pytest.raises(RequestRejected, match="no entries"):
        Credentials(load_settings(auth=str(tmp_path / "empty")))


def test_settings_show_no_secrets() -> None:
    assert KEY not in repr(load_settings(api_keys=KEY))


def test_a_quota_ends_with_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    usage, client = Usage(), Client(id="key:a", daily_tokens=100)
    monkeypatch.setattr(time, "time", lambda: 86_400 * 10 + 80_000)
    usage.began(client, 90, 0.1)
    usage.add_tokens(client, 9)
    usage.check(client)
    usage.add_tokens(client, 1)
    with pytest.raises(Overloaded, match="this key's quota is 100 a day") as error:
        usage.check(client)
    assert error.value.retry_after_s == 6_400
    usage.check(Client(id="key:b", daily_tokens=100))
    monkeypatch.setattr(time, "time", lambda: 86_400 * 11)
    usage.check(client)


def test_a_space_s_users(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradio import oauth

    values = {"CLIENT_ID": "id", "CLIENT_SECRET": "secret", "SCOPES": "openid profile"}
    for name, value in values.items():
        monkeypatch.setenv(f"OAUTH_{name}", value)
        monkeypatch.setattr(oauth, f"OAUTH_{name}", value)
    monkeypatch.setenv("OPENID_PROVIDER_URL", "https://huggingface.invalid")
    monkeypatch.setattr(oauth, "OPENID_PROVIDER_URL", "https://huggingface.invalid")
    monkeypatch.setenv("SPACE_ID", "ada/studio")
    monkeypatch.setattr(oauth, "get_space", lambda: "ada/studio")
    with door(auth="oauth") as client:
        assert client.get("/config").status_code == 401
        answer = client.get("/", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (307, "/login/huggingface")

        def cookie(expires_at: float, secret: str = oauth.hashlib.sha256(b"secret-v4").hexdigest()) -> dict[str, str]:
            info = {"userinfo": {"preferred_username": "ada"}, "expires_at": expires_at}
            signed = TimestampSigner(secret).sign(b64encode(json.dumps({"oauth_info": info}).encode())).decode()
            return {"cookie": f"session={signed}"}

        assert client.get("/config", headers=cookie(time.time() + 60)).status_code == 200
        assert client.get("/config", headers=cookie(time.time() - 60)).status_code == 401
        assert client.get("/config", headers=cookie(time.time() + 60, "guessed")).status_code == 401
