"""Writes what the tests of formats/parquet read: small files by pyarrow, and what pyarrow reads in them, as JSON.

python scripts/parquet_check.py formats/parquet/testdata
"""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq


def flat(rows):
    n = range(rows)
    return pa.table({
        "small": pa.array([i - 3 for i in n], pa.int32()),
        "large": pa.array([None if i % 5 == 4 else (i - 2) * 10**15 for i in n], pa.int64()),
        "byte": pa.array([(200 + i) % 256 for i in n], pa.uint8()),
        "word": pa.array([2**32 - 1 - i for i in n], pa.uint32()),
        "half": pa.array([i / 4 for i in n], pa.float32()),
        "number": pa.array([None if i == 1 else i / 8 for i in n], pa.float64()),
        "yes": pa.array([None if i % 7 == 6 else i % 3 == 0 for i in n], pa.bool_()),
        "text": pa.array([None if i % 4 == 3 else f"Käse {i % 11}" for i in n], pa.string()),
        "long": pa.array(["x" * (i % 50) for i in n], pa.large_string()),
        "nothing": pa.array([None for _ in n], pa.string()),
    })


def nested(rows):
    n = range(rows)
    return pa.table({
        "question": pa.array([f"Why {i}?" for i in n]),
        "choices": pa.array(
            [None if i % 6 == 5 else {"text": [f"a{i}", None, f"c{i}"][: i % 4], "label": ["A", "B", "C"][: i % 4]} for i in n],
            pa.struct([("text", pa.list_(pa.string())), ("label", pa.list_(pa.string()))]),
        ),
        "endings": pa.array([None if i % 5 == 3 else [f"e{j}" for j in range(i % 3)] for i in n], pa.list_(pa.string())),
        "lists": pa.array([[[1, 2], [], None, [i]][: i % 5] for i in n], pa.list_(pa.list_(pa.int64()))),
        "pairs": pa.array(
            [[{"k": f"k{j}", "v": None if j == 1 else {"n": j}} for j in range(i % 4)] for i in n],
            pa.list_(pa.struct([("k", pa.string()), ("v", pa.struct([("n", pa.int32())]))])),
        ),
        "answer": pa.array([i % 4 for i in n], pa.int64()),
    })


FILES = {
    "flat": (flat(30), {}),
    "nested": (nested(30), {}),
    "plain": (nested(30), {"compression": "none", "use_dictionary": False}),
    "flat-plain": (flat(30), {"compression": "none", "use_dictionary": False}),
    "gzip": (nested(9), {"compression": "gzip"}),
    "zstd": (nested(9), {"compression": "zstd"}),
    "pages": (nested(100), {"data_page_size": 64, "row_group_size": 40, "write_batch_size": 16}),
    "version2": (flat(30), {"data_page_version": "2.0"}),
    "version2-nested": (nested(30), {"data_page_version": "2.0", "compression": "zstd"}),
    "version2-plain": (flat(30), {"data_page_version": "2.0", "use_dictionary": False, "compression": "gzip"}),
    "bytes": (pa.table({"raw": pa.array([b"\xff\x00", None, b""], pa.binary())}), {}),
    "empty": (nested(0), {}),
}
# What is not read, and why.
OTHERS = {
    "brotli": (nested(2), {"compression": "brotli"}),
    "delta": (pa.table({"n": pa.array([1, 2, 3])}), {"use_dictionary": False, "column_encoding": {"n": "DELTA_BINARY_PACKED"}}),
    "decimal": (pa.table({"n": pa.array([1, 2], pa.int64()).cast(pa.decimal128(38, 2))}), {}),
}


def main(out):
    for name, (table, options) in {**FILES, **OTHERS}.items():
        pq.write_table(table, f"{out}/{name}.parquet", **options)
        if name in FILES and name != "bytes":
            with open(f"{out}/{name}.json", "w") as f:
                json.dump(pq.read_table(f"{out}/{name}.parquet").to_pylist(), f, ensure_ascii=False)


main(sys.argv[1])
