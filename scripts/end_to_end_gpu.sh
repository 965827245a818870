#!/usr/bin/env bash
# From a checkpoint to timed kernels on an NVIDIA GPU: quantizes a model, checks the container against
# it, lays it out for the GPU, checks every layer's product against float64 and times it, and with a
# text measures what the quantization did, on the GPU as well. It stops at the first check that does
# not hold, with lutq's exit code (3).
#
#   scripts/end_to_end_gpu.sh LUTQ MODEL WORK [TEXT]
#
# LUTQ is the binary, MODEL a Hugging Face folder, WORK a folder for the results, which are replaced.
# BITS (4), GROUP (64), DTYPE (f16) and M (1,4,16) can be set in the environment.
set -euo pipefail

if [ $# -lt 3 ] || [ $# -gt 4 ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
lutq=$(realpath "$1") model=$2 work=$3 text=${4:-}
bits=${BITS:-4} group=${GROUP:-64} dtype=${DTYPE:-f16} m=${M:-1,4,16}

step() { printf '\n== %s\n' "$*"; }

mkdir -p "$work"
step "quantize: $bits bits, group $group"
"$lutq" quantize --preset fast "$model" "$work/model" --bits "$bits" --group "$group" --force
"$lutq" verify "$work/model" --against "$model"

step "repack for cuda"
rm -rf "$work/tiles"
"$lutq" repack "$work/model" "$work/tiles" --target cuda

step "multiply by its layers on the GPU: checked against float64, then timed"
"$lutq" bench "$work/model" --device cuda --dtype "$dtype" --m "$m"

if [ -n "$text" ]; then
    step "perplexity on the GPU, from the packed weights"
    "$lutq" eval-ppl "$work/model" --text "$text" --against "$model" --device cuda --dtype "$dtype"
fi
