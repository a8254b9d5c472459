#!/usr/bin/env bash
# Makes .venv hold what a level needs, and Reknit itself from this checkout. Does nothing where that is so already.
#
#   setup.sh base    what Reknit and its demo need
#   setup.sh dev     base and the tools of `make check`
#   setup.sh torch   dev and PyTorch, which some tests of `make test` train with
#
# A higher level holds all of a lower one, in the same versions. PYTHON=... chooses the interpreter of a new .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

level=${1:?usage: setup.sh base|dev|torch}
case $level in
  base) levels=(base dev torch) cost="about 20 s the first time" ;;
  dev) levels=(dev torch) cost="about a minute the first time" ;;
  torch) levels=(torch) cost="about 3 min and 7 GB the first time" ;;
  *) echo "setup.sh: no level '$level'; there are base, dev and torch" >&2 && exit 2 ;;
esac

say() { echo "-- $*"; }
fail() { echo "setup: $*" >&2 && exit 2; }
checksum() { sha256sum | cut -c1-16; }
usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

choose_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    usable "$candidate" && echo "$candidate" && return
  done
  fail "Python 3.11 or newer is needed and ${PYTHON:-python3} is not that: install it, or name one (make PYTHON=/path/to/python3.12 ...)"
}

# A checkout that was moved has scripts in .venv that name the old place; one that was interrupted has no pip.
whole() {
  [ -x .venv/bin/python ] && .venv/bin/python -c 'import pip' 2>/dev/null &&
    { [ ! -f .venv/.reknit-place ] || [ "$(cat .venv/.reknit-place)" = "$PWD" ]; }
}

make_venv() {
  local python
  python=$(choose_python)
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python has no venv module: install it (on Debian and Ubuntu: apt-get install python3-venv)"
  say "making .venv with $("$python" --version)"
  rm -rf .venv
  "$python" -m venv .venv
}

installed() { # whether one of the levels is there as its file now stands
  local each
  for each in "${levels[@]}"; do
    [ -f ".venv/.reknit-$each-$(checksum <"requirements/$each.txt")" ] && return
  done
  return 1
}

install() {
  local began=$SECONDS
  "$@" || fail "could not install (see above): is the package index reachable, and is there room on the disk?"
  say "done in $((SECONDS - began)) s"
}

pip=(.venv/bin/python -m pip --quiet --disable-pip-version-check --no-input install)

mkdir -p .cache
# Two makes at once in one checkout take turns. A machine without flock has no turns to take.
exec 9>.cache/setup.lock
if command -v flock >/dev/null; then flock 9; fi

whole || make_venv
echo "$PWD" >.venv/.reknit-place

if ! installed; then
  say "installing requirements/$level.txt into .venv ($cost)"
  install "${pip[@]}" --require-hashes -r "requirements/$level.txt"
  rm -f ".venv/.reknit-$level"-*
  touch ".venv/.reknit-$level-$(checksum <"requirements/$level.txt")"
fi

# Only what stands above the tools' sections says how Reknit itself is installed.
self=".venv/.reknit-self-$(sed '/^\[tool\.ruff/,$d' pyproject.toml | checksum)"
if [ ! -f "$self" ]; then
  say "installing Reknit itself from this checkout"
  install "${pip[@]}" --no-deps -e .
  rm -f .venv/.reknit-self-*
  touch "$self"
fi
