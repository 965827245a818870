#!/usr/bin/env python3
"""Multiple-choice tasks by lutq and by lm-evaluation-harness, on the same items: log-likelihoods and answers.

    scripts/tasks_check.py WORK --lutq BINARY --model DIR… --text FILE [--items 200]
    scripts/tasks_check.py WORK --model DIR --text FILE --items 3 --golden calib/tasks/testdata/lm_eval.json

Items are made of the text, in the formats of five known tasks: words to choose (arc), what comes next (hellaswag),
a gap (winogrande), yes or no (boolq), the last word (lambada); and with examples before them, drawn (arc) and the first
(mmlu). Both programs read the same task files and JSONL from WORK. lm-evaluation-harness runs transformers on the CPU in
float32. Prints a row for each model and task, and exits with 1 where an answer differs that is no tie.

Needs lm_eval 0.4.13, transformers 5.24.0, torch, accelerate.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

ARC = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{train: {work}/{name}.train.jsonl, test: {work}/{name}.jsonl}}}}
output_type: multiple_choice
training_split: train
test_split: test
num_fewshot: {shots}
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{choices.label.index(answerKey)}}}}"
doc_to_choice: "{{{{choices.text}}}}"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""
TASKS = {
    "words": ARC,
    "words3": ARC,
    "next": """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {work}/{name}.jsonl}}}}
output_type: multiple_choice
validation_split: validation
num_fewshot: 0
doc_to_text: "{{{{query}}}}"
doc_to_target: "{{{{label}}}}"
doc_to_choice: choices
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
""",
    "gap": """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {work}/{name}.jsonl}}}}
output_type: multiple_choice
validation_split: validation
num_fewshot: {shots}
doc_to_text: "{{{{ {{'1': 0, '2': 1}}[answer] }}}}"
doc_to_target: "{{{{ sentence.split('_', 1)[1].strip() }}}}"
doc_to_choice: "{{{{ [sentence.split('_', 1)[0] + option1, sentence.split('_', 1)[0] + option2] }}}}"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
""",
    "yesno": """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {work}/{name}.jsonl}}}}
output_type: multiple_choice
validation_split: validation
num_fewshot: 0
doc_to_text: "{{{{passage}}}}\\nQuestion: {{{{question}}}}?\\nAnswer:"
doc_to_target: label
doc_to_choice: ["no", "yes"]
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
""",
    "letters": """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{dev: {work}/{name}.train.jsonl, test: {work}/{name}.jsonl}}}}
output_type: multiple_choice
test_split: test
fewshot_split: dev
num_fewshot: {shots}
fewshot_config: {{sampler: first_n}}
description: "The following are multiple choice questions (with answers).\\n\\n"
doc_to_text: "{{{{question.strip()}}}}\\nA. {{{{choices[0]}}}}\\nB. {{{{choices[1]}}}}\\nC. {{{{choices[2]}}}}\\nD. {{{{choices[3]}}}}\\nAnswer:"
doc_to_choice: ["A", "B", "C", "D"]
doc_to_target: answer
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
""",
    "last": """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {work}/{name}.jsonl}}}}
output_type: loglikelihood
test_split: test
num_fewshot: 0
doc_to_text: "{{{{text.split(' ')[:-1]|join(' ')}}}}"
doc_to_target: "{{{{' '+text.split(' ')[-1]}}}}"
metric_list:
  - {{metric: perplexity, aggregation: perplexity, higher_is_better: false}}
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
""",
}
SHOTS = {"words3": 3, "gap": 2, "letters": 5}


def sentences(text: str) -> list[str]:
    text = re.sub(r"\s+", " ", text)
    return [s for s in re.split(r"(?<=[.!?]) (?=[A-Z])", text) if 8 <= len(s.split()) <= 40]


def last_word(rng, all_sentences):
    """A sentence up to its last word, and that word."""
    while True:
        m = re.match(r"(.* \S+) ([A-Za-z]{3,})[^A-Za-z ]*( [^A-Za-z ]+)*$", rng.choice(all_sentences))
        if m:
            return m[1], m[2]


def words(rng, all_sentences):
    """A sentence without its last word, and four words to choose from."""
    body, word = last_word(rng, all_sentences)
    others = []
    while len(others) < 3:
        _, other = last_word(rng, all_sentences)
        if other not in others and other != word:
            others.append(other)
    choices = others + [word]
    rng.shuffle(choices)
    return body, choices, choices.index(word)


def item(name, rng, s):
    if name in ("words", "words3"):
        body, choices, gold = words(rng, s)
        labels = ["A", "B", "C", "D"]
        return {"question": body, "choices": {"text": choices, "label": labels}, "answerKey": labels[gold]}
    if name == "letters":
        body, choices, gold = words(rng, s)
        return {"question": body, "choices": choices, "answer": gold}
    if name == "next":
        at = rng.randrange(len(s) - 1)
        choices = [rng.choice(s) for _ in range(3)] + [s[at + 1]]
        rng.shuffle(choices)
        return {"query": s[at], "choices": choices, "label": str(choices.index(s[at + 1]))}
    if name == "gap":
        body = s[rng.randrange(len(s))].split()
        at = rng.randrange(2, len(body) - 2)
        word, other = body[at], rng.choice(rng.choice(s).split())
        body[at] = "_"
        options, gold = ([word, other], "1") if rng.random() < 0.5 else ([other, word], "2")
        return {"sentence": " ".join(body), "option1": options[0], "option2": options[1], "answer": gold}
    if name == "yesno":
        passage = s[rng.randrange(len(s))]
        label = rng.randrange(2)
        word = rng.choice((passage if label else rng.choice(s)).split())
        return {"passage": passage, "question": f"is the word {word} in this passage", "label": int(word in passage.split())}
    return {"text": " ".join(last_word(rng, s))}


def make(work: Path, text: str, items: int):
    s = sentences(text)
    for k, (name, config) in enumerate(TASKS.items()):
        rng = random.Random(k)
        for part, n in (("", items), (".train", 4 * items)):
            if part and ".train" not in config:
                continue
            with open(work / f"{name}{part}.jsonl", "w") as f:
                for i in range(n):
                    f.write(json.dumps(item(name, rng, s), ensure_ascii=bool(i % 2)) + "\n")
        (work / f"{name}.yaml").write_text(config.format(name=name, work=work.resolve(), shots=SHOTS.get(name, 0)))


def by_lm_eval(work: Path, model: str, threads: int):
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", HF_DATASETS_CACHE=str(work / "cache"))
    import lm_eval
    import torch
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import PreTrainedTokenizerFast

    torch.set_num_threads(threads)
    # Some tokenizer classes of transformers 5 have steps of their own in place of those of tokenizer.json.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    r = lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, dtype="float32", device="cpu", batch_size=8), tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(work), include_defaults=False), log_samples=True, bootstrap_iters=100,
    )
    out = {"lm_eval": lm_eval.__version__, "results": r["results"], "samples": {}}
    for name, samples in r["samples"].items():
        samples.sort(key=lambda x: x["doc_id"])
        out["samples"][name] = [
            {
                "requests": [list(a)[:2] for a in x["arguments"]],
                "log_likelihoods": [float(y[0][0]) for y in x["resps"]],
                "greedy": [y[0][1] in (True, "True") for y in x["resps"]],
                **{m: x[m] for m in ("acc", "acc_norm") if m in x},
            }
            for x in samples
        ]
    return out


def by_lutq(work: Path, lutq: str, model: str):
    path = work / "lutq.jsonl"
    path.unlink(missing_ok=True)
    tasks = [a for name in TASKS for a in ("--tasks", str(work / f"{name}.yaml"))]
    r = subprocess.run([lutq, "eval-tasks", model, *tasks, "--items", str(path), "--device", "cpu", "--json", "-q"], stdout=subprocess.PIPE, check=True)
    out = {"results": {x["task"]: x for x in json.loads(r.stdout)["results"]}, "samples": {}}
    for line in path.read_text().splitlines():
        x = json.loads(line)
        out["samples"].setdefault(x["task"], []).append(x)
    return out


def compare(model: str, theirs, ours) -> bool:
    ok = True
    for name in TASKS:
        a, b = theirs["samples"][name], ours["samples"][name]
        if len(a) != len(b):
            sys.exit(f"{name}: {len(a)} and {len(b)} items")
        worst = relative = 0.0
        count = differ = ties = 0
        for x, y in zip(a, b):
            if len(x["log_likelihoods"]) != len(y["log_likelihoods"]):
                sys.exit(f"{name}: other requests")
            for p, q in zip(x["log_likelihoods"], y["log_likelihoods"]):
                worst, relative, count = max(worst, abs(p - q)), max(relative, abs(p - q) / max(abs(p), 1)), count + 1
            same = x["acc"] == float(y["right"]) and x.get("acc_norm", float(y["right_norm"])) == float(y["right_norm"])
            if x["greedy"] != y["greedy"]:
                same = False
            if not same:
                differ += 1
        r, s = theirs["results"][name], ours["results"][name]
        stderr = abs(r["acc_stderr,none"] - s["accuracy_stderr"])
        print(f"{Path(model).name:14} {name:8} items {len(a)} requests {count} |Δll| ≤ {worst:.2e}, relative to max(|ll|, 1) ≤ {relative:.2e}, "
              f"answers differ {differ}, acc {r['acc,none']:.4f} / {s['accuracy']:.4f}, |Δstderr| {stderr:.1e}"
              + (f", ppl {r['perplexity,none']:.4f} / {s['perplexity']:.4f}" if "perplexity,none" in r else ""), flush=True)
        ok = ok and differ == 0 and relative < 1e-5
    return ok


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("work", type=Path)
    p.add_argument("--lutq")
    p.add_argument("--model", action="append", default=[], help="none: only the items are made")
    p.add_argument("--text", required=True)
    p.add_argument("--items", type=int, default=200)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--golden", type=Path, help="write what lm-evaluation-harness finds, and the task files and items, into this file")
    p.add_argument("--only", help="names of tasks, with commas between")
    o = p.parse_args()
    if o.only:
        for name in set(TASKS) - set(o.only.split(",")):
            del TASKS[name]
    o.work.mkdir(parents=True, exist_ok=True)
    make(o.work, Path(o.text).read_text(), o.items)
    ok = True
    for model in o.model:
        theirs = by_lm_eval(o.work, model, o.threads)
        if o.golden:
            files = {f.name: f.read_text().replace(str(o.work.resolve()) + "/", "") for f in sorted(o.work.glob("*.yaml")) + sorted(o.work.glob("*[a-z0-9].jsonl")) if f.name != "lutq.jsonl"}
            o.golden.write_text(json.dumps({"lm_eval": theirs["lm_eval"], "files": files, "samples": theirs["samples"]}, indent=1, ensure_ascii=False) + "\n")
        if o.lutq:
            ok = compare(model, theirs, by_lutq(o.work, o.lutq, model)) and ok
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
