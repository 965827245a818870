"""Writes what the tests of package tasks read of data sets on the hub: for each known task small files in its data set's layout and
columns, by pyarrow, and what lm-evaluation-harness asks about them, without a model.

python scripts/tasks_hub.py calib/tasks/testdata/hub   # with lm_eval 0.4.13
"""

import json
import os
import pathlib
import random
import sys

import pyarrow as pa
import pyarrow.parquet as pq

os.environ["HF_DATASETS_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"
out = pathlib.Path(sys.argv[1])
rng = random.Random(1)
WORDS = "harbour light rope engine gull tide crane letter barge winter glass music bridge paper storm".split()


def words(n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def sentence(n=5):
    return words(n).capitalize() + "."


STRINGS = pa.list_(pa.string())
CHOICES = pa.struct([("text", STRINGS), ("label", STRINGS)])


def arc(n, labels="ABCD"):
    rows = []
    for i in range(n):
        names = list("1234" if i % 3 == 2 else labels)[: 3 + i % 2]
        rows.append({"id": f"q{i}", "question": sentence() + " Why?", "choices": {"text": [words(2) for _ in names], "label": names}, "answerKey": names[i % len(names)]})
    return pa.Table.from_pylist(rows, pa.schema([("id", pa.string()), ("question", pa.string()), ("choices", CHOICES), ("answerKey", pa.string())]))


def hellaswag(n):
    rows = [{
        "ind": i, "activity_label": words(2).title(), "ctx_a": "[header] " + sentence() + " [title] " + words(3), "ctx_b": words(2), "ctx": "",
        "endings": [f" {words(3)} [step] {words(2)}." for _ in range(4)], "source_id": "x", "split": "val", "split_type": "zeroshot", "label": str(i % 4),
    } for i in range(n)]
    return pa.Table.from_pylist(rows, pa.schema([("ind", pa.int32()), *[(c, pa.string()) for c in ("activity_label", "ctx_a", "ctx_b", "ctx")], ("endings", STRINGS), *[(c, pa.string()) for c in ("source_id", "split", "split_type", "label")]]))


def winogrande(n):
    return pa.Table.from_pylist([{"sentence": f"{words(3).capitalize()} because the _ {words(3)}.", "option1": words(1), "option2": words(1), "answer": str(1 + i % 2)} for i in range(n)])


def piqa(n):
    return pa.Table.from_pylist([{"goal": sentence(), "sol1": sentence(4), "sol2": sentence(3), "label": i % 2} for i in range(n)])


def boolq(n):
    rows = [{"question": words(5), "passage": sentence(9), "idx": i, "label": (i // 2) % 2} for i in range(n)]
    return pa.Table.from_pylist(rows, pa.schema([("question", pa.string()), ("passage", pa.string()), ("idx", pa.int32()), ("label", pa.int64())]))


def openbookqa(n):
    return arc(n).rename_columns(["id", "question_stem", "choices", "answerKey"])


SUBJECTS = ["abstract_algebra", "anatomy", "high_school_us_history"]


def mmlu(n, subject):
    rows = [{"question": sentence() + (" " if i % 2 else ""), "subject": subject, "choices": [words(2) for _ in range(4)], "answer": i % 4} for i in range(n)]
    return pa.Table.from_pylist(rows, pa.schema([("question", pa.string()), ("subject", pa.string()), ("choices", STRINGS), ("answer", pa.int64())]))


def lambada(n):
    return pa.Table.from_pylist([{"text": sentence(6) + " " + words(7)} for _ in range(n)])


SETS = {
    "arc_easy": ("arc/arc_easy.yaml", "allenai/ai2_arc", "ARC-Easy", arc, ["train", "validation", "test"]),
    "arc_challenge": ("arc/arc_challenge.yaml", "allenai/ai2_arc", "ARC-Challenge", arc, ["train", "validation", "test"]),
    "hellaswag": ("hellaswag/hellaswag.yaml", "Rowan/hellaswag", "default", hellaswag, ["train", "validation"]),
    "winogrande": ("winogrande/default.yaml", "allenai/winogrande", "winogrande_xl", winogrande, ["train", "validation"]),
    "piqa": ("piqa/piqa.yaml", "baber/piqa", "default", piqa, ["train", "validation"]),
    "boolq": ("super_glue/boolq/default.yaml", "aps/super_glue", "boolq", boolq, ["train", "validation"]),
    "openbookqa": ("openbookqa/openbookqa.yaml", "allenai/openbookqa", "main", openbookqa, ["train", "validation", "test"]),
    "lambada_openai": ("lambada/lambada_openai.yaml", "EleutherAI/lambada_openai", "default", lambada, ["test"]),
    **{f"mmlu_{s}": (f"mmlu/default/mmlu_{s}.yaml", "cais/mmlu", s, lambda n, s=s: mmlu(n, s), ["dev", "test"]) for s in SUBJECTS},
}


def write(table, repo, config, split):
    path = out / repo / config / split / "0000.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return str(path)


def asked(spec, files, shots):
    import lm_eval.tasks
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    root = pathlib.Path(lm_eval.tasks.__file__).parent
    config = load_yaml(root / spec)
    for key in ("tag", "group", "dataset_name"):
        config.pop(key, None)
    config.update(dataset_path="parquet", dataset_name=None, dataset_kwargs={"data_files": files}, num_fewshot=shots)
    task = ConfigurableTask(config=config)
    task.set_fewshot_seed(1234)
    task.build_all_requests(limit=None, rank=0, world_size=1)
    requests = {}
    for r in task.instances:
        requests.setdefault(r.doc_id, []).append(list(r.args))
    return [requests[i] for i in sorted(requests)]


def main():
    golden, alls = {}, {"dev": [], "test": []}
    for name, (spec, repo, config, make, splits) in SETS.items():
        tables = {split: make(4 if split != "dev" else 5) for split in splits}
        files = {split: write(table, repo, config, split) for split, table in tables.items()}
        if repo == "cais/mmlu":
            for split, table in tables.items():
                alls[split].append(table)
        golden[name] = {str(shots): asked(spec, files, shots) for shots in ((0,) if name == "lambada_openai" else (0, 2))}
    for split, tables in alls.items():
        write(pa.concat_tables(tables), "cais/mmlu", "all", split)
    (out / "asked.json").write_text(json.dumps(golden, ensure_ascii=False, indent=0))


main()
