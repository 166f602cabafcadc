#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""How long it takes from a loss to `fresh` again, with a million keys.

A stand-in master (tests/e2e/standin.py) publishes KEYS object keys to a daemon; then events are
lost in a gap, or keys vanish without an event, or the daemon is killed and starts again, warm and
cold.  Printed is the time until every answer is fresh again, beside the floor: the time this
stand-in needs to send its listing to somebody who throws it away, measured in the same run.

    bench/repair_time.py [--keys N] [--program build/release/kvgraft] [--json]

A stand-in in Python makes a listing of a million keys in about a second; a real master takes
about as long.  Nothing here passes or fails.
"""
import argparse
import json
import os
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "tests", "e2e"))
import conftest  # noqa: E402
import standin  # noqa: E402
import test_follow  # noqa: E402


def listing_s(master):
    """What a listing takes by itself."""
    best = None
    for _ in range(3):
        began = time.monotonic()
        with urllib.request.urlopen(master.admin_url + "/get_all_keys") as answer:
            while answer.read(1 << 20):
                pass
        took = time.monotonic() - began
        best = took if best is None else min(best, took)
    return best


def until(condition, what):
    began = time.monotonic()
    conftest.eventually(condition, what, wait_s=600)
    return time.monotonic() - began


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.folder = tempfile.mkdtemp(prefix="kvgraft-repair-")
        self.master = standin.Master()
        source = test_follow.source_of(self.master, memory_bytes_max="1GiB")
        source.update({"status_interval": "1s", "count_interval": "1s"})
        self.daemon = conftest.Daemon(self.folder, [source],
                                      dump={"path": self.folder, "interval": "0ms"})
        self.rows = []

    def parts(self):
        return test_follow.state(self.daemon)["parts"]

    def fresh_with(self, parts):
        return test_follow.is_fresh(self.daemon) and self.parts() == parts

    def row(self, what, seconds, note=""):
        self.rows.append((what, seconds, note))
        if self.arguments.json:
            print(json.dumps({"bench": "repair_time", "keys": self.arguments.keys, "what": what,
                              "seconds": round(seconds, 3), "note": note}), flush=True)
        else:
            print("  %-58s %9.2f s  %s" % (what, seconds, note), flush=True)

    def run(self):
        count = self.arguments.keys
        keys = standin.object_keys(40, count // 2)
        if not self.arguments.json:
            print("%d keys, page of two parts, %s" % (count, conftest.PROGRAM))
        self.daemon.start()
        self.master.wait_subscriber()
        conftest.eventually(lambda: test_follow.state(self.daemon)["connected"], "connected")
        began = time.monotonic()
        for i in range(0, count, 1000):
            self.master.publish(stored=keys[i:i + 1000])
        until(lambda: self.parts() == count, "all applied")
        self.row("the stand-in publishes all of them, and they are applied",
                 time.monotonic() - began, "not a figure of ours alone")
        until(lambda: self.fresh_with(count), "fresh")
        floor = listing_s(self.master)
        self.row("floor: the listing by itself, thrown away", floor)

        self.master.publish(stored=standin.object_keys(41, 1000))  # Then a message is lost.
        self.master.lose()
        lost = standin.object_keys(42, 1000)
        with self.master.lock:
            self.master.keys.update(lost)
        began = time.monotonic()
        self.master.publish(stored=standin.object_keys(43, 1))
        until(lambda: self.fresh_with(count + 4002), "repaired after a gap")
        took = time.monotonic() - began
        self.row("a gap, to fresh", took, "%.1f x the floor" % (took / floor))

        began = time.monotonic()
        self.master.publish(removed=keys[:count // 10], silent=True)
        until(lambda: self.fresh_with(count + 4002 - count // 10), "repaired after silence")
        self.row("a tenth lost without an event, to fresh", time.monotonic() - began,
                 "noticed by the count, once a second")

        self.restart("the daemon stopped, started warm, to fresh", warm=True)
        self.restart("the daemon killed, started cold, to fresh", warm=False)

    def restart(self, what, warm):
        parts = self.parts()
        if warm:
            assert self.daemon.stop() == 0
        else:
            self.daemon.kill()
            for name in os.listdir(self.folder):
                if name not in ("kvgraft.json", "log"):
                    os.unlink(os.path.join(self.folder, name))
        began = time.monotonic()
        self.daemon.start()
        up = time.monotonic() - began
        known = self.parts()
        until(lambda: self.fresh_with(parts), "fresh after a start")
        self.row(what, time.monotonic() - began,
                 "answering after %.2f s with %d keys known" % (up, known))

    def close(self):
        self.daemon.stop()
        self.master.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--program", default=os.path.join(standin.ROOT, "build", "release",
                                                          "kvgraft"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    conftest.PROGRAM = arguments.program
    bench = Bench(arguments)
    try:
        bench.run()
    finally:
        bench.close()


main()
