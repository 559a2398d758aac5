"""Requests made from our own OpenAPI document: none is answered with a 500, or with what the document does not say.

Made by schemathesis (4.32 or later) in an environment of its own, as it brings a plugin into every pytest it is beside:
`python -m venv V && V/bin/pip install schemathesis`, and V/bin on the PATH or FOREBAY_SCHEMATHESIS=V/bin/schemathesis.
"""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from bench.engine import ScriptedEngine
from tests.integration.stack import gateway, tiers, until

KEY = "examples"
# What an engine accepts of a body is its own affair; everything else is ours.
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method",
)  # fmt: skip
EXAMPLES = 12


@pytest.mark.timeout(300)
async def test_examples_of_every_route_get_what_the_document_promises(
    engine: ScriptedEngine, frontier: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = os.environ.get("FOREBAY_SCHEMATHESIS") or shutil.which("schemathesis")
    if command is None:
        pytest.skip("no schemathesis: FOREBAY_SCHEMATHESIS names its command")
    monkeypatch.setenv("EXAMPLES_KEY", KEY)
    auth = {"keys": [{"name": "k", "tenant": "t", "env": "EXAMPLES_KEY", "admin": True}]}
    async with gateway({**tiers(engine, frontier=frontier), "auth": auth}) as stack:
        process = await asyncio.create_subprocess_exec(
            *(command, "run", f"{stack.url}/openapi.json", "--header", f"Authorization: Bearer {KEY}"),
            *("--max-examples", str(EXAMPLES), "--seed", "1", "--workers", "1", "--checks", ",".join(CHECKS)),
            *("--phases", "examples,coverage,fuzzing", "--generation-database", "none"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        # What streams was left by a client that had seen enough.
        await until(lambda: stack.process.services.load.running == 0)
        statuses = {line["status"] for line in stack.lines()}
        assert 200 in statuses
        assert not statuses & {0, 500}
