"""Who may load models, and which: the key, and the folders that may be named."""

from pathlib import Path

import pytest

from hfjax_app.backends.model_loads import Operator
from hfjax_app.errors import NotAllowed, Overloaded, RequestRejected
from hfjax_app.limits import LOGIN_FAILURES
from hfjax_app.settings import Settings

KEY = "a key of the operator"


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    """Of a server that others reach; models are in one folder."""
    (tmp_path / "models" / "one").mkdir(parents=True)
    return Operator(Settings(host="0.0.0.0", operator_key=KEY, operator_folders=str(tmp_path / "models")))


def test_the_key_is_always_asked(operator: Operator) -> None:
    operator.check(KEY, "address:1")
    for wrong in ("", KEY[:-1], KEY + "x", None, 5, [KEY]):
        with pytest.raises(NotAllowed, match="not the operator's key"):
            operator.check(wrong, "address:1")


def test_wrong_keys_are_limited_for_each_client(operator: Operator) -> None:
    for _ in range(LOGIN_FAILURES):
        with pytest.raises(NotAllowed):
            operator.check("wrong", "address:1")
    with pytest.raises(Overloaded, match="wait a minute"):
        operator.check(KEY, "address:1")
    for _ in range(2 * LOGIN_FAILURES):
        operator.check(KEY, "address:2")


def test_a_loopback_address_has_a_key_of_each_start() -> None:
    """Strangers behind a proxy of this machine have its address too, so that address opens nothing."""
    local, again = Operator(Settings()), Operator(Settings())
    assert local.one_time_key is not None
    assert local.one_time_key != again.one_time_key
    local.check(local.one_time_key, "address:127.0.0.1")
    with pytest.raises(NotAllowed):
        local.check("", "address:127.0.0.1")
    assert Operator(Settings(operator_key=KEY)).one_time_key is None


def test_elsewhere_nobody_may_without_the_setting() -> None:
    outside = Operator(Settings(host="0.0.0.0"))
    assert not outside.has_key
    for key in ("", "None", None):
        with pytest.raises(NotAllowed, match="HFJAX_OPERATOR_KEY is not set"):
            outside.check(key, "address:1")
    with pytest.raises(NotAllowed, match="only folders in HFJAX_OPERATOR_FOLDERS may be named"):
        Operator(Settings(host="0.0.0.0", operator_key=KEY)).checked_model("/etc")


def test_what_may_be_named(operator: Operator, tmp_path: Path) -> None:
    inside = str(tmp_path / "models" / "one")
    assert operator.checked_model(inside) == inside
    assert operator.checked_model(f" {tmp_path}/models/../models/one ") == inside
    for name in ("chat-llama", "owner/name", "owner/name@refs/pr/1"):
        assert operator.checked_model(name) == name
    (tmp_path / "models" / "link").symlink_to(tmp_path)
    outside = ["/etc", "/no/such/folder", "~", "..", "./hfjax_app", "hfjax_app/embedded", f"{tmp_path}/models2"]
    for name in [*outside, f"{inside}/../..", f"{tmp_path}/models/link"]:
        with pytest.raises(NotAllowed, match="only folders in HFJAX_OPERATOR_FOLDERS"):
            operator.checked_model(name)
    (tmp_path / "models" / "file").touch()
    for name, says in (
        (f"{tmp_path}/models/two", "there is no such folder"),
        (f"{tmp_path}/models/file", "there is no such folder"),
        ("a,b", "has no comma"),
        ("name", "a hub id as owner/name"),
        ("--help", "a hub id as owner/name"),
        ("https://huggingface.co/owner/name", "a hub id as owner/name"),
        ("owner/na me", "a hub id as owner/name"),
        ("\0", "NUL"),
        ("x" * 1_000, "at most 400"),
        ("~no-such-user/models", "no such folder"),
        ("", "is empty"),
        (5, "must be text"),
    ):
        with pytest.raises(RequestRejected, match=says):
            operator.checked_model(name)
