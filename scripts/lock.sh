#!/usr/bin/env bash
# Makes requirements/*.lock from pyproject.toml: versions and hashes for every platform, and no addresses, so that
# the files work with whatever package index a machine is set up to use. Both pip and uv install them with
# --require-hashes. Versions that still fit are kept; `scripts/lock.sh --upgrade` takes the newest ones.
set -euo pipefail
cd "$(dirname "$0")/.."

# uv does the resolving. It lives in an environment of its own, since it is needed for nothing else.
tool=.venv-lock
if [[ ! -x $tool/bin/uv ]]; then
    python=${PYTHON:-.venv/bin/python}
    command -v "$python" >/dev/null || python=python3
    "$python" -m venv --clear "$tool"
    "$tool/bin/python" -m pip --disable-pip-version-check --quiet install 'uv>=0.7'
fi

compile=("$tool/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes
    --no-emit-index-url --no-header --no-annotate)
# base.lock holds what dev.lock holds, as far as it goes: one version of a package in this project.
"${compile[@]}" "$@" pyproject.toml --group dev --output-file requirements/dev.lock
"${compile[@]}" "$@" pyproject.toml --group build --constraint requirements/dev.lock --output-file requirements/base.lock

if grep -nE '://|^ *--(index|extra-index|find-links|trusted)|@ ' requirements/*.lock; then
    echo "lock: an address got into a lock file (lines above)" >&2
    exit 1
fi
wc -l requirements/*.lock
