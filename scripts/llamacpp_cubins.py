#!/usr/bin/env python3
"""Compiles the PTX in llama.cpp's prebuilt libggml-cuda.so, for GPUs that it holds no machine code of.

    scripts/llamacpp_cubins.py libggml-cuda.so OUT.so --bin DIR [--arch 90] [--jobs N]

The library of node-llama-cpp has machine code for a few GPUs and PTX for the others, which the driver compiles, unless it is older
than the compiler that wrote the PTX (PTX 9.1 needs a driver of CUDA 13.1). Machine code of the same compiler runs on any
driver of the same major version. DIR holds ptxas and fatbinary of that compiler (PyPI's nvidia-cuda-nvcc has them in
nvidia/cu13/bin). OUT is the same library with nothing but that machine code in its place, all else of the section zeros.
Needs zstandard, and ten minutes of two processors.
"""

import argparse
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import zstandard

MAGIC, PTX, ZSTD = 0xBA55ED50, 1, 0x8000


def section(elf: bytes, name: bytes) -> tuple[int, int]:
    """Offset and size of a section of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    for h in headers:
        at = headers[names][4] + h[0]
        if elf[at : elf.index(b"\0", at)] == name:
            return h[4], h[5]
    sys.exit(f"no section {name.decode()}")


def fatbins(elf: bytes) -> Iterator[tuple[int, int, dict[int, bytes]]]:
    """Offset and size of each binary of many GPUs, one for a source file, and its PTX by architecture."""
    at, size = section(elf, b".nv_fatbin")
    end = at + size
    while at < end:
        magic, _, header, body = struct.unpack_from("<IHHQ", elf, at)
        if magic != MAGIC:  # what aligns the next
            at += 8
            continue
        ptx, image = {}, at + header
        while image < at + header + body:
            kind, _, skip, length, packed = struct.unpack_from("<HHIQI", elf, image)
            (arch,) = struct.unpack_from("<I", elf, image + 0x1C)
            flags, plain = struct.unpack_from("<Q8xQ", elf, image + 0x28)
            if kind == PTX:
                text = elf[image + skip : image + skip + (packed or length)]
                if flags & ZSTD:
                    text = zstandard.ZstdDecompressor().decompress(text, max_output_size=plain)
                ptx[arch] = text.rstrip(b"\0")
            image += skip + length
        yield at, header + body, ptx
        at += header + body


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("library", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--bin", type=Path, required=True, help="of ptxas and fatbinary")
    p.add_argument("--arch", type=int, default=90)
    p.add_argument("--jobs", type=int, default=2)
    a = p.parse_args()
    elf = bytearray(a.library.read_bytes())

    def compiled(ptx: bytes, room: int) -> bytes:
        with tempfile.TemporaryDirectory() as work:
            source, cubin, fatbin = (Path(work, n) for n in ("k.ptx", "k.cubin", "k.fatbin"))
            source.write_bytes(ptx)
            subprocess.run([a.bin / "ptxas", f"-arch=sm_{a.arch}", "-O3", source, "-o", cubin], check=True)
            image = f"--image3=kind=elf,sm={a.arch},file={cubin}"
            for how in ([], ["--compress-all", "--compress-mode", "size"]):
                subprocess.run([a.bin / "fatbinary", "--64", *how, "--create", fatbin, image], check=True)
                if fatbin.stat().st_size <= room:
                    return fatbin.read_bytes()
        sys.exit(f"machine code of {len(ptx)} bytes of PTX does not fit in {room}")

    found = list(fatbins(bytes(elf)))
    with ThreadPoolExecutor(a.jobs) as pool:
        codes = list(pool.map(lambda f: compiled(f[2][a.arch], f[1]), found))
    for (at, size, _), code in zip(found, codes):
        elf[at : at + size] = code.ljust(size, b"\0")
    a.out.write_bytes(elf)
    print(f"{len(found)} sources, {sum(map(len, codes)) / 1e6:.1f} MB of machine code for sm_{a.arch}")


if __name__ == "__main__":
    main()
