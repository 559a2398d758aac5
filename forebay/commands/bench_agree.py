"""`forebay bench agree`: the same prompts to two endpoints, and how alike the answers are."""

import argparse
import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import ConfigError, Problem
from forebay import arguments
from forebay.commands import bench_load

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Mapping, Sequence

    from bench.load.agree import Endpoint, Pair

EXAMPLE = "forebay bench agree --url http://127.0.0.1:8000/v1 --other http://127.0.0.1:8001/v1 --chats prompts.jsonl"


def add(parts: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the part."""
    parser = parts.add_parser(
        "agree",
        help="the same prompts to two endpoints: do the answers agree",
        description="Whether a faster setting says the same: full and quantized weights, with and without "
        "speculation, gateway and direct. Every prompt to both at temperature 0, and once more to the first, whose "
        "disagreement with itself is the floor. Exit code 1 with --least where the agreement is not shown to be that "
        "high.",
        epilog=f"example: {EXAMPLE}",
    )
    bench_load.target(parser)
    group = parser.add_argument_group("comparison")
    group.add_argument("--other", required=True, metavar="U", help="the second endpoint")
    group.add_argument("--other-model", metavar="M", help="its model's name (that of the first)")
    group.add_argument(
        "--chats", type=Path, metavar="F.jsonl", help="rows of messages or prompt; else our own questions"
    )
    group.add_argument("--requests", type=arguments.count, metavar="N", help="the first N prompts")
    group.add_argument("--max-tokens", type=arguments.count, default=64, metavar="N", help="of an answer (64)")
    group.add_argument("--concurrency", type=arguments.count, default=4, metavar="N", help="prompts at a time (4)")
    group.add_argument("--no-baseline", action="store_true", help="do not ask the first endpoint twice")
    group.add_argument("--embed", action="store_true", help="similarity of meaning as well, by the embedder")
    group.add_argument("--extra", type=bench_load.json_object, default={}, metavar="JSON", help="added to every body")
    group.add_argument(
        "--least", type=arguments.fraction, metavar="S", help="exact agreement that the interval must reach"
    )
    group.add_argument("--answers-out", type=Path, metavar="F.jsonl", help="one line per prompt, with the answers")
    group.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask and compare."""
    from bench.load.agree import Endpoint, asked, verdict  # noqa: PLC0415  # numpy takes a moment to load
    from bench.load.target import Target  # noqa: PLC0415

    first = bench_load.endpoint(args)
    second = Target(args.other, args.endpoint, first.headers, first.verify)
    model = args.model or _model(first)
    sides = Endpoint(first, model), Endpoint(second, args.other_model or (model if args.model else _model(second)))
    prompts = _prompts(args)
    extra = {"max_tokens": args.max_tokens, **args.extra}
    pairs = asyncio.run(
        asked(
            *sides, prompts, extra=extra, concurrency=args.concurrency, baseline=not args.no_baseline,
            timeout_s=args.timeout,
        )
    )  # fmt: skip
    document = verdict(pairs, _vectors(pairs) if args.embed else None)
    document["setup"] = {"a": _side(sides[0]), "b": _side(sides[1]), "max_tokens": args.max_tokens, "extra": args.extra}
    if args.answers_out is not None:
        with args.answers_out.open("w", encoding="utf-8") as out:
            for messages, pair in zip(prompts, pairs, strict=True):
                row = {"messages": list(messages), "a": pair.a, "b": pair.b, "again": pair.again}
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(json.dumps(document) if args.json else _table(document))
    return 0 if args.least is None or document["exact_ci95"][0] >= args.least else 1


def _model(target: Any) -> str:
    from bench.load.server import Server  # noqa: PLC0415  # as in run

    server = Server(target)
    try:
        names = server.about(None).models
    finally:
        server.close()
    if not names:
        raise ConfigError([Problem("model", f"missing, and {target.base} names none")])
    return names[0]


def _prompts(args: argparse.Namespace) -> "list[Sequence[Mapping[str, Any]]]":
    from bench.load.plan import read_chats  # noqa: PLC0415  # as in run
    from bench.questions import EASY_AND_HARD, PARAPHRASES  # noqa: PLC0415

    if args.chats is not None:
        found = [said.messages for said in read_chats(args.chats)]
    else:
        texts = [a for a, _ in PARAPHRASES] + [text for pair in EASY_AND_HARD for text in pair]
        found = [[{"role": "user", "content": text}] for text in texts]
    return found[: args.requests]


def _vectors(pairs: "Sequence[Pair]") -> dict[str, Any]:
    from core.encoders import encoder_for  # noqa: PLC0415  # loads the embedder

    texts = sorted({text for pair in pairs for text in (pair.a, pair.b, pair.again) if text is not None})
    found = encoder_for().encode(texts)
    return {text: one.vector for text, one in zip(texts, found, strict=True)}


def _side(side: "Endpoint") -> dict[str, str]:
    return {"url": side.target.base, "model": side.model}


def _table(document: dict[str, Any]) -> str:
    lines = [f"{document['prompts']} prompts", f"{'':<22} {'exact':>7}   {'95 %':<17} {'similarity':>10}   95 %"]
    for name, found in (("A and B", document), ("A and A again", document["self"])):
        if found is None:
            continue
        exact, words = found["exact_ci95"], found["similarity_ci95"]
        between = f"{exact[0]:.1%} … {exact[1]:.1%}"
        alike = f"{found['similarity']:>10.3f}   {words[0]:.3f} … {words[1]:.3f}"
        lines.append(f"{name:<22} {found['exact']:>7.1%}   {between:<17} {alike}")
        if "cosine" in found:
            ends = found["cosine_ci95"]
            lines.append(
                f"{'  by meaning':<22} {'':>7}   {'':<17} {found['cosine']:>10.3f}   {ends[0]:.3f} … {ends[1]:.3f}"
            )
    if document["parts_after_words"] is not None:
        lines.append(f"answers that differ part after {document['parts_after_words']:.0f} words (median)")
    if (more := document["differs_beyond_itself"]) is not None:
        words = "differs from A by more than A from itself" if more else "differs no more from A than A from itself"
        lines.append(f"B {words}")
    return "\n".join(lines)
