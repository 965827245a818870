"""How scripts that sweep call lutq."""

import json
import subprocess
import sys
from pathlib import Path


def lutq(binary: str, *args: str) -> dict:
    """What a command prints as JSON. Its messages go on to the terminal; where it fails, so does the script."""
    r = subprocess.run([binary, *args, "--quiet", "--json"], stdout=subprocess.PIPE, text=True)
    if r.returncode:
        sys.exit(f"{Path(sys.argv[0]).stem}: lutq {args[0]} ended with {r.returncode}")
    return json.loads(r.stdout)


def own_and_passed(args: list[str]) -> tuple[list[str], list[str]]:
    """The arguments before -- and those behind it."""
    if "--" not in args:
        return args, []
    at = args.index("--")
    return args[:at], args[at + 1 :]
