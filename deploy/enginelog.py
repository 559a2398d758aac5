"""From the logs of an engine that did not start to the one line that says why."""

import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# The last line of a Python traceback, behind whatever prefix a logger put before it.
_ERROR = re.compile(r"\b((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Killed|Exit)): +(\S.*)")
# These report that something else failed.
_WRAPPERS = ("Engine core initialization failed", "WorkerProc initialization failed", "Task failed", "ray::")
_LIMIT = 400


def reason(*texts: str) -> str:
    """The first error in the texts that is a cause and not a report of one; else the last line there is."""
    lines = [line for text in texts for line in _COLOUR.sub("", text).splitlines()]
    found = [match for match in map(_ERROR.search, lines) if match]
    causes = [match for match in found if not any(wrapper in match[0] for wrapper in _WRAPPERS)]
    best = (causes or found)[:1]
    if best:
        return f"{best[0][1].rpartition('.')[2]}: {best[0][2]}"[:_LIMIT]
    written = [line.strip() for line in lines if line.strip()]
    return written[-1][:_LIMIT] if written else "no reason given"
