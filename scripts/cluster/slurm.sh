#!/usr/bin/env bash
#SBATCH --job-name=lutq
#SBATCH --requeue
#SBATCH --open-mode=append
#
# Quantizes a model by a Slurm array, and merges the parts when all have ended:
#
#     scripts/cluster/slurm.sh MODEL OUT --bits 4 --preset fast
#     PARTS=16 LUTQ=/shared/bin/lutq scripts/cluster/slurm.sh MODEL OUT --bits 4 --codebook trellis
#     SBATCH_PARTITION=cpu SBATCH_TIMELIMIT=4:00:00 scripts/cluster/slurm.sh MODEL OUT --bits 4 --preset fast
#
# Slurm's own variables (SBATCH_…) say where the jobs run. Given the same command again, it makes what is missing.
# SBATCH_ARGS has more flags for both jobs, such as "--cpus-per-task=16 --mem=32G".
set -euo pipefail

lutq=${LUTQ:-lutq}
parts=${PARTS:-8}

# A task of the array, a merge, or the command line that submits both: the script is all three.
if [ -n "${SLURM_ARRAY_TASK_ID-}" ]; then
    exec "$lutq" quantize "$@" --part "$SLURM_ARRAY_TASK_ID/$parts" --threads "${SLURM_CPUS_PER_TASK:-0}" --quiet
fi
if [ -n "${LUTQ_MERGE-}" ]; then
    exec "$lutq" quantize "$@" --merge --threads "${SLURM_CPUS_PER_TASK:-0}" --quiet
fi
[ $# -ge 3 ] || { echo "usage: $0 MODEL OUT FLAG…" >&2; exit 2; }
read -ra args <<<"${SBATCH_ARGS-}"
# What runs is a copy of this file, so the environment tells it all it needs.
export LUTQ=$lutq PARTS=$parts
array=$(sbatch --parsable --export=ALL --array="1-$parts" --output=lutq-%A-part-%a.log "${args[@]}" "$0" "$@")
# After any end: where a part has failed, the merge says which.
merge=$(LUTQ_MERGE=1 sbatch --parsable --export=ALL --dependency="afterany:${array%%;*}" --output=lutq-%j-merge.log "${args[@]}" "$0" "$@")
echo "array ${array%%;*}, merge ${merge%%;*}"
