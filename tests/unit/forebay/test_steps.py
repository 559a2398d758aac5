"""Progress is one line per change where stderr is no terminal."""

import re

import pytest

from deploy.instance import Step
from forebay.steps import Lines, Table, display


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [re.sub(r"^\[ *\d+ s\] ", "", line) for line in capsys.readouterr().err.splitlines()]


def test_what_waits_is_not_shown_and_what_changed_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Lines()
    waiting, running = Step(name="Ray"), Step(name="Ray", status="running")
    gateway = Step(name="gateway")
    shown.show((waiting, gateway))
    shown.show((running, gateway))
    shown.show((running, gateway))
    shown.show((Step(name="Ray", status="done"), Step(name="gateway", status="running", detail="loading")))
    shown.show((Step(name="Ray", status="done"), Step(name="gateway", status="failed")))
    assert lines(capsys) == ["Ray: starting", "Ray: ready", "gateway: loading", "gateway: failed"]


def test_a_table_that_was_closed_goes_on_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table()
    done = Step(name="gateway", status="done")
    table.show((Step(name="gateway", status="running"),))
    table.show((done,))
    table.close()
    capsys.readouterr()
    table.show((done,))
    table.show((Step(name="gateway", status="running", detail="starting again"),))
    table.close()
    assert lines(capsys) == ["gateway: starting again"]


def test_without_a_terminal_lines_are_taken() -> None:
    assert isinstance(display(), Lines)
