#!/usr/bin/env bash
# Runs each kernel source once, at few and at many rows of X, under compute-sanitizer, on the GPU of this machine:
#
#     scripts/sanitize_gpu.sh ./lutq [TOOL...] [-- TEST...]
#
# Tools are memcheck and racecheck unless others are named (initcheck, synccheck). Behind -- stand test binaries of packages, made by
# "go test -c", whose TestGPU* are run under memcheck: they have kernels that the self-test has not, as those of gates and of experts.
# The kernels are compiled first without a tool. It prints how many checks of how many kernels there were and what each tool found, and fails
# unless that is nothing. LUTQ_SANITIZE holds other arguments of the self-test, to run kernels of other formats.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
lutq=$1
shift
tools=() tests=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	tools+=("$1")
	shift
done
[ $# -eq 0 ] || { shift; tests=("$@"); }
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck)
command -v compute-sanitizer >/dev/null || { echo "sanitize_gpu: compute-sanitizer is not there: it comes with the CUDA toolkit" >&2; exit 1; }

selftest=("$lutq" bench --selftest=sources --device cuda --quiet)
read -ra which <<<"${LUTQ_SANITIZE:---bits 4 --group 128 --dtype f16}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0

# under TOOL NAME COMMAND... runs a command under a tool and prints its last lines.
under() {
	local tool=$1 name=$2 start=$SECONDS code=0
	shift 2
	compute-sanitizer --tool "$tool" --error-exitcode 86 "$@" >"$log" 2>&1 || code=$?
	grep -E 'checks of|SUMMARY' "$log" | sed "s|^|$tool $name: |" || true
	if [ $code -ne 0 ] || ! grep -qE 'SUMMARY: 0 (errors|hazards)' "$log"; then
		failed=1
		echo "$tool $name: exit code $code" >&2
		grep -vE '^ok|^---' "$log" | head -60 >&2 || true
	fi
	echo "$tool $name: $((SECONDS - start)) s"
}

start=$SECONDS
"${selftest[@]}" "${which[@]}"
echo "without a tool: $((SECONDS - start)) s"
for tool in "${tools[@]}"; do
	under "$tool" selftest "${selftest[@]}" "${which[@]}"
done
for test in "${tests[@]}"; do
	under memcheck "$(basename "$test")" "$test" -test.run '^TestGPU' -test.timeout 20m
done
exit $failed
