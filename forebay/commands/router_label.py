"""`forebay router label`: a labelled file made by asking both tiers."""

import argparse
import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import get_args

from core.errors import ConfigError, ForebayError, Problem
from forebay.speaking import ServedModel
from router.labelling import Plan, Task, append, done, label, tasks
from router.scoring import Scorer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `label`."""
    parser.add_argument("--weak", required=True, metavar="URL", help="server of the small model")
    parser.add_argument("--strong", required=True, metavar="URL", help="server of the frontier model")
    parser.add_argument("--prompts", type=Path, required=True, metavar="F", help="JSON lines with prompt or messages")
    parser.add_argument("--out", type=Path, required=True, metavar="F", help="file to append to; what it holds is kept")
    parser.add_argument(
        "--scorer",
        choices=get_args(Scorer),
        help="exact: against each row's answer; agreement: with the frontier model's answer; judge: a model rates both "
        "(default: exact where every row has an answer, else agreement)",
    )
    parser.add_argument("--judge", metavar="URL", help="server of the judge (default: the frontier model)")
    for name in ("weak", "strong", "judge"):
        parser.add_argument(f"--{name}-model", metavar="NAME", help="model to ask there (default: its first)")
        parser.add_argument(f"--{name}-key-env", metavar="VAR", help="environment variable with the server's key")
    parser.add_argument("--concurrency", type=int, default=8, metavar="N", help="prompts at one time (default: 8)")
    parser.add_argument("--max-tokens", type=int, default=512, metavar="N", help="longest answer (default: 512)")
    parser.add_argument(
        "--tokens", type=int, default=16, metavar="N", help="first tokens of the small model's confidence (default: 16)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="label at most N more prompts")
    parser.add_argument("--keep-answers", action="store_true", help="write the answers too")


def run(args: argparse.Namespace) -> int:
    """Label what is not labelled yet; exit code 1 where a prompt failed."""
    if not args.out.parent.is_dir():
        raise ConfigError([Problem("out", f"{args.out.parent} is not a folder")])
    if min(args.concurrency, args.max_tokens, args.tokens) < 1:
        raise ConfigError([Problem("", "--concurrency, --max-tokens and --tokens must be 1 or more")])
    scorer, everything = _read(args)
    known = done(args.out)
    todo = [task for task in everything if task.id not in known]
    skipped = len(everything) - len(todo)
    written, faults = asyncio.run(_label(args, scorer, todo[: args.limit]))
    result = {
        "labelled": written,
        "known_before": skipped,
        "failed": len(faults),
        "left": len(todo) - written - len(faults),
        "scorer": scorer,
        "out": str(args.out),
    }
    for fault in faults[:3]:
        print(f"forebay: {fault}", file=sys.stderr)
    if args.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{name:<14}{value}" for name, value in result.items()))
    return 1 if faults else 0


def _read(args: argparse.Namespace) -> tuple[Scorer, list[Task]]:
    if args.scorer is not None:
        return args.scorer, tasks(args.prompts, args.scorer)
    try:
        return "exact", tasks(args.prompts, "exact")
    except ConfigError:
        return "agreement", tasks(args.prompts, "agreement")


async def _label(args: argparse.Namespace, scorer: Scorer, todo: list[Task]) -> tuple[int, list[ForebayError]]:
    written, faults = 0, []
    if not todo:
        return 0, []
    async with AsyncExitStack() as stack:
        weak = await stack.enter_async_context(_model(args, "weak"))
        strong = await stack.enter_async_context(_model(args, "strong"))
        judge = await stack.enter_async_context(_model(args, "judge")) if args.judge else None
        plan = Plan(weak, strong, scorer, judge, args.tokens, args.keep_answers)
        async for row in label(todo, plan, args.concurrency):
            if isinstance(row, ForebayError):
                faults.append(row)
            else:
                append(args.out, row)
                written += 1
            _progress(written + len(faults), len(todo))
    return written, faults


def _model(args: argparse.Namespace, name: str) -> ServedModel:
    variable = getattr(args, f"{name}_key_env")
    key = None if variable is None else os.environ.get(variable)
    if variable is not None and key is None:
        raise ConfigError([Problem(f"{name}-key-env", f"the environment has no variable {variable}")])
    return ServedModel(getattr(args, name), getattr(args, f"{name}_model"), key=key, max_tokens=args.max_tokens)


def _progress(ready: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if ready == total else ""
        print(f"\rlabelled {ready}/{total}", end=end, file=sys.stderr, flush=True)
