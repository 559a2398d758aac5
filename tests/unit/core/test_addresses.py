"""Addresses of stores: what is legal, where secrets come from, and that they show nowhere."""

from typing import Any

import pytest

from core.config import store_address, validate
from core.errors import ConfigError

TIERS = {"tiers": {"small": {"model": "m"}}}
ENVIRON = {"SECRET": "p:/@%41#?", "URL": "rediss://user:literal%2Fone@far.example:7000/3?ssl_cert_reqs=none"}


def stored(value: Any) -> str:
    return validate({**TIERS, "cache": {"store": value}}).cache.store


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("redis://localhost", ("localhost", 6379, 0, None, None, False, False)),
        ("redis://h:1/2", ("h", 1, 2, None, None, False, False)),
        ("rediss://me@h", ("h", 6379, 0, "me", None, True, False)),
        ("redis://:${SECRET}@h", ("h", 6379, 0, None, "p:/@%41#?", False, False)),
        ("redis+cluster://me:${SECRET}@h:7001", ("h", 7001, 0, "me", "p:/@%41#?", False, True)),
        ("rediss+cluster://[::1]:7001/0", ("::1", 7001, 0, None, None, True, True)),
        ("${URL}", ("far.example", 7000, 3, "user", "literal/one", True, False)),
    ],
)
def test_an_address_is_taken_apart(url: str, parts: tuple[Any, ...]) -> None:
    assert stored(url) == url
    found = store_address(url, ENVIRON)
    seen = (found.host, found.port, found.database, found.username, found.password, found.tls, found.cluster)
    assert seen == parts
    assert "literal" not in repr(found)
    assert "p:/" not in repr(found)


def test_tls_options_are_options_of_the_address() -> None:
    url = "rediss://h?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=false"
    assert store_address(stored(url)).options == {"ssl_ca_certs": "/etc/ca.pem", "ssl_check_hostname": False}
    assert store_address("rediss://h?ssl_cert_reqs=none").options["ssl_check_hostname"] is False


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://h", "not the address of a store"),
        ("redis://", "not the address of a store"),
        ("redis+sentinel://h", "not the address of a store"),
        ("nowhere", "not the address of a store"),
        ("redis://h:port", "the port is not a number"),
        ("redis://h/name", "the number of a database"),
        ("redis+cluster://h/1", "no database but 0"),
        ("redis://h?timeout=3", "unknown option 'timeout'"),
        ("redis://h?ssl_ca_certs=/x", "ssl_ options need TLS"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs must be"),
        ("redis://:literal@h", "a password is given by reference only: redis://:${NAME_OF_VARIABLE}@host"),
    ],
)
def test_anything_else_is_refused_with_what_is_legal(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stored(url)
    (problem,) = caught.value.problems
    assert problem.path == "cache.store"
    assert said in problem.message
    assert "literal" not in problem.message


def test_a_secret_that_is_not_set_is_named() -> None:
    with pytest.raises(ConfigError, match=r"\$\{MISSING\} is not set"):
        store_address("redis://:${MISSING}@h", {})
    with pytest.raises(ConfigError, match="not the address of a store") as caught:
        store_address("${URL}", {"URL": "secret stuff"})
    assert "secret stuff" not in str(caught.value)
