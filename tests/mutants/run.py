#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""Plants bugs, one at a time, and sees that the tests catch each.

    run.py MUTANTS BUILD_DIR PROGRAM...
    run.py MUTANTS --texts

MUTANTS is a list as in tree.txt.  PROGRAMs are test programs of BUILD_DIR, by name, built already.
For each bug the one file it is in is compiled anew with the command the build used, and each
program is linked again with that object first, so that it wins over the library's; one of the
programs must fail.  The bug's text must be found exactly once: a list that no longer fits its
sources is an error too, and the only one that --texts looks for.
"""
import json
import os
import shlex
import subprocess
import sys
import tempfile


def read_mutants(path):
    mutants, part, text = [], None, None
    for line in open(path):
        if part is None and line.startswith("== "):
            mutants.append({"name": line[3:].strip(), "old": "", "new": ""})
        elif part is None and line.startswith("file: "):
            mutants[-1]["file"] = line[6:].strip()
        elif part is None and line.strip() == "<<<":
            part = "old"
        elif part == "old" and line.strip() == "===":
            part = "new"
        elif part == "new" and line.strip() == ">>>":
            part = None
        elif part is not None:
            mutants[-1][part] += line
    return mutants


def compile_command(build, source):
    for entry in json.load(open(os.path.join(build, "compile_commands.json"))):
        if os.path.realpath(entry["file"]) == os.path.realpath(source):
            return shlex.split(entry["command"]), entry["directory"]
    sys.exit(f"{source} is not in the build")


def link_command(build, program):
    """The link line of a program, from ninja."""
    out = subprocess.run(["ninja", "-C", build, "-t", "commands", "-s", f"tests/{program}"],
                         capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        if f"-o tests/{program}" in line:
            line = line.removeprefix(": && ").removesuffix(" && :")
            return shlex.split(line.split(" && ")[0])
    sys.exit(f"no link command for {program}")


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    mutants, build, programs = read_mutants(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3:]
    texts_only = sys.argv[2] == "--texts"
    missed = []
    with tempfile.TemporaryDirectory() as work:
        links = {p: link_command(build, p) for p in programs}
        for mutant in mutants:
            source = os.path.join(root, mutant["file"])
            text = open(source).read()
            if text.count(mutant["old"]) != 1:
                missed.append(f"{mutant['name']}: its text is there {text.count(mutant['old'])} times")
                continue
            if texts_only:
                continue
            planted = os.path.join(work, "planted.c")
            open(planted, "w").write(text.replace(mutant["old"], mutant["new"]))
            command, where = compile_command(build, source)
            at, to = command.index("-c"), command.index("-o")
            command[at + 1], command[to + 1] = planted, os.path.join(work, "planted.o")
            command += ["-Wno-error", "-w", "-I", os.path.dirname(source)]
            subprocess.run(command, cwd=where, check=True)
            caught = None
            for program in programs:
                link = list(links[program])
                to = link.index("-o")
                link[to + 1] = os.path.join(work, program)
                link.insert(to, os.path.join(work, "planted.o"))
                subprocess.run(link, cwd=build, check=True)
                try:
                    done = subprocess.run([link[to + 2]], capture_output=True, timeout=60)
                    failed = done.returncode != 0
                except subprocess.TimeoutExpired:
                    failed = True
                if failed:
                    caught = program
                    break
            print(f"{'caught by ' + caught if caught else 'MISSED':32} {mutant['name']}", flush=True)
            if not caught:
                missed.append(mutant["name"])
    for line in missed:
        print("missed:", line)
    return 1 if missed else 0


sys.exit(main())
