#!/usr/bin/env python3
"""Makes the manual pages of the library, docs/man/*.3, from the comments of include/spark_comm.h.

    scripts/make_man.py            writes them, and removes pages that no function has any more
    scripts/make_man.py --check    writes nothing; exit code 1 when one is missing or out of date

The header is the manual, so nothing is written by hand here but the grouping into pages. What the
script reads: the first comment of the header (sections with headings in capitals), the list of
statuses, the comments "---- Section ----" with their common rules, and the comment above each
function: a sentence, more text, an empty line, and the eight parts. Pages of section 1 belong to the
program and are not touched. It uses the standard library of Python 3 alone.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "include" / "spark_comm.h"
PAGES = ROOT / "docs" / "man"
DATE = "2026-11-30"  # of the version that the pages describe

# Page, what it is about, and its functions in order. A function that is in no page gets its own.
FAMILIES = [
    ("spark_comm_open", "open, abort and close a communicator",
     ["options_init", "open", "open_backend", "abort", "close"]),
    ("spark_comm_all_reduce", "sum a buffer over all ranks", ["all_reduce", "all_reduce_async"]),
    ("spark_comm_all_gather", "collect or scatter blocks over all ranks",
     ["all_gather", "reduce_scatter"]),
    ("spark_comm_broadcast", "copy a buffer of one rank to all", ["broadcast", "recv_command_u32"]),
    ("spark_comm_barrier", "wait until all ranks have entered", ["barrier"]),
    ("spark_comm_register_buffer", "tell the backend of buffers that are used often",
     ["register_buffer", "deregister_buffer"]),
    ("spark_comm_symmetric_alloc", "memory that the peers can reach",
     ["symmetric_alloc", "symmetric_free"]),
    ("spark_comm_set_add_kernel", "the addition of the 2-rank exchange path", ["set_add_kernel"]),
    ("spark_comm_send_to", "messages between two ranks, and groups of them",
     ["send_to", "recv_from", "group_start", "group_end"]),
    ("spark_comm_submit", "any data operation in its general form", ["submit"]),
    ("spark_comm_send_command", "whole commands from rank 0 to all ranks",
     ["send_command", "recv_command"]),
    ("spark_comm_exchange_host", "gather small blocks of host memory", ["exchange_host"]),
    ("spark_comm_health", "whether a communicator is healthy and makes progress",
     ["is_healthy", "health"]),
    ("spark_comm_attempt_reconnect", "begin a new epoch after a failure", ["attempt_reconnect"]),
    ("spark_comm_last_error", "the last failure in full", ["last_error"]),
    ("spark_comm_info", "what serves a communicator", ["info"]),
    ("spark_comm_describe_settings", "settings and backends of this machine",
     ["describe_settings", "describe_backends"]),
    ("spark_comm_trace_write", "write the records of the last operations", ["trace_write"]),
    ("spark_comm_rank", "number of this rank, and of all", ["rank", "world_size"]),
    ("spark_comm_status_name", "names, texts and class of a status, and the version",
     ["status_name", "status_text", "is_fatal", "version"]),
]
PARTS = ("Units:", "Ownership:", "Blocking:", "Threads:", "Stream:", "In place:",
         "After failure:", "Statuses:")


# ---- Reading the header --------------------------------------------------------------------------

def comment_lines(comment):
    """The text of a block comment, line by line, without its signs."""
    body = comment.strip()[2:-2]
    lines = [re.sub(r"^\s*\*( |$)", "", line).rstrip() for line in body.split("\n")]
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


class Function:
    """One public function: its declaration, its comment, and the common rules of its section."""

    def __init__(self, declaration, lines, common):
        self.declaration = declaration
        self.common = common
        blank = lines.index("") if "" in lines else len(lines)
        self.text = lines[:blank]
        self.parts = []
        for line in lines[blank + 1:]:
            part = next((p for p in PARTS if line.startswith(p)), None)
            if part:
                self.parts.append([part[:-1], line[len(part):].strip()])
            elif self.parts:
                self.parts[-1][1] += " " + line.strip()


def read_header(text):
    """Returns (lines of the first comment, statuses, {name: Function} in order, version)."""
    tokens = re.finditer(r"/\*.*?\*/|^SPARK_COMM_API\b[^;]*;", text, re.S | re.M)
    functions = {}
    common = []
    status_rules = []
    general = []
    last = []
    for token in tokens:
        piece = token.group(0)
        if piece.startswith("/*"):
            last = comment_lines(piece)
            if not general:
                general = last
            elif last and last[0].startswith("STATUSES"):
                status_rules = last
            elif last and last[0].startswith("----"):
                common = last[1:] or common
            continue
        declaration = re.sub(r"^SPARK_COMM_API\s+", "", piece)
        declaration = re.sub(r"\s+", " ", declaration)
        name = re.search(r"(spark_comm_\w+) *\(", declaration).group(1)
        functions[name] = Function(declaration, last, common)
    statuses = re.findall(r"X\((SPARK_COMM_\w+), (\d+), \"([^\"]*)\"\)", text)
    version = ".".join(re.search(rf"VERSION_{part} (\d+)", text).group(1)
                       for part in ("MAJOR", "MINOR", "PATCH"))
    return general, status_rules, statuses, functions, version


# ---- Writing roff --------------------------------------------------------------------------------

def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\`")
    text = text.replace("~", "\\(ti").replace("^", "\\(ha")
    return text


def prose(text):
    """Text with `code` and the names of functions in bold. Never begins a request by accident."""
    out = ""
    for piece in re.split(r"(`[^`]+`|\bspark_comm_[a-z0-9_]+\b(?!\.[a-z]))", text):
        if not piece:
            continue
        if piece.startswith("`") or re.fullmatch(r"spark_comm_[a-z0-9_]+", piece):
            out += "\\fB" + escape(piece.strip("`")) + "\\fR"
        else:
            out += escape(piece)
    return "\\&" + out if out[:1] in (".", "'") else out


def passage(lines):
    """Paragraphs, "- " lists and two-column tables as roff."""
    out = []
    kind = None  # "text", "item" or "row": what a continuation line belongs to
    column = 0
    paragraph = False  # a heading comes before
    for line in lines:
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        row = re.match(r"^(\s*)(\S+(?: \S+)*)\s{2,}(\S.*)$", line)
        if not stripped:
            kind = None
            paragraph = bool(out)
        elif stripped.startswith("- "):
            out += [".IP \\(bu 2", prose(stripped[2:])]
            kind, column = "item", indent
        elif row:
            out += [".TP", "\\fB" + escape(row.group(2)) + "\\fR", prose(row.group(3))]
            kind, column = "row", row.start(3)
        elif kind in ("item", "row") and indent > (column if kind == "item" else column - 1):
            out.append(prose(stripped))
        else:
            if kind in ("item", "row") or paragraph:
                out.append(".PP")
            out.append(prose(stripped))
            kind = "text"
            paragraph = False
    return out


def synopsis(declaration):
    """A prototype, one argument a line where it is long."""
    head, arguments = re.match(r"(.*?)\((.*)\);$", declaration).groups()
    lines = [f"{head}({arguments});"]
    if len(lines[0]) > 72:
        lines = [head + "("] + [f"    {a.strip()}," for a in arguments.split(",")]
        lines[-1] = lines[-1][:-1] + ");"
    return ["\\fB" + escape(line) + "\\fR" for line in lines]


def heading(name, version):
    return [f".\\\" Made from include/spark_comm.h by scripts/make_man.py: change the header instead.",
            f".TH {name} 3 {DATE} \"spark_comm {version}\" \"spark_comm manual\""]


def function_page(page, title, members, functions, version):
    names = [f"spark_comm_{member}" for member in members]
    out = heading(page, version)
    out += [".SH NAME", ", ".join(names) + " \\- " + escape(title), ".SH SYNOPSIS", ".nf",
            "\\fB#include <spark_comm.h>\\fR", ".PP"]
    for index, name in enumerate(names):
        out += ([".PP"] if index else []) + synopsis(functions[name].declaration)
    out += [".fi", ".SH DESCRIPTION"]
    for name in names:
        function = functions[name]
        if len(names) > 1:
            out.append(f".SS {name}")
        out += passage(function.text)
        for part, text in function.parts:
            out += [".TP", f"\\fB{part}\\fR", prose(text)]
    common = functions[names[0]].common
    if any("common" in text for name in names for _, text in functions[name].parts):
        out += [".SH COMMON RULES"] + passage(common)
    out += [".SH SEE ALSO", "\\fBspark_comm\\fR(3), \\fBspark\\-comm\\fR(1)"]
    return "\n".join(out) + "\n"


def overview_page(general, status_rules, statuses, families, version):
    out = heading("spark_comm", version)
    out += [".SH NAME", "spark_comm \\- the communication layer of a distributed LLM inference engine",
            ".SH SYNOPSIS", ".nf", "\\fB#include <spark_comm.h>\\fR", ".PP",
            "\\fBcc file.c $(pkg\\-config \\-\\-cflags \\-\\-libs spark_comm)\\fR", ".fi"]
    section = []
    title = None

    def flush():
        nonlocal section
        if title and title != "HOW TO READ THE COMMENTS OF THE FUNCTIONS":
            out.append(f".SH {title}")
            out.extend(passage(section))
        elif title:
            out.append(".SH THE EIGHT PARTS")
            out.extend(passage(section))
        section = []

    for line in general:
        if re.fullmatch(r"[A-Z][A-Z, ]+", line):
            flush()
            title = line
        else:
            section.append(line)
    flush()
    out += [".SH STATUSES"] + passage([re.sub(r"^STATUSES\. ", "", status_rules[0])] +
                                      status_rules[1:])
    for name, value, text in statuses:
        out += [".TP", f"\\fB{name}\\fR ({value})", prose(text)]
    out.append(".SH PAGES")
    for page, about, _ in families:
        out += [".TP", f"\\fB{page}\\fR(3)", escape(about)]
    out += [".SH SEE ALSO", "\\fBspark\\-comm\\fR(1)"]
    return "\n".join(out) + "\n"


def make_pages(text):
    """{file name: contents}"""
    general, status_rules, statuses, functions, version = read_header(text)
    families = list(FAMILIES)
    placed = {f"spark_comm_{member}" for _, _, members in families for member in members}
    for name in sorted(placed - set(functions)):
        sys.exit(f"make_man.py: {name} is in FAMILIES, but the header does not declare it")
    for name in functions:
        if name not in placed:
            sentence = functions[name].text[0].rstrip(".")
            families.append((name, sentence[:1].lower() + sentence[1:], [name[len("spark_comm_"):]]))
    pages = {"spark_comm.3": overview_page(general, status_rules, statuses, families, version)}
    for page, title, members in families:
        pages[f"{page}.3"] = function_page(page, title, members, functions, version)
        for member in members:
            pages.setdefault(f"spark_comm_{member}.3", f".so man3/{page}.3\n")
    return pages


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    pages = make_pages(HEADER.read_text(encoding="utf-8"))
    stale = [path.name for path in PAGES.glob("*.3") if path.name not in pages]
    differing = [name for name, content in pages.items()
                 if not (PAGES / name).exists() or (PAGES / name).read_text() != content]
    if check:
        for name in sorted(stale + differing):
            print(f"docs/man/{name}: out of date; run scripts/make_man.py")
        return 1 if stale or differing else 0
    PAGES.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (PAGES / name).unlink()
    for name in differing:
        (PAGES / name).write_text(pages[name])
    print(f"{len(pages)} pages in docs/man, {len(differing)} written, {len(stale)} removed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
