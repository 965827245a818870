#!/usr/bin/env bash
# Opens what lutq writes in the real vLLM on a GPU machine without a network, and prints a table: what each folder's log
# probabilities and greedy tokens are against those of its dequantized weights in float32 in transformers.
#
#   scripts/vllm_run.sh prepare PAYLOAD.tar.xz [CARD]    where there is a network: vLLM and what it imports, from PyPI
#   scripts/vllm_run.sh run PAYLOAD.tar.xz LUTQ MODEL OUT [SECONDS]    on the machine, with torch for CUDA and transformers 5
#
# PAYLOAD may be a folder into which it was unpacked. CARD, such as 90, keeps the machine code of cards of that compute
# capability alone: 48 MB for 130. MODEL is a checkpoint of a Llama and LUTQ the binary, which quantizes it in every way. Every
# folder is opened in a process of its own, all beside each other, with FOLDER of the table in OUT/FOLDER.log; those that are
# divided take two GPUs where there are two. OUT/table.md is the table. ONLY, a regular expression, chooses among its rows.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n 's/^#   //p' "$0" >&2; exit 2; }

case ${1-} in
    prepare)
        [ $# -ge 2 ] || usage
        exec python3 "$here/vllm_run.py" prepare "$here/requirements-vllm-gpu.txt" "${@:2}"
        ;;
    run) [ $# -ge 5 ] || usage ;;
    *) usage ;;
esac

payload=$(readlink -f "$2") lutq=$(readlink -f "$3") model=$(readlink -f "$4") out=$5 limit=${6:-600}
mkdir -p "$out"
out=$(readlink -f "$out")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "[${SECONDS} s] $*"; }

# What vLLM imports and these folders do without is stood in for. Real packages win.
mkdir "$work/first"
cat >"$work/first/sitecustomize.py" <<'PY'
import importlib.abc, importlib.machinery, os, sys, types


class Nothing(type):
    """Classes whose attributes are such classes: names to import, inherit from and annotate with."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return nothing(name)

    def __or__(cls, other):
        return object

    __ror__ = __or__


def nothing(name):
    def schema(cls, source, handler):
        from pydantic_core import core_schema

        return core_schema.any_schema()

    def call(self, *args, **options):  # a decorator too
        return args[0] if args else self

    return Nothing(name, (), {
        "__init__": lambda self, *args, **options: None, "__call__": call,
        "__class_getitem__": classmethod(lambda cls, item: cls), "__get_pydantic_core_schema__": classmethod(schema),
    })


class Empty(types.ModuleType):
    __path__, __version__ = [], "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, nothing(name))
        return self.__dict__[name]


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        known = name.partition(".")[0] in os.environ.get("STAND_INS", "").split(",")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())
PY

python3 "$here/vllm_run.py" folders "$lutq" "$model" "$work/folders" >"$out/folders.log" 2>&1 &
folders=$!
if [ -d "$payload" ]; then
    ln -s "$payload/pay" "$payload/site" "$work"
else
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1], "r:xz").extractall(sys.argv[2], filter="fully_trusted")' "$payload" "$work"
fi
export STAND_INS=openai_harmony,llguidance,xgrammar,humming,watchfiles,mistral_common
vllm=$work/first:$work/pay:$work/site:$(readlink -f "$here/../formats/lutq")
timeout 60 python3 -m compileall -q -j 0 "$work/pay" "$work/site" >/dev/null 2>&1 || true
say "$(python3 -c 'import torch; print(torch.cuda.device_count(), "x", torch.cuda.get_device_name(0), "torch", torch.__version__)')"

# A plugin is found by the entry point of what is installed; here it is not.
mkdir -p "$work/first/lutq_python-1.dist-info"
printf '[vllm.general_plugins]\nlutq = lutq_vllm:register\n' >"$work/first/lutq_python-1.dist-info/entry_points.txt"
printf 'Metadata-Version: 2.1\nName: lutq-python\nVersion: 1\n' >"$work/first/lutq_python-1.dist-info/METADATA"

# The card's, where the machine keeps it apart. Nothing leaves the machine.
[ ! -d /usr/local/nvidia/lib64 ] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/nvidia/lib64
export LUTQ=$lutq HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 TOKENIZERS_PARALLELISM=false TRANSFORMERS_VERBOSITY=error OMP_NUM_THREADS=2
export VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo NCCL_NVLS_ENABLE=0
export VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_WORKER_MULTIPROC_METHOD=spawn TRITON_CACHE_DIR=$work/triton

# Names of packages that are missing still are taken from what is said of them.
for _ in 1 2 3 4 5 6 7 8; do
    if PYTHONPATH=$vllm timeout 100 python3 -c 'from vllm import LLM; import vllm._C, vllm.v1.worker.gpu_worker, lutq_vllm' >"$out/import.log" 2>&1; then
        break
    fi
    missing=$(grep -oP "No module named '\K[^'.]+" "$out/import.log" | tail -n 1)
    if [ -z "$missing" ] || [[ ,$STAND_INS, == *,$missing,* ]]; then
        tail -n 5 "$out/import.log"
        exit 1
    fi
    say "$missing is missing, and stood in for"
    STAND_INS=$STAND_INS,$missing
done
wait $folders || { tail -n 5 "$out/folders.log"; exit 1; }
say "folders are written, vLLM can be imported"
PYTHONPATH=$vllm python3 "$here/vllm_run.py" open "$work/folders" "$out" $((limit - SECONDS - 45))
say "folders have been opened"
python3 "$here/vllm_run.py" table "$work/folders" "$out"
say done
