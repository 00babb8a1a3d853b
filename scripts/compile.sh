#!/usr/bin/env bash
# Builds the wheel that users get, its hot modules compiled, and unpacks it in build/compiled, for tests and benchmarks.
# Use it with PYTHONPATH=build/compiled; `make test-compiled` tests it.
#
#   scripts/compile.sh           make it, unless it is there already and of these sources
#   scripts/compile.sh --check   say by the exit status whether there is a C compiler and Python's headers
set -euo pipefail
cd "$(dirname "$0")/.."

python="$PWD/.venv/bin/python"
target=build/compiled

can_compile() { "$python" -m scripts.compile_modules 2>/dev/null; }

if [[ ${1:-} == --check ]]; then
    can_compile
    exit
fi
if ! can_compile; then
    scripts/debian.sh gcc libc6-dev python3-dev || true
    can_compile || {
        echo "compile: the compiled build needs a C compiler and the headers of $("$python" -V) (Debian and Ubuntu:" \
            "sudo apt-get install gcc python3-dev). Forebay runs without it." >&2
        exit 1
    }
fi

digest() {
    { "$python" -VV; find src/forebay scripts/*.py scripts/compile.sh hatch_build.py pyproject.toml requirements/dev.lock \
        -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum; } | sha256sum | cut -d' ' -f1
}

# Taken before the sources are read: if they change meanwhile, the next run makes the build anew.
wanted=$(digest)
if [[ -f $target/.made-of && $(cat "$target/.made-of") == "$wanted" ]]; then
    echo "compile: $target is up to date" >&2
    exit 0
fi

echo "compile: building the wheel and unpacking it in $target, which takes about a minute" >&2
rm -rf "$target" build/wheel
pip=("$python" -m pip --disable-pip-version-check --no-input --quiet)
# The build backend and mypyc are in the lock, so this fetches nothing.
FOREBAY_COMPILED=1 "${pip[@]}" wheel --no-deps --no-build-isolation --no-index --wheel-dir build/wheel .
"${pip[@]}" install --no-deps --no-index --no-compile --target "$target" build/wheel/*.whl
echo "$wanted" >"$target/.made-of"
echo "compiled. To run it:  PYTHONPATH=$target .venv/bin/python -m forebay serve --upstream http://127.0.0.1:8000"
