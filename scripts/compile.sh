#!/usr/bin/env bash
# Makes the optional compiled build in build/compiled: the package with its hot modules as native code (mypyc).
# The sources stay the truth. Use it with PYTHONPATH=build/compiled; `make test-compiled` tests it.
#
#   scripts/compile.sh           make it, unless it is there already and of these sources
#   scripts/compile.sh --check   say by the exit status whether there is a C compiler and Python's headers
set -euo pipefail
cd "$(dirname "$0")/.."

python="$PWD/.venv/bin/python"
target=build/compiled

can_compile() {
    local compiler include
    compiler=${CC:-$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("CC") or "cc")')}
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    # Not quoted: the compiler may come with options.
    echo '#include <Python.h>' | $compiler -I"$include" -fsyntax-only -x c - 2>/dev/null
}

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
    { "$python" -VV; find src/forebay scripts/compile.sh scripts/expand_records.py requirements/dev.lock \
        -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum; } | sha256sum | cut -d' ' -f1
}

# Taken before the sources are copied: if they change meanwhile, the next run makes the build anew.
wanted=$(digest)
if [[ -f $target/.made-of && $(cat "$target/.made-of") == "$wanted" ]]; then
    echo "compile: $target is up to date" >&2
    exit 0
fi

echo "compile: making $target, which takes about a minute" >&2
rm -rf "$target"
mkdir -p "$target"
cp -r src/forebay "$target/"
find "$target" -name __pycache__ -type d -prune -exec rm -rf {} +
expand="$PWD/scripts/expand_records.py"
cd "$target"

# Left interpreted: what msgspec reads by its annotations (native classes lose them, and fields silently go missing),
# and what is hardly on the path of a request.
hot=$(ls forebay/admission/*.py forebay/gateway/*.py forebay/http/*.py forebay/runtime/{driver,delivery}.py \
    forebay/observe/{counts,endpoint_log,histograms,labels,request_log}.py |
    grep -Ev '/__init__\.py|/record\.py|/upstreams\.py|http/(fetching|server)\.py')
hot=$(grep -L 'msgspec\.Struct' $hot)
"$python" "$expand" $hot
"$python" -m mypyc --config-file= $hot >build.log 2>&1 || {
    grep -n 'error' build.log >&2 || tail -20 build.log >&2
    echo "compile: failed; all of what was said is in $target/build.log" >&2
    exit 1
}
rm -rf build
echo "$wanted" >.made-of
echo "compiled $(wc -w <<<"$hot") modules. To run it:"
echo "  PYTHONPATH=$target .venv/bin/forebay serve --upstream http://127.0.0.1:8000"
