#!/usr/bin/env python3
"""Two further measurements of shared memory, each alternating over rounds, medians and ranges:

- four ranks on two CPUs, all_reduce of 8 bytes, beside Open MPI with its ranks bound to the same two
- bf16 beside f32 between two ranks, at equal element counts

Writes a page in Markdown to standard output. Needs what bench/setup.sh installs, a built tree (make)
and bench/shm_peers.py run once, which builds Open MPI's side.
"""

import argparse
import os
import statistics
import sys
import tempfile

import shm_peers as peers

SIZES = "4K,64K,256K,1M,16M"


def perf(options, ranks, op, dtype, size, bind):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        program = os.path.join(options.build, "spark-comm")
        command = [program, "run", "-n", str(ranks), "--bind", bind, "--", program, "perf", "--op",
                   op, "-b", str(size), "-e", str(size), "--dtype", dtype, "--json", path]
        row = peers.run_to_json(command, path, env=peers.spark_env())["results"][0]
        if row["wrong"]:
            raise peers.Failure(f"{row['wrong']} wrong elements")
        return row["time_us_median"]


def open_mpi(options, ranks):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = (["mpirun.openmpi"] + as_root +
                   ["--oversubscribe", "--bind-to", "core:overload-allowed", "-np", str(ranks),
                    os.path.join(options.build, "bench", "mpi_perf.openmpi"), "--op", "all_reduce",
                    "--sizes", "8", "--json", path])
        return peers.run_to_json(command, path)["results"][0]["time_us_median"]


def spread(figures):
    return peers.with_spread(figures)


def crowded(options):
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(perf(options, 4, "all_reduce", "f32", 8, "core"))
        theirs.append(open_mpi(options, 4))
    ratio = statistics.median(theirs) / statistics.median(ours)
    return ["## Four ranks on two CPUs", "",
            "all_reduce of 8 bytes, microseconds per call.", "",
            "| spark_comm | Open MPI, bound | speed-up |", "|---|---|---|",
            f"| {spread(ours)} | {spread(theirs)} | **{ratio:.2f}** |", ""]


def types(options):
    lines = ["## bf16 beside f32", "",
             "all_reduce between two ranks at equal element counts, microseconds per call.", "",
             "| f32 bytes | f32 | bf16 | bf16 over f32 |", "|---|---|---|---|"]
    for text in SIZES.split(","):
        size = peers.parse_size(text)
        wide, narrow = [], []
        for _ in range(options.rounds):
            wide.append(perf(options, 2, "all_reduce", "f32", size, "core"))
            narrow.append(perf(options, 2, "all_reduce", "bf16", size // 2, "core"))
        ratio = statistics.median(n / w for n, w in zip(narrow, wide))
        lines.append(f"| {peers.size_text(size)} | {spread(wide)} | {spread(narrow)} | "
                     f"**{ratio:.2f}** |")
    return lines + [""]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--build", default=os.path.join(peers.ROOT, "build"))
    options = parser.parse_args()
    lines = [f"Medians and ranges of {options.rounds} alternating rounds; the ratio of bf16 is the "
             "median over rounds.", ""]
    lines += crowded(options) + types(options)
    lines += ["| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in peers.about_machine().items()]
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
