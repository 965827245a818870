#!/usr/bin/env bash
# Opens what lutq exports in the programs that it is for, and a container in transformers: a case a target, in minutes.
#   scripts/venv.sh interop
#   scripts/interop.sh LUTQ [MODEL…]      by default the small model that the tests have
# PYTHON names another interpreter. The exit code is 3 where a client computes anything else than the weights say.
set -euo pipefail

lutq=$(realpath "${1:?usage: scripts/interop.sh LUTQ [MODEL…]}")
shift
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
models=("${@:-calib/testdata/lutq-tiny}")
if [ $# -gt 0 ]; then
    "$python" scripts/interop.py "${models[@]}" --lutq "$lutq"
else
    # A case a target.
    "$python" scripts/interop.py "${models[@]}" --lutq "$lutq" --only '^(ct --bits 4|bnb|nvfp4|mxfp4|mlx --bits 4|gptq --bits 4|awq)$'
fi
"$python" scripts/interop_hf.py --lutq "$lutq" --model "${models[0]}" --only '^$' # none of the families
