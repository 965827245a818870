#!/usr/bin/env python3
"""Holds lutq's use of the Hugging Face cache against huggingface_hub and transformers.

    scripts/hub_check.py --lutq .cache/lutq calib/testdata/lutq-tiny

A server on loopback has the model as org/tiny. What lutq downloads, transformers opens offline by its name, and the other way
round. While one program has the lock of a file, the other waits. The data of a task that lutq downloads, huggingface_hub finds in the
branch of converted files, and the other way round.
"""

import argparse
import fcntl
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

COMMIT = "c" * 40
DATA = pathlib.Path(__file__).resolve().parent.parent / "calib/tasks/testdata/hub"
SET, BRANCH, SPLIT = "baber/piqa", "refs/convert/parquet", "default/validation/0000.parquet"


def git_sum(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def serve(folder):
    files = {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}

    def large(name):
        return name.endswith(".safetensors")

    def sum_of(name):
        return hashlib.sha256(files[name]).hexdigest() if large(name) else git_sum(files[name])

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        requests = []

        def log_message(self, *_):
            pass

        def answer(self, status, data=b"", **headers):
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def do_GET(self):
            path = self.path.partition("?")[0]
            self.requests.append(f"{self.command} {path}")
            if path in ("/api/models/org/tiny", "/api/models/org/tiny/revision/main", f"/api/models/org/tiny/revision/{COMMIT}"):
                siblings = []
                for name, data in files.items():
                    f = {"rfilename": name, "size": len(data), "blobId": git_sum(data)}
                    if large(name):
                        f["lfs"] = {"sha256": sum_of(name), "size": len(data), "pointerSize": 134}
                    siblings.append(f)
                self.answer(200, json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).encode(), Content_Type="application/json")
                return
            if path == f"/api/models/org/tiny/tree/{COMMIT}":
                tree = []
                for name, data in files.items():
                    f = {"type": "file", "path": name, "size": len(data), "oid": git_sum(data)}
                    if large(name):
                        f["lfs"] = {"oid": sum_of(name), "size": len(data), "pointerSize": 134}
                    tree.append(f)
                self.answer(200, json.dumps(tree).encode(), Content_Type="application/json")
                return
            table = (DATA / SET / SPLIT).read_bytes()
            table_sum = hashlib.sha256(table).hexdigest()
            if urllib.parse.unquote(path) in (f"/api/datasets/{SET}/revision/{BRANCH}", f"/api/datasets/{SET}/revision/{COMMIT}"):
                siblings = [{"rfilename": SPLIT, "size": len(table), "lfs": {"sha256": table_sum, "size": len(table), "pointerSize": 134}}]
                self.answer(200, json.dumps({"id": SET, "sha": COMMIT, "siblings": siblings}).encode(), Content_Type="application/json")
                return
            if urllib.parse.unquote(path) in (f"/datasets/{SET}/resolve/{BRANCH}/{SPLIT}", f"/datasets/{SET}/resolve/{COMMIT}/{SPLIT}"):
                self.answer(200, table, ETag=f'"{table_sum}"', X_Repo_Commit=COMMIT)
                return
            for revision in ("main", COMMIT):
                start = f"/org/tiny/resolve/{revision}/"
                if path.startswith(start) and path.removeprefix(start) in files:
                    name = path.removeprefix(start)
                    self.answer(200, files[name], ETag=f'"{sum_of(name)}"', X_Repo_Commit=COMMIT)
                    return
            self.answer(404, X_Error_Code="EntryNotFound" if "/org/tiny/" in path else "RepoNotFound", X_Repo_Commit=COMMIT)

        do_HEAD = do_GET

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}", Handler.requests


PYTHON = """
import sys, transformers
m = transformers.AutoModelForCausalLM.from_pretrained("org/tiny")
t = transformers.AutoTokenizer.from_pretrained("org/tiny")
print(sum(p.numel() for p in m.parameters()), *t("She looked at the sea", add_special_tokens=False).input_ids)
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lutq", required=True)
    parser.add_argument("model", type=pathlib.Path)
    args = parser.parse_args()
    url, requests = serve(args.model)
    work = pathlib.Path(tempfile.mkdtemp())
    text = work / "text"
    text.write_text("She looked at the sea")

    def run(cache, *command, offline=False):
        env = os.environ | {"HF_ENDPOINT": url, "HF_HUB_CACHE": str(work / cache), "HF_HOME": str(work / "home"), "HF_HUB_OFFLINE": "1" if offline else "0"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=work)
        if done.returncode:
            sys.exit(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    lutq = str(pathlib.Path(args.lutq).resolve())
    want = run("none", lutq, "tokenize", str(args.model.resolve()), "--text", str(text))

    def opened(cache):
        got = run(cache, sys.executable, "-c", PYTHON, offline=True).split()
        if got[1:] != want.split():
            sys.exit(f"{cache}: transformers has the tokens {got[1:]}, want {want}")
        if run(cache, lutq, "tokenize", "org/tiny", "--offline", "--text", str(text)) != want:
            sys.exit(f"{cache}: lutq has other tokens")
        run(cache, lutq, "inspect", "org/tiny", "--offline")

    run("ours", lutq, "inspect", "org/tiny")
    opened("ours")
    print("transformers opens offline what lutq downloaded")

    run("theirs", sys.executable, "-c", 'import huggingface_hub; huggingface_hub.snapshot_download("org/tiny")')
    opened("theirs")
    before = len(requests)
    run("theirs", lutq, "inspect", "org/tiny")
    again = [r for r in requests[before:] if "/resolve/" in r]
    if again:
        sys.exit(f"lutq asked for what huggingface_hub had downloaded: {again}")
    print("lutq opens what huggingface_hub downloaded")

    run("transformers", sys.executable, "-c", PYTHON)
    before = len(requests)
    run("transformers", lutq, "inspect", "org/tiny")
    again = [r for r in requests[before:] if "/resolve/" in r]
    print(f"of what transformers downloaded lutq asked for {len(again)} more files: {again}")
    if any("model.safetensors" in r for r in again):
        sys.exit("the weights came twice")

    def names(cache):
        root = work / cache / "models--org--tiny"
        return {str(p.relative_to(root)): os.readlink(p) if p.is_symlink() else "" for p in root.rglob("*") if not p.is_dir() and ".no_exist" not in p.parts}

    ours, theirs = names("ours"), names("theirs")
    for name in sorted(ours):
        if theirs.get(name) != ours[name]:
            sys.exit(f"{name} -> {ours[name]!r}, and huggingface_hub has {theirs.get(name)!r}")
    print(f"{len(ours)} names and links are those of huggingface_hub, which has {len(theirs)}")

    # The data of a task.
    find = f"import huggingface_hub as h; print(h.hf_hub_download('{SET}', '{SPLIT}', repo_type='dataset', revision='{BRANCH}'))"
    ask = [lutq, "eval-tasks", str(args.model.resolve()), "--tasks", "piqa", "--device", "cpu", "--json"]
    ours = json.loads(run("our data", *ask))
    found = run("our data", sys.executable, "-c", find, offline=True)
    if pathlib.Path(found).read_bytes() != (DATA / SET / SPLIT).read_bytes():
        sys.exit(f"huggingface_hub finds other data, {found}")
    run("their data", sys.executable, "-c", find)
    before = len(requests)
    if json.loads(run("their data", *ask, offline=True))["data"] != ours["data"] or len(requests) > before:
        sys.exit("lutq finds other data than it downloads")
    print("of a task's data each finds what the other downloaded")

    # A lock that another program holds.
    name = hashlib.sha256((args.model / "model.safetensors").read_bytes()).hexdigest()
    lock = work / "locked" / ".locks" / "models--org--tiny" / f"{name}.lock"
    lock.parent.mkdir(parents=True)
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        env = os.environ | {"HF_ENDPOINT": url, "HF_HUB_CACHE": str(work / "locked"), "HF_HOME": str(work / "home"), "HF_HUB_OFFLINE": "0"}
        waiting = subprocess.Popen([lutq, "inspect", "org/tiny"], env=env, stdout=subprocess.DEVNULL)
        time.sleep(2)
        if waiting.poll() is not None or (work / "locked" / "models--org--tiny" / "blobs" / name).exists():
            sys.exit("lutq does not wait for the lock")
        fcntl.flock(held, fcntl.LOCK_UN)
    if waiting.wait(20):
        sys.exit("lutq fails after the lock is free")
    print("lutq waits while another program has the lock")
    shutil.rmtree(work)


main()
