#!/bin/sh
# usage: install.sh VENV LOCK...    Installs the pinned packages of the lock files, then this project, into VENV.
# PYTHON names the interpreter (3.11 is what the lock was made with).
set -eu
venv=$1; shift
here=$(cd "$(dirname "$0")" && pwd)
say() { printf 'install: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

python=${PYTHON:-}
if [ -z "$python" ]; then
  for name in python3.11 python3; do command -v "$name" >/dev/null 2>&1 && { python=$name; break; }; done
fi
[ -n "$python" ] || fail "no Python found: install Python 3.11, or name it with PYTHON=/path/to/python3.11"
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
  fail "$("$python" --version) found, and the lock files are for Python 3.11: name one with PYTHON=/path/to/python3.11"

if [ ! -x "$venv/bin/python" ]; then
  if ! "$python" -m venv "$venv" 2>/dev/null; then
    rm -rf "$venv"
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 ||
      fail "$python cannot make a virtual environment: install its venv module (Debian: apt-get install python3-venv)"
    say "installing python3-venv with apt"
    apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null
    "$python" -m venv "$venv"
  fi
fi
pip="$venv/bin/python -m pip --disable-pip-version-check"
export PIP_PROGRESS_BAR=off

# torch for the CPU is not on every package index: pip's own sources come first, then FOREBAY_TORCH_INDEX.
torch=$(grep -h '^torch==' "$@" || true)
if [ -n "$torch" ] && ! $pip install -q --no-deps "$torch" 2>/dev/null; then
  [ -n "${FOREBAY_TORCH_INDEX:-}" ] ||
    fail "pip's sources do not have $torch: set FOREBAY_TORCH_INDEX to the address of PyTorch's CPU index and run this again"
  say "taking $torch from FOREBAY_TORCH_INDEX"
  $pip install -q --no-deps --index-url "$FOREBAY_TORCH_INDEX" "$torch" || fail "FOREBAY_TORCH_INDEX does not have $torch"
fi
for lock in "$@"; do
  say "$(grep -c '==' "$lock") packages of $(basename "$lock")"
  $pip install -q --no-deps -r "$lock"
done
case " $* " in
  *cpu.lock*) $pip install -q --no-deps --no-build-isolation "$here/../deploy/cpu/vllm-metadata" ;;
esac
$pip install -q --no-deps --no-build-isolation --editable "$here/.."
say "done: $venv/bin/forebay"
