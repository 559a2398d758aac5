"""From the logs of an engine that did not start to the one line that says why."""

import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# The last line of a Python traceback, behind whatever prefix a logger put before it.
_ERROR = re.compile(r"\b((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Killed|Exit)): +(\S.*)")
# A pydantic error spends its first line on the count; the message is on the second, before the details in brackets.
_COUNT = re.compile(r"\d+ validation errors? for ")
_DETAILS = re.compile(r"\s*\[type=.*")
# These report that something else failed.
_REPORTS = (
    "Traceback (most recent call last)",
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "ray::",
)
_LIMIT = 400


def reason(*texts: str) -> str:
    """The first error in the texts that is a cause and not a report of one; else the last line there is."""
    lines = [line for text in texts for line in _COLOUR.sub("", text).splitlines()]
    found = [said for index, line in enumerate(lines) if (said := _said(line, lines[index + 1 : index + 2]))]
    causes = [said for said in found if not any(report in said for report in _REPORTS)]
    if best := (causes or found)[:1]:
        return best[0][:_LIMIT]
    written = [line.strip() for line in lines if line.strip()]
    return written[-1][:_LIMIT] if written else "no reason given"


def _said(line: str, following: list[str]) -> str | None:
    match = _ERROR.search(line)
    if match is None:
        return None
    if _COUNT.search(match[2]) and following:
        return _DETAILS.sub("", following[0]).strip().removeprefix("Value error, ")
    return f"{match[1].rpartition('.')[2]}: {match[2]}"
