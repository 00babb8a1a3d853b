#!/usr/bin/env bash
# Makes .venv and installs the locked packages and Forebay itself (editable) into it.
#
#   scripts/setup.sh base    what `forebay` needs to run
#   scripts/setup.sh dev     that, and what the tests and checks need (the default)
#
# Idempotent: a stamp in .venv holds the digest of the lock file and of what the editable install reads; if it
# still fits, nothing is done. PYTHON names the interpreter to use; the default is the first one that is new enough.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:-dev}
lock=requirements/$kind.lock
venv=.venv
[[ -f $lock ]] || { echo "setup: unknown kind '$kind' (base or dev)" >&2; exit 2; }

fail() { echo "setup: $*" >&2; exit 1; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    if [[ -n ${PYTHON:-} ]]; then
        command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON is not there"
        is_new_enough "$PYTHON" || fail "Forebay needs Python 3.11 or newer; PYTHON=$PYTHON is $("$PYTHON" -V 2>&1)"
        echo "$PYTHON"
        return
    fi
    local name
    for name in python3 python python3.13 python3.12 python3.11 python3.14; do
        if command -v "$name" >/dev/null && is_new_enough "$name"; then
            echo "$name"
            return
        fi
    done
    local found="none"
    command -v python3 >/dev/null && found=$(python3 -V 2>&1)
    fail "Forebay needs Python 3.11 or newer and found $found. Install one (on Debian and Ubuntu: sudo apt-get install" \
        "python3 python3-venv) or name it: make setup PYTHON=/path/to/python3.12"
}

digest() {
    "$venv/bin/python" - "requirements/$1.lock" pyproject.toml <<'PYTHON'
import hashlib, os, sys
seen = hashlib.sha256(f"{sys.version_info[:3]} {os.getcwd()}".encode())
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        seen.update(file.read())
print(seen.hexdigest())
PYTHON
}

is_stamped() { [[ -f $venv/.setup-$1 && $(cat "$venv/.setup-$1") == "$2" ]]; }

make_venv() {
    local python=$1 log
    log=$(mktemp)
    if "$python" -m venv --clear "$venv" >"$log" 2>&1; then
        rm -f "$log"
        return
    fi
    # Debian and Ubuntu ship Python without ensurepip; the package that brings it carries the version in its name.
    local package hint=""
    if ! "$python" -c 'import ensurepip' >/dev/null 2>&1; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        hint="; on Debian and Ubuntu: sudo apt-get install $package"
        if command -v apt-get >/dev/null; then
            scripts/debian.sh "$package" || fail "python -m venv cannot work without the package $package"
            "$python" -m venv --clear "$venv" >"$log" 2>&1 && { rm -f "$log"; return; }
        fi
    fi
    cat "$log" >&2
    rm -f "$log"
    fail "$python -m venv failed (its words are above)$hint"
}

# Says why .venv cannot be used, or nothing if it can.
venv_fault() {
    if ! "$venv/bin/python" -c '' >/dev/null 2>&1; then
        echo "$venv/bin/python does not run (was its Python removed or the folder moved?)"
    elif ! is_new_enough "$venv/bin/python"; then
        echo "$venv/bin/python is $("$venv/bin/python" -V 2>&1), which is too old"
    elif ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        echo "$venv has no pip that runs"
    fi
}

# Everything goes into .venv, whatever is set for pip elsewhere.
unset PIP_USER PIP_TARGET PIP_PREFIX PIP_ROOT

fault=$(venv_fault)
if [[ -n $fault ]]; then
    [[ ! -e $venv ]] || echo "setup: $fault; making $venv anew" >&2
    python=$(find_python)
    echo "setup: making $venv with $("$python" -V 2>&1)" >&2
    make_venv "$python"
fi

wanted=$(digest "$kind")
if is_stamped "$kind" "$wanted"; then
    exit 0
fi

rm -f "$venv"/.setup-*
echo "setup: installing $lock" >&2
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input --quiet)
"${pip[@]}" install --require-hashes --requirement "$lock" \
    || fail "the locked packages could not be installed (pip's words are above). Is the package index reachable from here?"
# The build backend is in the lock, so this fetches nothing.
"${pip[@]}" install --no-deps --no-build-isolation --no-index --editable . \
    || fail "the editable install of Forebay failed"
# A page of the documentation is run in the tests as it stands, with curl. Where that cannot be had, the test says so.
[[ $kind == base ]] || scripts/debian.sh curl || true
echo "$wanted" >"$venv/.setup-$kind"
# dev.lock holds all of base.lock in the same versions (a test sees to it), so what is set up for dev is for base.
[[ $kind == base ]] || digest base >"$venv/.setup-base"
echo "setup: ready ($venv/bin/forebay)" >&2
