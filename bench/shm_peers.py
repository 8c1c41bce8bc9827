#!/usr/bin/env python3
"""Two ranks on one machine: spark_comm beside Open MPI, MPICH and gloo, alternating in one run.

Every round goes through the operations and measures every library once on each, one right after the
other, in an order that moves on by one from round to round, so that whatever else the machine does
falls on all of them. What counts is the median over rounds; the speed-up is over the better of the
two MPI libraries at that size. Writes a page with all figures, a
plot, and the raw figures as JSON, from which --report-only writes the page again.

Needs what bench/setup.sh installs and a built tree (make). bench/README.md says more.
"""

import argparse
import datetime
import json
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = os.path.join(ROOT, "bench", "peers")
OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast_barrier", "barrier", "send_recv"]
SIZES = "8,1K,4K,16K,64K,256K,1M,4M,16M"
ALIGNED_SIZES = "8,1K,4K,16K"
# Ways to time, and what asks the harness for them. perf itself times spark_comm's batches.
KINDS = {"batched": [], "aligned": ["--aligned"], "symmetric": ["--rewrite"]}
MPI = ["openmpi", "mpich"]
PEERS = ["spark_comm"] + MPI + ["gloo"]
TITLES = {"spark_comm": "spark_comm", "openmpi": "Open MPI", "mpich": "MPICH", "gloo": "gloo"}
LEG_TIMEOUT_S = 600


class Failure(Exception):
    """Something that the reader of the terminal has to know."""


# ---- Building the peers' programs ----


def compile_with(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure("failed: " + " ".join(command) + "\n" + done.stderr)


def package_version(package):
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package],
                          capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def source(name):
    return os.path.join(SOURCES, name)


def build_mpi(work, name):
    compiler = shutil.which("mpicc." + name)
    if compiler is None or shutil.which("mpirun." + name) is None:
        raise Failure("is not installed (bench/setup.sh)")
    compile_with([compiler, "-std=gnu17", "-D_GNU_SOURCE", "-O3", source("mpi_perf.c"),
                  source("harness.c"), "-lm", "-o", os.path.join(work, "mpi_perf." + name)])


def build_gloo(work):
    harness = os.path.join(work, "harness.o")
    version = package_version("libgloo-dev")
    compile_with(["gcc", "-std=gnu17", "-D_GNU_SOURCE", "-O3", "-c", source("harness.c"), "-o",
                  harness])
    compile_with(["g++", "-std=c++17", "-O3", f'-DGLOO_PACKAGE_VERSION="{version}"',
                  source("gloo_perf.cc"), harness, "-lgloo", "-lpthread", "-lm", "-o",
                  os.path.join(work, "gloo_perf")])


def build_spark_comm(build, work):
    if not os.access(os.path.join(build, "spark-comm"), os.X_OK):
        raise Failure("is not built (make)")
    compile_with(["gcc", "-std=gnu17", "-D_GNU_SOURCE", "-O3",
                  "-I" + os.path.join(ROOT, "include"), source("spark_perf.c"),
                  source("harness.c"), "-L" + build, "-lspark_comm", "-lm", "-Wl,-rpath," + build,
                  "-o", os.path.join(work, "spark_perf")])


def build_all(options):
    """The peers that can be measured here; the others are left out, and the page says so."""
    os.makedirs(options.work, exist_ok=True)
    peers = []
    for name in options.peers:
        try:
            if name == "spark_comm":
                build_spark_comm(options.build, options.work)
            elif name == "gloo":
                build_gloo(options.work)
            else:
                build_mpi(options.work, name)
            peers.append(name)
        except Failure as failure:
            print(f"{TITLES[name]} is left out: it {failure}", file=sys.stderr)
    return peers


# ---- Running one library once ----


def run_to_json(command, path, env=None):
    """Runs a command that writes JSON to path."""
    done = subprocess.run(command, env=env, capture_output=True, text=True,
                          timeout=LEG_TIMEOUT_S, check=False)
    if done.returncode != 0 or not os.path.exists(path):
        raise Failure(f"exit code {done.returncode}: {' '.join(command)}\n"
                      f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def mpi_command(name):
    """Each library as it is by default, two ranks bound to a core each."""
    if name == "openmpi":
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return ["mpirun.openmpi"] + as_root + ["--bind-to", "core", "-np", "2"]
    return ["mpirun.mpich", "-bind-to", "core", "-np", "2"]


def run_mpi(options, name, arguments, folder):
    path = os.path.join(folder, "result.json")
    return run_to_json(mpi_command(name) + [os.path.join(options.work, "mpi_perf." + name)] +
                       arguments + ["--json", path], path)


def run_gloo(options, arguments, folder):
    """gloo's ranks are not bound: its thread for input and output needs the other core."""
    path, store = os.path.join(folder, "result.json"), os.path.join(folder, "store")
    os.mkdir(store)
    command = [os.path.join(options.work, "gloo_perf")] + arguments + ["--json", path]
    env = dict(os.environ, WORLD_SIZE="2", GLOO_STORE=store)
    with subprocess.Popen(command, env=dict(env, RANK="1"), stderr=subprocess.DEVNULL) as other:
        try:
            return run_to_json(command, path, env=dict(env, RANK="0"))
        finally:
            try:
                other.wait(timeout=10)
            except subprocess.TimeoutExpired:
                other.kill()


def spark_run(options):
    program = os.path.join(options.build, "spark-comm")
    return [program, "run", "-n", "2", "--bind", "core", "--"]


def spark_env():
    """What another launcher left in the environment must not reach the ranks."""
    left = ("SPARK_COMM_", "PMI_", "OMPI_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(left)}
    return dict(kept, SPARK_COMM_BACKEND="shm")


def size_ranges(sizes):
    """perf takes first, last and factor: consecutive sizes of one factor make one call."""
    numbers = [parse_size(text) for text in sizes.split(",")]
    ranges, begin = [], 0
    for i in range(1, len(numbers) + 1):
        run = numbers[begin:i + 1]
        steps = {b / a for a, b in zip(run, run[1:])}
        if i == len(numbers) or len(steps) > 1 or max(steps) != int(max(steps)):
            group = numbers[begin:i]
            ranges.append((group[0], group[-1], group[1] // group[0] if len(group) > 1 else 2))
            begin = i
    return ranges


def run_spark_comm(options, op, sizes, folder):
    """`spark-comm perf` itself. Its broadcast_barrier is the peers' broadcast plus barrier."""
    path = os.path.join(folder, "result.json")
    results, answer = [], {}
    for first, last, factor in size_ranges(sizes):
        command = spark_run(options) + [os.path.join(options.build, "spark-comm"), "perf", "--op",
                                        op, "-b", str(first), "-e", str(last), "-f", str(factor),
                                        "--dtype", "f32", "--json", path]
        answer = run_to_json(command, path, env=spark_env())
        results += answer["results"]
        if op == "barrier":
            break
    return dict(answer, results=results)


def run_spark_harness(options, arguments, folder):
    path = os.path.join(folder, "result.json")
    return run_to_json(spark_run(options) + [os.path.join(options.work, "spark_perf")] + arguments +
                       ["--json", path], path, env=spark_env())


def measure(options, name, op, kind):
    """One library and operation, once: what it wrote."""
    sizes = ALIGNED_SIZES if kind == "aligned" else options.sizes
    arguments = ["--op", op, "--sizes", sizes] + KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        if name in MPI:
            answer = run_mpi(options, name, arguments, folder)
        elif name == "gloo":
            answer = run_gloo(options, arguments, folder)
        elif kind != "batched":
            answer = run_spark_harness(options, arguments, folder)
        else:
            answer = run_spark_comm(options, op, sizes, folder)
    wrong = sum(row["wrong"] for row in answer["results"])
    if wrong:
        raise Failure(f"{TITLES[name]}: {wrong} wrong elements in {op}")
    return answer


# ---- Other work on the machine ----


def busy_seconds():
    """CPU time spent on anything since boot, over all CPUs, what a hypervisor took included."""
    fields = [int(text) for text in read("/proc/stat").split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _wait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    """CPU time of this process and of all that it started and that has ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def wait_until_quiet(options):
    """Until less than a tenth of one CPU was busy for half a second. All waits of a run together
    last no longer than options.wait."""
    while options.wait > 0:
        before = busy_seconds()
        time.sleep(0.5)
        options.wait -= 0.5
        if busy_seconds() - before < 0.05:
            return


def measure_undisturbed(options, name, op, kind):
    """Repeats a run during which other processes took more than a twentieth of one CPU; of those
    disturbed again and again the least disturbed counts. What it measured plays no part in that.
    Returns the answer and that share of one CPU."""
    best, least = None, math.inf
    for _ in range(options.attempts):
        wait_until_quiet(options)
        begin, busy, own = time.monotonic(), busy_seconds(), own_seconds()
        answer = measure(options, name, op, kind)
        others = (busy_seconds() - busy) - (own_seconds() - own)
        others = max(0.0, others) / (time.monotonic() - begin)
        if others < least:
            best, least = answer, others
        if others < 0.05:
            break
    return best, least


# ---- All rounds ----


def key(op, size):
    return f"{op} {size}"


def record(raw, name, answer, kind):
    for row in answer["results"]:
        size = 0 if row["op"] == "barrier" else row["bytes"]
        time_us = row.get("time_us_aligned") if kind == "aligned" else row["time_us_median"]
        if time_us is not None:
            raw[kind].setdefault(key(row["op"], size), {}).setdefault(name, []).append(time_us)
        if row.get("path"):
            raw["paths"][key(row["op"], size)] = row["path"]
    if answer.get("version"):
        raw["versions"][name] = answer["version"]


def measure_one(options, raw, name, op, kind):
    """A failure is written down, and the others go on."""
    try:
        answer, others = measure_undisturbed(options, name, op, kind)
        record(raw, name, answer, kind)
        raw["others"].append(round(others, 3))
    except (Failure, subprocess.TimeoutExpired) as failure:
        raw["failures"].setdefault(name, []).append(op)
        print(f"  {TITLES[name]}, {op}: {failure}", file=sys.stderr)


def save(options, raw):
    """After each round, so that a run that is cut off leaves what it has (--report-only)."""
    with open(options.raw, "w", encoding="utf-8") as file:
        json.dump(raw, file, indent=1)


def measure_all(options):
    peers = build_all(options)
    raw = {"about": about_machine(), "versions": {}, "paths": {}, "batched": {}, "aligned": {},
           "symmetric": {},
           "rounds": options.rounds, "attempts": options.attempts, "peers": peers,
           "ops": options.ops, "sizes": options.sizes, "failures": {}, "others": []}
    steps = [(op, "batched") for op in options.ops]
    if options.aligned:
        steps += [("all_reduce", "aligned"), ("all_reduce", "symmetric")]
    for number in range(options.rounds):
        shift = number % max(len(peers), 1)
        for op, kind in steps:
            print(f"round {number + 1} of {options.rounds}: {op}"
                  f"{'' if kind == 'batched' else ', ' + kind}", file=sys.stderr, flush=True)
            for name in peers[shift:] + peers[:shift]:
                if not (name == "gloo" and (kind != "batched" or op == "reduce_scatter")):
                    measure_one(options, raw, name, op, kind)
        raw["rounds"] = number + 1
        save(options, raw)
    if "spark_comm" in peers:
        raw["versions"]["spark_comm"] = header_version()
    if "gloo" in raw["versions"]:
        raw["versions"]["gloo"] = "gloo " + raw["versions"]["gloo"]
    return raw


# ---- What was measured on ----


def read(path, default=""):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return default


def header_version():
    text = read(os.path.join(ROOT, "include", "spark_comm.h"))
    parts = [re.search(rf"VERSION_{part} +(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return "spark_comm " + ".".join(p.group(1) if p else "?" for p in parts)


def cpu_model():
    text = read("/proc/cpuinfo")
    fields = dict(re.findall(r"^([^\t:]+)\t*: (.*)$", text.split("\n\n")[0], re.M))
    name = fields.get("model name", platform.machine())
    if "cpu family" in fields:
        name += f" (family {fields['cpu family']}, model {fields.get('model', '?')})"
    return name + (", virtual machine" if "hypervisor" in fields.get("flags", "") else "")


def caches():
    found = []
    for i in range(8):
        base = f"/sys/devices/system/cpu/cpu0/cache/index{i}/"
        if read(base + "type").strip() not in ("", "Instruction"):
            found.append(f"L{read(base + 'level').strip()} {read(base + 'size').strip()}")
    return ", ".join(found)


def about_machine():
    memory = re.search(r"MemTotal: +(\d+) kB", read("/proc/meminfo"))
    release = re.match(r"\d+(\.\d+)*", platform.release())
    compiler = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True,
                              check=False).stdout.strip()
    system = re.search(r'^PRETTY_NAME="?([^"\n]*)', read("/etc/os-release"), re.M)
    return {"CPU": cpu_model(),
            "CPUs used / present": f"2 / {os.cpu_count()}",
            "caches of a core": caches(),
            "memory": f"{int(memory.group(1)) / 2**20:.1f} GiB" if memory else "unknown",
            "kernel": "Linux " + (release.group(0) if release else "unknown"),
            "system": system.group(1) if system else "unknown",
            "compiler": "gcc " + compiler,
            "date": datetime.date.today().isoformat()}


# ---- The page ----


def parse_size(text):
    unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1)
    return int(text.rstrip("KM")) * unit


def size_text(size):
    if size >= 1 << 20 and size % (1 << 20) == 0:
        return f"{size >> 20} MiB"
    if size >= 1 << 10 and size % (1 << 10) == 0:
        return f"{size >> 10} KiB"
    return f"{size} B"


def digits(value):
    """Three significant digits, never an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(max(value, 1e-3))))}f}"


def with_spread(times):
    if not times:
        return "–"
    return f"{digits(statistics.median(times))} ({digits(min(times))}..{digits(max(times))})"


def better_mpi(row):
    """Name of the MPI library with the lower median; None without any."""
    there = [name for name in MPI if row.get(name)]
    return min(there, key=lambda name: statistics.median(row[name]), default=None)


def speed_up(row, peer):
    if not row.get("spark_comm") or not peer or not row.get(peer):
        return None
    return statistics.median(row[peer]) / statistics.median(row["spark_comm"])


def speed_up_range(row, peer):
    """The speed-up within each round, lowest and highest; only when no round failed."""
    if len(row[peer]) != len(row["spark_comm"]):
        return "–"
    ratios = [p / s for p, s in zip(row[peer], row["spark_comm"])]
    return f"{min(ratios):.2f}..{max(ratios):.2f}"


def speed_up_cells(row):
    best = better_mpi(row)
    ratio = speed_up(row, best)
    if ratio is None:
        return ["–", "–"]
    return [f"**{ratio:.2f}** over {TITLES[best]}", speed_up_range(row, best)]


def table(raw, kind, op, sizes):
    names = [name for name in raw["peers"] if kind == "batched" or name != "gloo"]
    with_path = "spark_comm" in names and kind == "batched"
    heading = ["size"] + [TITLES[name] for name in names] + ["speed-up", "per round"]
    heading += ["path"] if with_path else []
    lines = ["| " + " | ".join(heading) + " |", "|" + "---|" * len(heading)]
    for size in sizes:
        row = raw[kind].get(key(op, size))
        if not row:
            continue
        cells = ["–" if op == "barrier" else size_text(size)]
        cells += [with_spread(row.get(name, [])) for name in names] + speed_up_cells(row)
        cells += [raw["paths"].get(key(op, size), "–")] if with_path else []
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def geometric_mean(raw, op, sizes):
    ratios = [speed_up(row, better_mpi(row)) for size in sizes
              if (row := raw["batched"].get(key(op, size)))]
    ratios = [ratio for ratio in ratios if ratio]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


NOTES = {
    "all_reduce": "In place, `MPI_Allreduce` with `MPI_IN_PLACE`. Size: the buffer.",
    "all_gather": "`MPI_Allgather`. Size: one rank's share.",
    "reduce_scatter": "`MPI_Reduce_scatter_block`. Size: one rank's share of the result.",
    "broadcast_barrier": "From rank 0, each followed by a barrier on both sides (`MPI_Bcast`, then "
                         "`MPI_Barrier`): a broadcast alone does not say when it has arrived, and "
                         "back to back it only measures how much is buffered.",
    "barrier": "`MPI_Barrier`.",
    "send_recv": "Ping-pong, half of the round trip (`MPI_Send`, `MPI_Recv`).",
}

METHOD = """\
Two processes, f32, microseconds per call: median over {rounds} rounds, lowest and highest round in
brackets. Each round goes through the operations and runs each library once on each, one right
after the other, in an order that moves on by one from round to round. Within a run a figure is the
median of 11 batches of about 8 ms of back-to-back calls (at least 3 calls); all ranks
start a batch together, and the slowest rank counts. Every operation is verified at every size
before and after it is timed. spark_comm is timed by `spark-comm perf`, the others by
`bench/peers/harness.c`, which does the same. **Speed-up** is the median of the better MPI library
at that size over spark_comm's; *per round* is its range when formed within each round. Both ranks
of spark_comm, Open MPI and MPICH are bound to a core each; gloo's are not, since its thread for
input and output would then share their core. The libraries run with their defaults. A run during
which other processes took more than 5 % of one CPU is repeated, whatever it measured, at most
{attempts} times in all.
"""

BOUNDS = """\
all_reduce between two ranks goes by `swap` (`src/backends/shm/swap.c`): each line of data moves once,
and the next step is written where the last one was read. Above 256 KiB (16 KiB for types of 16 bits) each
rank reduces half.

| size | what bounds it |
|---|---|
| 8 B | one line handed over each way (45 to 60 ns on the machine below, `bench/shm_call.c`), and the call around it, two readings of the tick counter and a lock (25 to 40 ns); poison, numbers and the record are hidden behind the hand-over |
| 1 to 16 KiB | loads of the peer's lines, one after the other from its cache; storing the own data is hidden |
| 64 KiB to 4 MiB | those loads, copying in and adding, which do not overlap: all three use the same core |
| 16 MiB | the memory: the buffers of both ranks and all steps no longer fit the last cache |

all_gather and reduce_scatter go by slots up to 16 KiB and by chunks above, with one copy more than MPI's
single copy through the kernel, which is why 4 MiB of all_gather is no faster. Broadcasts of up to 4 KiB
are the command lane's.
"""

ALIGNED = """\
Both ranks enter each call at one instant of the common clock; from there until the last one is
done. Calls for which a rank came late are left out. All libraries in the same harness
(`bench/peers/spark_perf.c` for spark_comm).
"""

SYMMETRIC = """\
spark_comm's buffer comes from `spark_comm_symmetric_alloc`, the others' is ordinary memory. Every
rank writes its whole buffer anew before each call, and the cost of that, measured alone, is
subtracted, on all sides: without the rewrite no data would cross. All libraries in the same
harness.
"""


def commands(raw):
    lines = [f"bench/shm_peers.py --rounds {raw['rounds']} --attempts {raw['attempts']}", "",
             "# which runs, in each round and for each OP of " + ", ".join(raw["ops"])]
    for name in raw["peers"]:
        if name in MPI:
            lines.append(" ".join(mpi_command(name)) + f" mpi_perf --op OP --sizes {raw['sizes']}")
        elif name == "gloo":
            lines.append("RANK=... WORLD_SIZE=2 GLOO_STORE=... gloo_perf --op OP --sizes "
                         + raw["sizes"])
        else:
            lines += ["spark-comm run -n 2 --bind core -- spark-comm perf --op OP "
                      f"-b {first} -e {last} -f {factor} --dtype f32"
                      for first, last, factor in size_ranges(raw["sizes"])]
    return ["```"] + lines + ["```"]


def facts_table(raw):
    lines = ["| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in raw["about"].items()]
    others = raw["others"]
    lines.append("| other work during a run, of one CPU | median "
                 f"{statistics.median(others):.0%}, most {max(others):.0%} |")
    for name in raw["peers"]:
        lines.append(f"| {TITLES[name]} | {raw['versions'].get(name, 'unknown')} |")
    return lines


def page(raw, plot):
    sizes = [parse_size(text) for text in raw["sizes"].split(",")]
    lines = ["# Shared memory: two ranks, beside other libraries", "",
             METHOD.format(rounds=raw["rounds"], attempts=raw["attempts"])]
    if plot:
        lines += [f"![all_reduce over sizes]({os.path.basename(plot)})", ""]
    for op in raw["ops"]:
        lines += [f"## {op}", "", NOTES[op], ""]
        lines += table(raw, "batched", op, [0] if op == "barrier" else sizes)
        mean = geometric_mean(raw, op, sizes)
        if mean:
            lines += ["", f"Geometric mean of the speed-ups: {mean:.2f}."]
        lines.append("")
    if raw["aligned"]:
        lines += ["## all_reduce, aligned starts", "", ALIGNED]
        lines += table(raw, "aligned", "all_reduce", map(parse_size, ALIGNED_SIZES.split(",")))
        lines.append("")
    if raw.get("symmetric"):
        lines += ["## all_reduce over symmetric memory", "", SYMMETRIC]
        lines += table(raw, "symmetric", "all_reduce", sizes) + [""]
    lines += ["## What bounds it", "", BOUNDS]
    lines += ["## Where and how", ""] + facts_table(raw) + [""] + commands(raw)
    for name, failures in raw["failures"].items():
        lines += ["", f"{TITLES[name]} failed in {len(failures)} runs, which are left out."]
    missing = [TITLES[name] for name in PEERS if name not in raw["peers"]]
    if missing:
        lines += ["", "Not measured in this run: " + ", ".join(missing) + "."]
    return "\n".join(lines) + "\n"


# ---- The plot ----


def plot_script(raw, svg):
    styles = {"spark_comm": (1, 3), "openmpi": (2, 1.5), "mpich": (4, 1.5), "gloo": (7, 1.5)}
    sizes = [parse_size(text) for text in raw["sizes"].split(",")]
    blocks, curves = [], []
    for name in raw["peers"]:
        points = [(size, statistics.median(row[name])) for size in sizes
                  if (row := raw["batched"].get(key("all_reduce", size))) and row.get(name)]
        if not points:
            continue
        blocks.append(f"${name} << EOD\n" + "".join(f"{x} {y}\n" for x, y in points) + "EOD\n")
        color, width = styles[name]
        curves.append(f'${name} using 1:2 with linespoints lt {color} lw {width} pt 7 ps 0.5 '
                      f'title "{TITLES[name]}"')
    return ("".join(blocks) +
            'set terminal svg noenhanced size 760,480 font "sans-serif,13" background "white"\n'
            f'set output "{svg}"\nset xrange [{min(sizes) / 1.3}:{max(sizes) * 1.3}]\n'
            'set logscale x 2\nset logscale y\nset grid\nset key top left\n'
            'set title "all_reduce, two processes on one machine, f32 sum"\n'
            'set xlabel "bytes"\nset ylabel "microseconds per call (median)"\n'
            'set xtics ("8" 8, "64" 64, "512" 512, "4K" 4096, "32K" 32768, "256K" 262144, '
            '"2M" 2097152, "16M" 16777216)\n'
            "plot " + ", ".join(curves) + "\n") if curves else ""


def draw(raw, svg):
    """Path of the plot, or None where there is no gnuplot."""
    script = plot_script(raw, svg)
    if not script or shutil.which("gnuplot") is None:
        return None
    done = subprocess.run(["gnuplot"], input=script, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        print("gnuplot: " + done.stderr, file=sys.stderr)
        return None
    return svg


# ---- Main ----


def summary(raw):
    sizes = [parse_size(text) for text in raw["sizes"].split(",")]
    for kind, ops in (("batched", raw["ops"]), ("aligned", ["all_reduce"]),
                      ("symmetric", ["all_reduce"])):
        for op in ops:
            for size in [0] if op == "barrier" else sizes:
                row = raw.get(kind, {}).get(key(op, size), {})
                best = better_mpi(row)
                ratio = speed_up(row, best)
                times = "  ".join(f"{TITLES[n]} {digits(statistics.median(row[n]))}"
                                  for n in raw["peers"] if row.get(n))
                name = op if kind == "batched" else f"{op} {kind}"
                if times:
                    print(f"{name:20} {size_text(size):>8}  "
                          f"{f'{ratio:5.2f}x' if ratio else '   –  '}  {times}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ops", default=",".join(OPS), help="default: %(default)s")
    parser.add_argument("--sizes", default=SIZES, help="default: %(default)s")
    parser.add_argument("--peers", default=",".join(PEERS), help="default: %(default)s")
    parser.add_argument("--no-aligned", dest="aligned", action="store_false",
                        help="leave the aligned starts and symmetric memory out")
    parser.add_argument("--attempts", type=int, default=4,
                        help="runs until one is undisturbed by other work (default: %(default)s)")
    parser.add_argument("--wait", type=float, default=600, metavar="SECONDS",
                        help="longest wait for a quiet machine, in all (default: %(default)s)")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="the built tree")
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "results", "shm.md"),
                        help="the page; the plot goes beside it")
    parser.add_argument("--raw", help="raw figures (default: build/bench/shm_peers.json)")
    parser.add_argument("--report-only", action="store_true",
                        help="measure nothing: write the page from the raw figures")
    options = parser.parse_args()
    options.ops, options.peers = options.ops.split(","), options.peers.split(",")
    options.build = os.path.abspath(options.build)
    options.work = os.path.join(options.build, "bench")
    options.raw = options.raw or os.path.join(options.work, "shm_peers.json")
    for chosen, known in ((options.ops, OPS), (options.peers, PEERS)):
        for name in chosen:
            if name not in known:
                parser.error(f"'{name}' is none of {', '.join(known)}")
    return options


def main():
    options = parse_arguments()
    if options.report_only:
        with open(options.raw, encoding="utf-8") as file:
            raw = json.load(file)
    else:
        raw = measure_all(options)
        save(options, raw)
    if not raw["batched"]:
        print("nothing was measured", file=sys.stderr)
        return 1
    os.makedirs(os.path.dirname(options.out), exist_ok=True)
    plot = draw(raw, os.path.splitext(options.out)[0] + "_all_reduce.svg")
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(page(raw, plot))
    summary(raw)
    return 1 if raw["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
