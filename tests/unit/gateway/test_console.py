"""The console's records: what is kept of decisions and lookups, and who may look."""

import hashlib
from pathlib import Path

import pytest

from cache.verdict import Verdict
from core.clock import SystemClock
from core.config.records import Key
from core.errors import Forbidden
from gateway.account import Account
from gateway.auth import Keyring
from gateway.console import site
from gateway.console.hub import read, view, written
from gateway.console.lookups import REASONS, SEMANTIC, TIERS, Lookups, columns
from gateway.console.static import assets
from gateway.console.totals import added, together
from gateway.console.viewers import COOKIE, LIFE, Sessions, at_home, secret_of, session_of, viewer
from gateway.console.watch import LEAST, Watch
from gateway.metering import Usage
from gateway.siblings import Alone, Family
from tests.clock import HandClock

ROOT = Path(site.__file__).parent


def account(number: int = 0, **known: object) -> Account:
    made = Account(f"r{number}", "POST", "/v1/chat/completions", 0.0, status=200)
    for name, value in known.items():
        setattr(made, name, value)
    return made


def key(text: str, *, admin: bool) -> Key:
    return Key(name=text, tenant="t", sha256=hashlib.sha256(text.encode()).hexdigest(), admin=admin)


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def test_a_reader_gets_each_decision_once_and_hears_how_many_it_missed() -> None:
    watch = Watch(5, HandClock())
    for number in range(3):
        watch.settled(account(number), 1.0, 0.5, 0.1)
    boot, place, rows, lost = view(watch, None, 5)
    assert ([row["request_id"] for row in rows], place, lost) == (["r0", "r1", "r2"], 3, 0)
    assert view(watch, {boot: place}, 5)[2:] == ([], 0)
    for number in range(3, 10):
        watch.settled(account(number), 1.0, 0.5, 0.1)
    _, place, rows, lost = view(watch, {boot: place}, 5)
    assert ([row["request_id"] for row in rows], place, lost) == ([f"r{n}" for n in range(5, 10)], 10, 2)
    # Of another life nothing has been seen.
    assert len(view(watch, {"other": 7}, 100)[2]) == 10


def test_decisions_are_forgotten_and_requests_to_admin_are_none() -> None:
    watch = Watch(1, HandClock())
    for number in range(LEAST + 10):
        watch.settled(account(number), 1.0, 0.5, 0.1)
    watch.settled(account(route="/admin"), 1.0, 0.5, 0.1)
    rows = watch.rows(0, 10 * LEAST)
    assert (len(rows), rows[0]["number"], rows[-1]["number"]) == (LEAST, 10, LEAST + 9)


def test_a_decision_has_what_its_line_of_the_log_has() -> None:
    clock = HandClock()
    watch = Watch(5, clock)
    known = {
        "tenant": "t", "stream": True, "cache": "miss", "similarity": 0.87654321,
        "verdict": Verdict(served=False, said="numbers"),
        "complexity": 0.25, "tier": "small", "route_reason": "complexity", "queue_s": 0.002, "arrived": 997.0,
        "first_at": 998.0, "last_at": 999.0, "usage": Usage(10, 21, 0),
    }  # fmt: skip
    watch.settled(account(**known), 999.0, 2.0, 0.001)
    (row,) = watch.rows(0, 5)
    wanted = {
        "time": 1_000_999.0, "similarity": 0.8765, "complexity": 0.25, "queue_ms": 2.0, "ttft_ms": 1000.0,
        "tpot_ms": 50.0, "duration_ms": 2000.0, "overhead_ms": 1.0, "input_tokens": 10, "output_tokens": 21,
    }  # fmt: skip
    assert {name: row[name] for name in wanted} == wanted
    assert not {"prompt", "answer"} & row.keys()


def test_lookups_keep_the_last_rows_in_the_order_they_came() -> None:
    lookups = Lookups(kept=4)
    for number in range(6):
        lookups.add(account(semantic="guarded", similarity=number / 10, complexity=None, tier="frontier"), number)
    lookups.add(account(complexity=0.12345, route_reason="brand-new", usage=Usage(7, 9, 0)), 9.0)
    found = columns(*lookups.copy(), 100.0)
    assert found["time"] == [103, 104, 105, 109]
    assert found["similarity"] == [0.3, 0.4, 0.5, None]
    assert found["complexity"] == [None, None, None, float(f"{0.12345:.4f}")]
    assert [SEMANTIC[int(n or 0)] for n in found["semantic"]] == ["guarded"] * 3 + ["none"]
    assert [TIERS[int(n or 0)] for n in found["tier"]] == ["frontier"] * 3 + ["none"]
    assert [REASONS[int(n or 0)] for n in found["reason"]] == ["none"] * 3 + ["other"]
    assert (found["input"], found["output"]) == ([None, None, None, 7], [None, None, None, 9])


def test_lookups_take_the_same_memory_however_many_there_are() -> None:
    lookups = Lookups(kept=10)
    size = len(lookups.copy()[0])
    for number in range(100):
        lookups.add(account(complexity=0.5), number)
    assert len(lookups.copy()[0]) == size == 360


@pytest.mark.parametrize("text", ["", "x", "a.b", "a.-1", ".1", "a.1~", "a.1~b", "a." + "9" * 30, "ä.٣"])
def test_an_id_that_is_not_ours_is_no_place(text: str) -> None:
    assert read(text) is None


def test_an_id_says_where_a_reader_is() -> None:
    assert read(written({"aa": 3, "bb": 40}).decode()) == {"aa": 3, "bb": 40}


def test_of_several_workers_sums_are_shown_and_the_worst() -> None:
    assert added([{"cache": {"miss": 1.0}}, {"cache": {"miss": 2.0, "bypass": 1.0}}]) == {
        "cache": {"miss": 3.0, "bypass": 1.0}
    }

    def state(health: str, breaker: str, waiting: int) -> dict[str, object]:
        server = {"url": "u", "health": health, "fault": None, "breaker": breaker, "outstanding": 1}
        tier = {"inflight": 2, "waiting": waiting, "max_inflight": 8, "max_waiting": 9, "servers": [server]}
        tiers = {"small": tier}
        return {
            "tiers": tiers,
            "breakers": {"embedder": breaker},
            "degraded": [health],
            "running": 3,
            "cache": {"exact": 4},
        }

    both: dict = together(state("up", "closed", 1), [state("down", "open", 2)], shared_cache=False)  # type: ignore[type-arg, arg-type, list-item]
    assert both["tiers"]["small"]["waiting"] == 3
    assert both["tiers"]["small"]["servers"] == [
        {"url": "u", "health": "down", "fault": None, "breaker": "open", "outstanding": 2}
    ]
    assert (both["breakers"], both["degraded"], both["running"]) == ({"embedder": "open"}, ["up", "down"], 6)
    assert both["cache"] == {"exact": 8}


def cookie(value: str) -> dict[bytes, bytes]:
    return {b"cookie": f"other=1; {COOKIE}={value}".encode()}


def test_a_session_stands_for_its_key_until_it_ends_or_the_key_is_gone() -> None:
    clock = HandClock()
    sessions, keyring = Sessions(b"s" * 32, clock), Keyring([key("ops", admin=True), key("client", admin=False)])
    value = sessions.issue(digest("ops"))
    assert viewer(keyring, sessions, "GET", cookie(value), "10.0.0.9").name == "ops"
    broken = value[:-2] + ("AA" if value[-2:] != "AA" else "BB")
    for wrong in (broken, "", "x", value[5:], Sessions(b"t" * 32, clock).issue(digest("ops"))):
        with pytest.raises(Forbidden):
            viewer(keyring, sessions, "GET", cookie(wrong), "127.0.0.1")
    # A client's key opens nothing, even in a session that was made for it.
    with pytest.raises(Forbidden):
        viewer(keyring, sessions, "GET", cookie(sessions.issue(digest("client"))), "127.0.0.1")
    with pytest.raises(Forbidden):
        viewer(Keyring([key("else", admin=True)]), sessions, "GET", cookie(value), "127.0.0.1")
    clock.now += LIFE + 1
    with pytest.raises(Forbidden):
        viewer(keyring, sessions, "GET", cookie(value), "127.0.0.1")


def test_a_session_says_nothing_about_the_key() -> None:
    value = Sessions(b"s" * 32, HandClock()).issue(digest("ops"))
    assert digest("ops").hex()[:8] not in value
    assert "ops" not in value


def test_what_may_change_something_needs_more_than_the_cookie() -> None:
    given = cookie("v")
    assert session_of("GET", given) == "v"
    assert session_of("POST", given) is None
    assert session_of("POST", {**given, b"x-forebay-console": b"1"}) == "v"
    assert session_of("GET", {b"cookie": b"other=1"}) is None


@pytest.mark.parametrize(
    ("headers", "peer", "home"),
    [
        ({b"host": b"localhost:8080"}, "127.0.0.1", True),
        ({b"host": b"127.0.0.1:8080"}, "127.0.0.9", True),
        ({b"host": b"[::1]:8080"}, "::1", True),
        ({b"host": b"localhost"}, "::ffff:127.0.0.1", True),
        ({b"host": b"localhost:8080"}, "10.0.0.1", False),
        ({b"host": b"localhost:8080"}, None, False),
        ({b"host": b"rebound.example:8080"}, "127.0.0.1", False),
        ({}, "127.0.0.1", False),
        ({b"host": b"localhost", b"x-forwarded-for": b"10.0.0.1"}, "127.0.0.1", False),
        ({b"host": b"localhost", b"forwarded": b"for=10.0.0.1"}, "127.0.0.1", False),
    ],
)
def test_without_keys_only_this_machine_may_look(headers: dict[bytes, bytes], peer: str | None, home: bool) -> None:
    assert at_home(headers, peer) is home
    sessions = Sessions(b"s" * 32, SystemClock())
    if home:
        assert viewer(Keyring([]), sessions, "GET", headers, peer).admin is False
    else:
        with pytest.raises(Forbidden):
            viewer(Keyring([]), sessions, "GET", headers, peer)


def test_the_workers_of_a_gateway_share_a_secret_that_others_cannot_read(tmp_path: Path) -> None:
    first, second = (secret_of(Family(tmp_path, number, 2)) for number in range(2))
    assert first == second
    assert len(first) == 32
    assert [path.stat().st_mode & 0o77 for path in tmp_path.iterdir()] == [0]
    assert secret_of(Alone()) != secret_of(Alone())


def test_files_of_others_are_what_their_licences_and_sums_say() -> None:
    text = (ROOT / "vendor" / "README.md").read_text(encoding="utf-8")
    for name in ("uplot.js", "uplot.css"):
        assert f"{hashlib.sha256((ROOT / 'vendor' / name).read_bytes()).hexdigest()}  {name}" in text
    assert "MIT License" in (ROOT / "vendor" / "uplot.LICENSE").read_text(encoding="utf-8")


def test_every_file_of_the_page_is_served_and_nothing_in_them_is_inline() -> None:
    served = assets()
    names = {path.name for path in (ROOT / "page").iterdir()}
    assert names <= served.keys()
    assert "README.md" not in served
    for name in names:
        text = (ROOT / "page" / name).read_text(encoding="utf-8")
        if name.endswith(".html"):
            assert " style=" not in text
            assert "<style" not in text
            assert " onclick=" not in text
            assert text.count("<script") == text.count("<script src=")
        assert "https://" not in text
        assert "innerHTML" not in text
