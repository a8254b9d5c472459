#!/usr/bin/env bash
# Writes requirements/*.txt anew from pyproject.toml, with hashes, for every platform and Python from 3.11 on.
# Versions that are there stay unless pyproject.toml rules them out; `lock.sh --upgrade` takes the newest.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "-- installing uv into a throwaway environment"
"${PYTHON:-python3}" -m venv "$work"
"$work/bin/python" -m pip --quiet --disable-pip-version-check install 'uv>=0.8'

lock() { # NAME OPTION ...
  local name=$1
  shift
  echo "-- requirements/$name.txt"
  "$work/bin/uv" pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url --python-version 3.11 \
    --quiet --no-header --extra demo --extra stacks "$@" -o "requirements/$name.txt"
}
lock base "$@"
lock dev "$@" --group dev
lock torch "$@" --group dev --group torch

# make demo, make check and make test share one .venv: what a lower level pins, a higher one has to pin as well.
for pair in base:dev dev:torch; do
  lower=${pair%:*} higher=${pair#*:}
  if missing=$(grep -E '^[a-z0-9.-]+==' "requirements/$lower.txt" | sed 's/ *\\$//' | grep -vxFf \
    <(grep -E '^[a-z0-9.-]+==' "requirements/$higher.txt" | sed 's/ *\\$//')); then
    echo "lock: requirements/$higher.txt pins otherwise than $lower.txt: $missing" >&2
    echo "lock: delete requirements/*.txt and lock again" >&2
    exit 1
  fi
done
