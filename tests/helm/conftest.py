"""Every test here needs Helm; without it they are skipped, with the reason."""

import pytest

from tests.helm import tools


@pytest.fixture(scope="session", autouse=True)
def helm() -> None:
    """Both majors, fetched once."""
    for major in tools.PINS:
        try:
            tools.helm(major)
        except tools.CannotFetch as error:
            pytest.skip(str(error))
