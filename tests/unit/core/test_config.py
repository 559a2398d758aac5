from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from core.config import Config, load, resolve_secret, validate
from core.errors import ConfigError, Problem

SECRET = "sk-live-0123456789abcdef"
MINIMAL = "tiers: {small: {model: m}}"


def problems(document: Mapping[str, Any]) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        validate(document)
    return {problem.path: problem.message for problem in caught.value.problems}


def with_tier(**fields: Any) -> dict[str, Any]:
    return {"tiers": {"small": {"model": "m", **fields}}}


def with_key(**fields: Any) -> dict[str, Any]:
    return {**with_tier(), "auth": {"keys": [{"name": "n", "tenant": "t", **fields}]}}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(text: str) -> Path:
        path = tmp_path / "forebay.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_one_tier_with_a_model_is_a_whole_configuration(write: Any) -> None:
    config = load(write(MINIMAL), {})
    assert [(name, tier.model) for name, tier in config.tiers.items()] == [("small", "m")]
    assert (config.gateway.port, config.cache.exact.ttl, config.gateway.max_body_size) == (8080, 3600.0, 4 * 2**20)


def test_records_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        validate(with_tier()).gateway.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("document", "path", "message"),
    [
        ({**with_tier(), "gatway": {}}, "gatway", "did you mean 'gateway'"),
        ({**with_tier(), "gateway": {"prot": 1}}, "gateway.prot", "did you mean 'port'"),
        (with_tier(queue={"max_inflght": 1}), "tiers.small.queue.max_inflght", "did you mean 'max_inflight'"),
        ({**with_tier(), "cache": {"semantic": {"x": 1}}}, "cache.semantic.x", "legal keys: deadline, enabled, guard"),
        ({**with_tier(), "gateway": {"max_body_size": 4}}, "gateway.max_body_size", "such as 4MiB"),
        ({**with_tier(), "gateway": {"max_body_size": "4M"}}, "gateway.max_body_size", "'4M'"),
        (with_tier(timeout={"idle": 30}), "tiers.small.timeout.idle", "ms, s, m, h or d"),
        (with_tier(timeout={"idle": "30"}), "tiers.small.timeout.idle", "'30'"),
        ({"tiers": {"small": {}}}, "tiers.small.model", "missing"),
        ({"tiers": {"small": {"model": ""}}}, "tiers.small.model", "at least 1"),
        ({"tiers": {}}, "tiers", "small, frontier or both"),
        ({"tiers": {"medium": {"model": "m"}}}, "tiers.medium", "legal keys: frontier, small"),
        ({}, "tiers", "missing"),
        ({**with_tier(), "gateway": {"port": "8080"}}, "gateway.port", "'8080'"),
        ({**with_tier(), "gateway": {"port": True}}, "gateway.port", "True"),
        ({**with_tier(), "gateway": {"port": 65536}}, "gateway.port", "65535"),
        ({**with_tier(), "gateway": None}, "gateway", "None"),
        ({**with_tier(), "cache": {"scope": "team"}}, "cache.scope", "legal: 'tenant' or 'global'"),
        ({**with_tier(), "cache": {"semantic": {"threshold": 1.1}}}, "cache.semantic.threshold", "less than or equal"),
        (with_tier(replicas={"min": 3, "max": 2}), "tiers.small.replicas", "min (3) is above max (2)"),
        (with_tier(capabilities=["text", "smell"]), "tiers.small.capabilities[1]", "'smell'"),
        (with_tier(urls=["ftp://h"]), "tiers.small.urls[0]", "http(s)://host"),
        (with_tier(urls=["http://h?x=1"]), "tiers.small.urls[0]", "http(s)://host"),
        ({"tiers": {t: {"model": "m"} for t in ("small", "frontier")}}, "tiers", "'m' is not unique"),
        ({"tiers": {"small": {"model": "auto"}}}, "tiers", "'auto' is reserved"),
        (with_tier(adapters={"m": "/lora"}), "tiers", "'m' is not unique"),
        (with_tier(fallback="small"), "tiers", "must be the other tier"),
        (with_tier(fallback="frontier"), "tiers", "must be configured"),
        (with_key(), "auth.keys[0]", "exactly one of sha256, env and file"),
        (with_key(env="A", file="b"), "auth.keys[0]", "exactly one of sha256, env and file"),
        ({**with_tier(), 1: {}}, "[1]", "strings"),
    ],
)
def test_every_fault_is_named_with_its_key_path(document: Mapping[str, Any], path: str, message: str) -> None:
    found = problems(document)
    assert list(found) == [path]
    assert message in found[path]


def test_all_faults_are_reported_at_once() -> None:
    found = problems({"gateway": {"port": -1, "drain": 5}, "tiers": {"small": {"modle": "m"}}})
    assert set(found) == {"gateway.port", "gateway.drain", "tiers.small.model", "tiers.small.modle"}


@pytest.mark.parametrize(
    ("document", "path", "legal"),
    [
        (with_tier(disaggregation={}, replicas={"max": 2}), ".replicas", "{} (each group has its own)"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(document: Mapping[str, Any], path: str, legal: str) -> None:
    assert problems(document) == {
        f"tiers.small{path}": f"not supported by this version; the only legal value is {legal}"
    }


def test_prefill_and_decode_apart_are_accepted_with_any_policy() -> None:
    for apart in ({}, {"min_prompt_tokens": 0, "prefill_deadline": None, "on_prefill_failure": "error"}):
        assert validate(with_tier(disaggregation=apart)).tiers.items()[0][1].disaggregation is not None


@pytest.mark.parametrize(
    ("semantic", "said"),
    [({"judge": "frontier"}, "not configured"), ({"judge": "small", "guard": False}, "cache.semantic.guard is off")],
)
def test_a_judge_that_nobody_would_ask_is_refused(semantic: Mapping[str, Any], said: str) -> None:
    assert said in problems({**with_tier(), "cache": {"semantic": semantic}})["cache.semantic.judge"]


@pytest.mark.parametrize(
    "document",
    [
        with_tier(api_key=SECRET),
        with_tier(api_key=[SECRET]),
        with_tier(api_key={"env": SECRET}),
        with_tier(urls=[f"http://user:{SECRET}@host"]),
        with_tier(urls=[f"http://host/?key={SECRET}"]),
        with_tier(urls={"a": SECRET}),
        with_key(sha256=SECRET),
        with_key(env=[SECRET]),
        with_key(file=7, sha256=SECRET),
        with_key(priority=SECRET, env="K"),
        {**with_tier(), "auth": {"keys": [SECRET]}},
        {**with_tier(), "auth": {"keys": SECRET}},
        {**with_tier(), "auth": SECRET},
        {**with_tier(), "auth": {"store": f"redis://:{SECRET}@host"}},
        {**with_tier(), "cache": {"store": [f"redis://:{SECRET}@host"]}},
        {**with_tier(), "cache": {"store": f"redis://:{SECRET}@host"}},
        {**with_tier(), "cache": {"store": f"rediss+cluster://user:{SECRET}@host:1/0"}},
        {**with_tier(), "cache": {"store": f"redis://host/{SECRET}"}},
        {**with_tier(), "cache": {"store": f"redis://host:{SECRET}"}},
        {**with_tier(), "cache": {"store": f"redis://host?password={SECRET}"}},
        {**with_tier(), "cache": {"store": f"{SECRET}://host"}},
    ],
)
def test_a_literal_secret_is_refused_and_never_printed(document: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(document)
    assert SECRET not in str(caught.value)
    assert all(problem.path for problem in caught.value.problems)


def test_secrets_are_given_by_reference_and_resolved_where_they_are_used(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n", encoding="utf-8")
    config = validate(with_tier(api_key="${TIER_KEY}"))
    assert config.tiers.small is not None
    assert config.tiers.small.api_key == "${TIER_KEY}"
    assert resolve_secret("${TIER_KEY}", {"TIER_KEY": SECRET}) == SECRET
    assert resolve_secret(f"file:{tmp_path / 'key'}", {}) == SECRET
    for missing in ("${TIER_KEY}", f"file:{tmp_path / 'none'}"):
        with pytest.raises(ConfigError, match="secret"):
            resolve_secret(missing, {"OTHER": SECRET, "TIER_KEY": ""})


def test_a_configuration_written_as_json_is_read_as_the_same() -> None:
    config = validate(
        {
            **with_tier(urls=["http://h:1"], timeout={"idle": "250ms"}),
            "gateway": {"sse_ping": "90s", "max_body_size": "1KB"},
        }
    )
    assert validate(config.model_dump(mode="json")) == config


def test_a_trailing_v1_of_a_server_address_is_accepted() -> None:
    config = validate(with_tier(urls=["http://h:1/v1", "http://h:2/", "https://h/prefix/v1/"]))
    assert config.tiers.small is not None
    assert config.tiers.small.urls == ("http://h:1", "http://h:2", "https://h/prefix")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tiers: {small: {model: m, model: n}}", "line 1, column 27: not valid YAML: key 'model' is given twice"),
        ("gateway: {}\ntiers: {}\ngateway: {}", "line 3, column 1: not valid YAML: key 'gateway' is given twice"),
        ("a: [1", "line 1"),
        ("? [1, 2]\n: 3", "a key must be a plain word"),
        ("a: 2024-13-45", "not valid YAML"),
        ("a: " + "[" * 1100, "not valid YAML"),
        ("a: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("- a", "the top level must be a mapping"),
        ("", "the top level must be a mapping"),
        ("just words", "the top level must be a mapping"),
    ],
)
def test_bad_yaml_is_one_line_with_its_place(write: Any, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(text), {})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"a: \xff")
    for name in ("missing.yaml", ".", "latin"):
        with pytest.raises(ConfigError, match="cannot be read"):
            load(tmp_path / name, {})


def test_the_environment_overrides_any_key_and_is_read_as_yaml(write: Any) -> None:
    config = load(
        write(MINIMAL + "\ngateway: {port: 1, host: h}"),
        {
            "FOREBAY__GATEWAY__PORT": "9000",
            "FOREBAY__CACHE__SEMANTIC__ENABLED": "false",
            "FOREBAY__TIERS__SMALL__URLS": "[http://a:1, http://b:2]",
            "FOREBAY__TIERS__FRONTIER": "{model: big}",
            "FOREBAY__GATEWAY__SSE_PING": "15s",
            "FOREBAY_GATEWAY__HOST": "ignored",
            "PATH": "/bin",
        },
    )
    assert (config.gateway.port, config.gateway.host, config.gateway.sse_ping) == (9000, "h", 15.0)
    assert config.cache.semantic.enabled is False
    assert config.tiers.small is not None
    assert config.tiers.small.urls == ("http://a:1", "http://b:2")
    assert [name for name, _ in config.tiers.items()] == ["small", "frontier"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("FOREBAY__GATEWAY__PROT", "1", "gateway.prot: unknown key; did you mean 'port'"),
        ("FOREBAY__GATEWAY__PORT", "eighty", "gateway.port"),
        ("FOREBAY__GATEWAY__PORT__NUMBER", "1", "FOREBAY__GATEWAY__PORT__NUMBER reaches into 'port'"),
        ("FOREBAY__GATEWAY__HOST", "[", "FOREBAY__GATEWAY__HOST, line 1"),
        ("FOREBAY__TIERS__SMALL__API_KEY", SECRET, "tiers.small.api_key: a secret is given by reference only"),
        ("FOREBAY__", "1", "unknown key"),
    ],
)
def test_a_bad_override_is_named(write: Any, name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(MINIMAL + "\ngateway: {port: 1}"), {name: value})
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)


def test_overrides_leave_the_document_alone() -> None:
    from core.config.load import apply_overrides

    document: dict[str, Any] = {"gateway": {"port": 1}}
    merged = apply_overrides(document, {"FOREBAY__GATEWAY__PORT": "2"})
    assert (document["gateway"]["port"], merged["gateway"]) == (1, {"port": 2})


_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
_SECTIONS = st.sampled_from([*Config.model_fields, "tires", ""])


@settings(max_examples=200)
@given(st.dictionaries(_SECTIONS, _VALUES, max_size=4))
def test_any_document_is_a_configuration_or_a_list_of_problems(document: dict[str, Any]) -> None:
    found: tuple[Problem, ...] | None = None
    try:
        validate(document)
    except ConfigError as error:
        found = error.problems
    assert found is None or (found and all(problem.message for problem in found))


@settings(max_examples=200)
@given(st.text(st.sampled_from("abc:{}[]&*!?|>-#'\"\n \t1%@`,=<~"), max_size=40))
def test_any_text_is_yaml_or_a_config_error(text: str) -> None:
    from core.config.load import parse_yaml

    message = "text: fine"
    try:
        parse_yaml(text, "text")
    except ConfigError as error:
        message = str(error)
    assert message.startswith("text")
    assert "\n" not in message


@settings(max_examples=50)
@given(_VALUES)
def test_plain_yaml_is_read_as_any_yaml_reader_does(value: Any) -> None:
    from core.config.load import parse_yaml

    text = yaml.safe_dump(value, allow_unicode=True)
    assert repr(parse_yaml(text, "text")) == repr(yaml.safe_load(text))
