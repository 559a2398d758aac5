"""`forebay explain`: what would happen to a prompt, and why."""

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import httpx

from core.errors import ForebayError, RequestError
from forebay import configuration

if TYPE_CHECKING:
    from argparse import _SubParsersAction

# Where the command line finds the gateway's key: an argument would show in the list of processes.
API_KEY = "FOREBAY_API_KEY"


def add(subparsers: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "explain",
        help="what would happen to a prompt, and why",
        description="Cache layers, nearest entry, guard, complexity and tier for one prompt; nothing is generated. "
        "Asks the running gateway, with the key in FOREBAY_API_KEY where it needs one; where none answers, decides "
        "with an empty cache and says so.",
        epilog='example: forebay explain "How do I reset my password?"',
    )
    configuration.add_option(parser)
    parser.add_argument("--url", metavar="U", help="address of the gateway (default: the one that runs here)")
    parser.add_argument("--model", default="auto", help="the model a client would name (default: auto)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("prompt", metavar="PROMPT")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation."""
    request = {"model": arguments.model, "messages": [{"role": "user", "content": arguments.prompt}]}
    url = arguments.url or running(arguments)
    document = _ask(url, request) if url else None
    if document is None:
        if arguments.url:
            raise ForebayError(f"no gateway answers at {arguments.url}")
        print("forebay: no gateway answers; deciding with an empty cache", file=sys.stderr)
        document = _decide(arguments, request)
    print(json.dumps(document) if arguments.json else _text(document))
    return 0


def running(arguments: argparse.Namespace) -> str | None:
    """The address of the gateway that the configuration names, else of the one that `forebay up` has started here."""
    from deploy.plan import gateway_url  # noqa: PLC0415  # keeps `--help` quick
    from forebay.state import running_url  # noqa: PLC0415  # keeps `--help` quick

    if configuration.path_of(arguments) is None:
        return running_url()
    return gateway_url(configuration.required(arguments))


def _ask(url: str, request: dict[str, Any]) -> dict[str, Any] | None:
    try:
        key = os.environ.get(API_KEY)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        address = f"{url.rstrip('/').removesuffix('/v1')}/v1/explain"
        answer = httpx.post(address, json=request, headers=headers, timeout=10)
    except httpx.TransportError:
        return None
    try:
        document: dict[str, Any] = answer.json()
    except ValueError:
        raise ForebayError(f"{url} does not answer as a Forebay gateway (status {answer.status_code})") from None
    if answer.status_code != 200:
        message = document.get("error", {}).get("message", answer.text)
        hint = f" (the key is taken from {API_KEY})" if answer.status_code == 401 else ""
        raise ForebayError(f"{url} answers {answer.status_code}: {message}{hint}")
    return document


def _decide(arguments: argparse.Namespace, request: dict[str, Any]) -> dict[str, Any]:
    # Loads the embedder: seconds that asking a running gateway does not cost.
    from deploy.plan import Machine, plan  # noqa: PLC0415
    from gateway.explain import decide_offline  # noqa: PLC0415

    config = plan(configuration.path_of(arguments), Machine.here().device).config
    try:
        return decide_offline(config, request)
    except RequestError as error:
        raise ForebayError(f"the request would be refused with {error.status}: {error.message}") from None


def _text(document: dict[str, Any]) -> str:
    """The document as lines a person reads."""
    cache, router = document["cache"], document["router"]
    missed = "hit" not in (cache["exact"], cache["semantic"]["verdict"])
    semantic = cache["semantic"]
    lines = [("exact cache", cache["exact"]), ("semantic cache", _with_reason(semantic["verdict"], semantic["reason"]))]
    if semantic["nearest_id"]:
        similarity, threshold = semantic["similarity"], semantic["threshold"]
        lines.append(
            ("  nearest entry", f"{semantic['nearest_id']}, similarity {similarity:.3f}, threshold {threshold}")
        )
    if semantic["guard"]:
        guard = semantic["guard"]
        score = "" if guard["score"] is None else f", score {guard['score']:.3f}"
        lines.append(("  guard", f"{'agrees' if guard['served'] else 'refuses'} by {guard['feature']}{score}"))
    if semantic["judge"]:
        lines.append(("  judge", semantic["judge"]))
    if router["complexity"] is not None:
        lines.append(("complexity", f"{router['complexity']:.3f}, threshold {router['threshold']}"))
    lines.append(("tier" if missed else "tier on a miss", _with_reason(router["tier"], router["reason"])))
    if router.get("cascade"):
        least = router["cascade"]["threshold"]
        asked = "the lowest quarter of recent answers" if least is None else f"a mean log-probability below {least}"
        lines.append(("  escalated", f"with {asked}"))
    return "\n".join(f"{name:<16} {value}" for name, value in lines)


def _with_reason(what: str, reason: str | None) -> str:
    return f"{what} ({reason})" if reason else what
