"""Certify every layer of a ResNet-50-shaped network at 224 × 224, and recheck it: processor time and peak memory.

    python -m benchmarks.certify [--verified]

One thread.  Conversion and certification are timed separately; the recheck runs in its own process, without torch, and with
``--verified`` once more, together with the checker that is proved in Coq.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import construct
import verify
from benchmarks.shapes import NETWORKS
from verify.argument import documents


def main() -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = list(NETWORKS["ResNet-50"]())
    started = time.process_time()
    converted = [construct.conv_to_mhsa(conv) for conv, _ in layers]
    print(f"convert {len(layers)} layers: {time.process_time() - started:.1f} s of processor time")
    started = time.process_time()
    certificates = [
        verify.certify(conv, layer, grid=size[2:]) for (conv, size), layer in zip(layers, converted, strict=True)
    ]
    spent = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    proved = sum(certificate.verdict.name == "PROVED" for certificate in certificates)
    print(f"certify: {spent:.1f} s of processor time, {proved} of {len(layers)} PROVED, peak memory {peak:.2f} GiB")

    names = [f"convolution_{number}" for number in range(len(layers))]
    with tempfile.TemporaryDirectory() as folder:
        conv_file, mhsa_file, document = (Path(folder) / name for name in ("c.pt", "a.pt", "certificate.json"))
        torch.save(nn.ModuleDict({n: conv for n, (conv, _) in zip(names, layers, strict=True)}), conv_file)
        torch.save(nn.ModuleDict(dict(zip(names, converted, strict=True))), mhsa_file)
        documents.write_document(document, list(zip(names, certificates, strict=True)), conv_file, mhsa_file)
        command = [sys.executable, "-m", "verify", "check", document, "--conv", conv_file, "--mhsa", mhsa_file]
        for more in ([], ["--verified"]) if "--verified" in sys.argv[1:] else ([],):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            result = subprocess.run([*map(str, command), *more], capture_output=True, text=True, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            peak = after.ru_maxrss / 2**20
            last = (result.stdout or result.stderr).strip().splitlines()[-1]
            print(f"recheck {' '.join(more)}: {spent:.1f} s of processor time, peak memory {peak:.2f} GiB, ", end="")
            print(f"exit code {result.returncode}: {last}")
            if more:
                print(f"verified: {result.stdout.count('; in float32 a difference of at most')} bounds in float32")


if __name__ == "__main__":
    main()
