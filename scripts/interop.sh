#!/usr/bin/env bash
# Opens what lutq exports in the programs that it is for, and a container in transformers: a case a target, in minutes.
#   scripts/venv.sh interop
#   scripts/interop.sh LUTQ [MODEL…]      by default the small model that the tests have
# PYTHON names another interpreter, and NODE a folder with node_modules/node-llama-cpp, for llama.cpp. The exit code is 3 where a client computes anything else than the weights say.
set -euo pipefail

lutq=$(realpath "${1:?usage: scripts/interop.sh LUTQ [MODEL…]}")
shift
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
models=("${@:-calib/testdata/lutq-tiny}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
gguf=()
for model in "${models[@]}"; do gguf+=(--model "$model"); done
for model in "${models[@]}"; do gguf+=(--tokenizer "$model/tokenizer.json"); done
[ -z "${NODE:-}" ] || gguf+=(--node "$NODE" --families)
if [ $# -gt 0 ]; then
    "$python" scripts/interop.py "${models[@]}" --lutq "$lutq"
    "$python" scripts/interop_gguf.py "$lutq" "$work" "${gguf[@]}"
else
    # A case a target.
    "$python" scripts/interop.py "${models[@]}" --lutq "$lutq" --only '^(ct --bits 4|bnb|nvfp4|mxfp4|mlx --bits 4|gptq --bits 4|awq|exl3 --bits 4)$'
    "$python" scripts/interop_gguf.py "$lutq" "$work" "${gguf[@]:0:4}" --only '^iq4_nl$'
fi
"$python" scripts/interop_hf.py --lutq "$lutq" --model "${models[0]}" --only '^$' # none of the families
"$python" scripts/interop_layouts.py "$lutq"
