"""Keys: by digest, variable or file; one identity each; administrators."""

import hashlib
from pathlib import Path

import pytest

from core.config.records import Key
from core.errors import ConfigError, Forbidden, Unauthorized
from gateway.auth import ANYONE, Keyring


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_without_keys_everyone_is_the_default_tenant_and_nobody_an_administrator() -> None:
    ring = Keyring([])
    assert ring.open
    assert ring.identify(None) is ANYONE
    assert ring.identify(b"Bearer anything") is ANYONE
    with pytest.raises(Forbidden):
        ring.admin(b"Bearer anything")


def test_a_key_is_known_by_digest_by_variable_and_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("from-file\n")
    monkeypatch.setenv("A_KEY", "from-env")
    ring = Keyring(
        [
            Key(name="d", tenant="one", sha256=digest("plain")),
            Key(name="e", tenant="two", env="A_KEY", cache=False),
            Key(name="f", tenant="three", file=str(tmp_path / "key"), admin=True),
        ]
    )
    assert ring.identify(b"Bearer plain").tenant == "one"
    assert (ring.identify(b"bearer from-env").tenant, ring.identify(b"Bearer from-env").cache) == ("two", False)
    assert ring.admin(b"Bearer from-file").name == "f"
    with pytest.raises(Forbidden):
        ring.admin(b"Bearer plain")


@pytest.mark.parametrize("given", [None, b"", b"Bearer", b"Bearer ", b"Bearer wrong", b"Basic plain", b"plain"])
def test_anything_else_is_unauthorized(given: bytes | None) -> None:
    ring = Keyring([Key(name="d", tenant="one", sha256=digest("plain"))])
    with pytest.raises(Unauthorized):
        ring.identify(given)
    with pytest.raises(Unauthorized):
        ring.admin(given)


def test_keys_that_cannot_be_read_or_are_given_twice_are_all_named() -> None:
    keys = [
        Key(name="a", tenant="t", env="NOT_SET_ANYWHERE"),
        Key(name="b", tenant="t", file="/nothing/here"),
        Key(name="c", tenant="t", sha256=digest("x")),
        Key(name="d", tenant="u", sha256=digest("x")),
    ]
    with pytest.raises(ConfigError) as caught:
        Keyring(keys)
    paths = [problem.path for problem in caught.value.problems]
    assert paths == ["auth.keys[0].env", "auth.keys[1].file", "auth.keys[3]"]
