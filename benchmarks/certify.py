"""Certify every layer of a ResNet-50-shaped network at 224 × 224, and recheck it: processor time
and peak memory.

    python -m benchmarks.certify [--verified] [--json FILE]

One thread.  Conversion and certification are timed separately; the recheck runs in its own process,
without torch, and with ``--verified`` once more, together with the checker that is proved in Coq.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

import construct
import verify
from benchmarks.results import Row, publish
from benchmarks.shapes import NETWORKS
from verify.argument import documents


def rows(verified: bool) -> Iterator[Row]:
    """The figures."""
    layers = list(NETWORKS["ResNet-50"]())
    started = time.process_time()
    converted = [construct.conv_to_mhsa(conv) for conv, _ in layers]
    yield Row(f"convert {len(layers)} layers", (time.process_time() - started,), unit="s")
    started = time.process_time()
    certificates = [
        verify.certify(conv, layer, grid=size[2:])
        for (conv, size), layer in zip(layers, converted, strict=True)
    ]
    yield Row("certify them", (time.process_time() - started,), unit="s")
    yield Row(
        "peak memory", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,), unit="GiB"
    )
    yield Row(
        "layers PROVED",
        (sum(certificate.verdict.name == "PROVED" for certificate in certificates),),
    )

    names = [f"convolution_{number}" for number in range(len(layers))]
    with tempfile.TemporaryDirectory() as folder:
        conv_file, mhsa_file, document = (
            Path(folder) / name for name in ("c.pt", "a.pt", "certificate.json")
        )
        torch.save(
            nn.ModuleDict({n: conv for n, (conv, _) in zip(names, layers, strict=True)}), conv_file
        )
        torch.save(nn.ModuleDict(dict(zip(names, converted, strict=True))), mhsa_file)
        documents.write_document(
            document, list(zip(names, certificates, strict=True)), conv_file, mhsa_file
        )
        command = [
            sys.executable,
            "-m",
            "verify",
            "check",
            document,
            "--conv",
            conv_file,
            "--mhsa",
            mhsa_file,
        ]
        for more in ([], ["--verified"]) if verified else ([],):
            what = " ".join(["recheck them", *more])
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            result = subprocess.run(
                [*map(str, command), *more], capture_output=True, text=True, check=False
            )
            if result.returncode:
                raise SystemExit((result.stdout or result.stderr).strip().splitlines()[-1])
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            yield Row(
                what,
                (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,),
                unit="s",
            )
            yield Row(f"{what}, peak memory", (after.ru_maxrss / 2**20,), unit="GiB")
            if more:
                bounds = result.stdout.count("; in float32 a difference of at most")
                yield Row("bounds in float32 by the verified checker", (bounds,))


def main(words: Sequence[str] | None = None) -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.certify", description="Certify a ResNet-50."
    )
    parser.add_argument(
        "--verified", action="store_true", help="recheck with the checker extracted from Coq, too"
    )
    parser.add_argument("--json", type=Path, help="write all measurements")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    publish("python -m benchmarks.certify", rows(options.verified), options.json)


if __name__ == "__main__":
    main()
