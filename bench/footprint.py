#!/usr/bin/env python3
"""What the library costs before it moves a byte: time to open, an idle worker's processor time, size.

Starts bench/footprint (built by `make bench`) with two processes on the shm backend, and writes
docs/results/footprint.md. Open time counts from the moment the last rank is started (fork and exec
included) until both ranks are ready. Nothing here is compared with a peer: the limits are the
project's own.
"""

import argparse
import datetime
import os
import platform
import socket
import statistics
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(program, rank, size, port, arguments):
    environment = dict(os.environ, SPARK_COMM_BACKEND="shm", RANK=str(rank), WORLD_SIZE=str(size),
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return subprocess.Popen([program] + arguments, env=environment, stdout=subprocess.PIPE, text=True)


def run_job(program, arguments, lead_s, order):
    """Starts two ranks in `order`, the second one `lead_s` later; returns rows and that moment."""
    port = free_port()
    first = start(program, order[0], 2, port, arguments)
    time.sleep(lead_s)
    started = time.monotonic_ns()
    second = start(program, order[1], 2, port, arguments)
    rows = {}
    for process in (first, second):
        text = process.communicate(timeout=200)[0]
        if process.returncode != 0:
            raise SystemExit("footprint: a rank failed")
        rank, ready, cpu = (int(word) for word in text.split())
        rows[rank] = (ready, cpu)
    return rows, started


def open_times(program, rounds, order):
    times = []
    for _ in range(rounds):
        rows, started = run_job(program, [], 0.2, order)
        times.append((max(row[0] for row in rows.values()) - started) / 1e6)
    return sorted(times)


def stripped_size(library):
    with tempfile.NamedTemporaryFile() as copy:
        subprocess.run(["strip", "-o", copy.name, library], check=True)
        return os.path.getsize(copy.name)


def kernels_size(build):
    """Bytes of the GPU images that are embedded in the library."""
    folder = os.path.join(build, "kernels")
    if not os.path.isdir(folder):
        return 0
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder) if name.endswith(".fatbin"))


def cpu_model():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--program", help="the built footprint program (default: BUILD/bench/footprint)")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--idle-seconds", type=int, default=60)
    parser.add_argument("--output", default=os.path.join(ROOT, "docs", "results", "footprint.md"))
    options = parser.parse_args()
    program = options.program or os.path.join(options.build, "bench", "footprint")
    worker_last = open_times(program, options.rounds, (0, 1))
    head_last = open_times(program, options.rounds, (1, 0))
    rows, _ = run_job(program, ["idle", str(options.idle_seconds)], 0.1, (0, 1))
    share = {rank: 100.0 * row[1] / (options.idle_seconds * 1e6) for rank, row in rows.items()}
    kernels = kernels_size(options.build)
    size = stripped_size(os.path.join(options.build, "libspark_comm.so.0")) - kernels
    text = f"""# Footprint: open, idle, size

Machine: {cpu_model()}, {os.cpu_count()} CPUs, Linux {platform.release().split('-')[0]} ({platform.machine()}).
Command: `bench/footprint.py --rounds {options.rounds} --idle-seconds {options.idle_seconds}`.
Date: {datetime.date.today().isoformat()}. Two processes, `backend=shm`.

| what | figure | limit |
|---|---|---|
| open, rank 1 started last: until both are ready | median {statistics.median(worker_last):.1f} ms ({worker_last[0]:.1f} to {worker_last[-1]:.1f}) | 20 ms |
| open, rank 0 started last | median {statistics.median(head_last):.1f} ms ({head_last[0]:.1f} to {head_last[-1]:.1f}) | 20 ms |
| idle worker in recv_command_u32, {options.idle_seconds} s, all threads | {share[1]:.4f} % of a core | 0.1 % |
| idle head meanwhile | {share[0]:.4f} % of a core | 0.1 % |
| libspark_comm.so, stripped, without the {kernels / 1024:.0f} KiB of GPU kernels | {size / 1024:.0f} KiB | 400 KiB |

The open times count from before fork and exec of the last rank, with the start of the process in
them.
"""
    rest = ""  # sections that other programs' figures stand in
    if os.path.exists(options.output):
        with open(options.output, encoding="utf-8") as page:
            before = page.read()
        rest = before[before.index("\n## "):] if "\n## " in before else ""
    with open(options.output, "w", encoding="utf-8") as page:
        page.write(text + rest)
    print(text)


if __name__ == "__main__":
    main()
