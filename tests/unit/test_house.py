"""The house rules that no other tool checks."""

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.docs_configuration import page
from core.config import schema
from gateway.metrics import TABLE

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("core", "cache", "router", "capacity", "gateway", "deploy", "helm", "bench", "forebay")
MAX_FILE, MAX_FUNCTION = 400, 60

# Path, or path::function, that may be longer; each with its reason.
LONGER: dict[str, str] = {}

# Where a checkout, a user or a scratch folder lies on one machine, and hosts that packages or weights come from.
MACHINE_PATHS = re.compile(r"(?<![\w.<])/(?:work|root|home/\w+|tmp|Users)/[\w.]")
REGISTRIES = re.compile(
    r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|huggingface\.co|hf\.co|anaconda\.org|docker\.io|ghcr\.io|quay\.io"
)


def tracked() -> list[Path]:
    """Every tracked file; in an archive without git every file that is not a build product."""
    found = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S607
    if found.returncode == 0:
        names = [Path(name) for name in found.stdout.split("\0") if name]
    else:
        hidden = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        names = [path for path in hidden if path.parts[0] not in (".venv", ".git") and "__pycache__" not in path.parts]
    return [path for path in names if (ROOT / path).is_file()]


def sources() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py" and path.parts[0] in (*PACKAGES, "tests")]


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and length in lines of every function in a file, decorators and docstring included."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield node.name, (node.end_lineno or first) - first + 1


def key_paths() -> set[str]:
    """Every key of the configuration; `tiers.NAME` stands for both tiers."""
    document = schema()

    def walk(node: object, path: str) -> Iterator[str]:
        if isinstance(node, dict):
            if "$ref" in node:
                yield from walk(document["$defs"][node["$ref"].rsplit("/", 1)[1]], path)
            for branch in node.get("anyOf", ()):
                yield from walk(branch, path)
            if "items" in node:
                yield from walk(node["items"], path + "[]")
            for key, below in node.get("properties", {}).items():
                name = "NAME" if path == "tiers" else key
                inner = set(walk(below, f"{path}.{name}".lstrip(".")))
                yield from inner or {f"{path}.{name}".lstrip(".")}

    return set(walk(document, ""))


@pytest.mark.parametrize("name", PACKAGES)
def test_no_installed_distribution_owns_one_of_our_names(name: str) -> None:
    owners = {owner.lower() for owner in importlib.metadata.packages_distributions().get(name, ())}
    assert owners <= {"forebay"}
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin == str(ROOT / name / "__init__.py")


def test_every_package_of_the_repository_is_named_here_and_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {path.parts[0] for path in tracked() if len(path.parts) > 1 and path.name == "__init__.py"} - {"tests"}
    assert found == set(PACKAGES)
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == found
    assert set(project["tool"]["importlinter"]["root_packages"]) == found
    assert set(project["tool"]["mypy"]["packages"]) == found


def test_the_wheel_cannot_be_uploaded_by_mistake() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "Private :: Do Not Upload" in project["project"]["classifiers"]


def test_files_and_functions_stay_short() -> None:
    lines = {str(path): len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in sources()}
    long = {name: count for name, count in lines.items() if count > MAX_FILE}
    long |= {f"{path}::{name}": count for path in sources() for name, count in functions(path) if count > MAX_FUNCTION}
    assert {name: count for name, count in long.items() if name not in LONGER} == {}
    assert set(LONGER) <= set(long), "exceptions that are not needed"


def test_every_folder_under_tests_is_a_package() -> None:
    folders = {parent for path in tracked() if path.parts[0] == "tests" for parent in path.parents if parent.parts}
    assert [str(folder) for folder in sorted(folders) if not (ROOT / folder / "__init__.py").is_file()] == []


def test_no_machine_path_and_no_registry_host_is_committed() -> None:
    found = []
    for path in tracked():
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if MACHINE_PATHS.search(line) or REGISTRIES.search(line):
                found.append(f"{path}:{number}: {line.strip()[:100]}")
    assert found == []


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ("see /work" + "/main/x", True),
        ("'/tmp" + "/x.json'", True),
        ("/home" + "/me/.cache", True),
        ("https://pypi" + ".org/simple", True),
        ("work/main", False),
        ("https://example.com/wo" + "rk/it", False),
        ("the classifier's home/page", False),
    ],
)
def test_the_search_for_machine_paths_finds_them(line: str, caught: bool) -> None:
    assert bool(MACHINE_PATHS.search(line) or REGISTRIES.search(line)) is caught


def test_every_configuration_key_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    keys = key_paths()
    assert {"gateway.port", "auth.keys[].sha256", "tiers.NAME.disaggregation.decode.replicas.max"} <= keys
    assert sorted(key for key in keys if f"`{key}`" not in text) == []


def test_the_configuration_page_is_what_the_schema_says() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert text == page(), "run: python -m bench.docs_configuration > docs/configuration.md"


def test_every_metric_is_documented_as_it_is() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = [
        f"| `{spec.name}` | {spec.kind} | {', '.join(f'`{label}`' for label in spec.labels)} | {spec.help} |"
        for spec in TABLE
    ]
    missing = [row for row in rows if row not in text.splitlines()]
    assert missing == [], "put these rows into docs/metrics.md"
    documented = set(re.findall(r"^\| `(forebay_\w+)` \|", text, re.MULTILINE))
    assert documented == {spec.name for spec in TABLE}
