# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""The commands: what they print, and their exit codes."""
import hashlib
import json
import os
import signal
import struct
import subprocess

import pytest

from conftest import PROGRAM, WAIT_S, eventually, free_port, run
from standin import SHARED, Capture
from test_follow import is_fresh, play_all, source_of

TRACES = os.path.join(SHARED, "traces")


def page_keys(tokens, page_size, prior=b"", eagle=False):
    """As the definition says: SHA-256 over the last key and the page's units."""
    units = [struct.pack("<I", t) for t in tokens]
    if eagle:
        units = [a + b for a, b in zip(units, units[1:])]
    keys = []
    for i in range(len(units) // page_size):
        prior = hashlib.sha256(prior + b"".join(units[i * page_size:(i + 1) * page_size])).digest()
        keys.append(prior.hex())
    return keys


# hash

def test_hash_gives_the_keys_of_the_definition():
    tokens = list(range(1, 19))
    code, out, _ = run("hash", "--page-size", "4", *tokens)
    assert code == 0 and out.split() == page_keys(tokens, 4)
    assert run("hash", "-p", "4", "1..18")[1] == out
    assert run("hash", "-p", "4", "1,2,3 4", "5..18")[1] == out
    assert run("hash", "-p", "4", "-", stdin=json.dumps(tokens).encode())[1] == out
    assert run("hash", "-p", "4", "-f", "-", stdin=struct.pack("<18I", *tokens))[1] == out
    code, out, _ = run("hash", "-p", "4", "--eagle", "1..18")
    assert out.split() == page_keys(tokens, 4, eagle=True)
    first = page_keys(tokens, 4)[0]
    code, out, _ = run("hash", "-p", "4", "--prior", first, "5..18")
    assert out.split() == page_keys(tokens, 4)[1:]


def test_hash_prints_json():
    code, out, _ = run("hash", "--json", "-p", "4", "1..9")
    got = json.loads(out)
    assert code == 0
    assert [page["key"] for page in got["pages"]] == page_keys(range(1, 10), 4)
    assert got["tokens"] == 9 and got["page_size"] == 4


@pytest.mark.parametrize("name", ["mha_tp1_small", "mla_tagged_pp2", "split_heads_eagle"])
def test_hash_names_the_objects_of_a_recorded_store(name, tmp_path):
    """Of a prompt that is present to the end, every object is in the store's own list."""
    capture = Capture(name)
    worker = capture.workers()["1"]
    path = tmp_path / "layout.json"
    path.write_text(json.dumps(worker))
    whole = [p for p in capture.info["prompts"]
             if p["pages"] > 0 and p["leading"] == p["pages"] and not p.get("layout")]
    assert whole
    for prompt in whole:
        tokens = " ".join(str(t) for t in capture.tokens_of(prompt))
        code, out, err = run("hash", "--layout", path, "-", stdin=tokens.encode())
        assert code == 0, err
        names = out.split()
        assert len(names) == prompt["pages"] * capture.info["parts_per_page"]
        assert set(names) <= capture.keys
        inline = run("hash", "--layout", json.dumps(worker), "-", stdin=tokens.encode())
        assert inline[1] == out
        code, out, _ = run("hash", "--groups", "--layout", path, "-", stdin=tokens.encode())
        assert len(out.split()) == prompt["pages"]
        assert all(group.startswith("sglang-hicache:") for group in out.split())


@pytest.mark.parametrize("arguments", [
    ("hash",), ("hash", "x"), ("hash", "5..1"), ("hash", "-p", "0", "1"),
    ("hash", "-p", "65537", "1"), ("hash", "--layout", "{", "1"),
    ("hash", "--layout", '{"page_size":0}', "1"), ("hash", "--layout", "{}", "1"),
    ("hash", "--layout", "/no/such/file", "1"), ("hash", "--prior", "abc", "1"),
    ("hash", "--groups", "1"), ("hash", "--layout", '{"page_size":4,"tp_size":100000}', "1"),
    ("query",), ("query", "--url", "nonsense", "1"), ("query", "--timeout", "5", "1"),
    ("demo", "x"), ("demo", "--engines", "0"), ("bench", "nosuch"), ("help", "nosuch"),
    ("version", "x")])
def test_wrong_use_is_2(arguments):
    code, out, err = run(*arguments)
    assert code == 2 and out == "" and err


@pytest.mark.parametrize("arguments", [
    ("query", "--url", "http://127.0.0.1:1", "1"), ("query", "--url", "unix:/no/such", "1"),
    ("demo", "--exit", "--trace", "/no/such/trace")])
def test_what_cannot_be_done_is_1(arguments):
    code, out, err = run(*arguments)
    assert code == 1 and out == "" and err.startswith("kvgraft " + arguments[0])


# help

def test_help_is_there_for_every_command():
    code, out, _ = run("help")
    assert code == 0 and run("--help")[1] == out
    names = [line.split()[0] for line in out.split("commands:")[1].split("`kvgraft help")[0]
             .strip().splitlines()]
    assert {"demo", "serve", "query", "hash", "watch", "record", "replay", "bench",
            "config", "simulate"} <= set(names)
    for name in names:
        code, out, _ = run("help", name)
        assert code == 0 and "usage" in out, name
    code, out, err = run()
    assert code == 2 and out == "" and "usage" in err


def test_version_is_told():
    code, out, _ = run("version", "--json")
    version = json.loads(out)["version"]
    assert code == 0 and version in run("--version")[1] and version in run("version")[1]


def test_bench_lists_and_prints_one_row_a_line():
    code, out, _ = run("bench", "--list")
    assert code == 0 and "page" in out.split()
    code, out, _ = run("bench", "--quick", "--json", "page", timeout=300)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and rows and all(row["bench"] == "page" for row in rows)
    assert any("floor" in row and "ratio" in row for row in rows)


# query

def test_query_asks_a_daemon(master, make_daemon, tmp_path):
    capture = Capture("mha_tp1_small")
    socket_path = str(tmp_path / "s")
    daemon = make_daemon([source_of(master, capture.workers())],
                         http={"unix_socket": socket_path}).start()
    play_all(master, daemon, capture)
    eventually(lambda: is_fresh(daemon), "fresh")
    for prompt in capture.info["prompts"]:
        tokens = " ".join(str(t) for t in capture.tokens_of(prompt)).encode()
        code, out, err = run("query", "--json", "--url", daemon.url, "-", stdin=tokens)
        assert code == 0, err
        got = json.loads(out)
        assert got["pages"] == prompt["pages"]
        assert got["contiguous_pages"] == prompt["leading"]
        assert got["confidence"] == "fresh"
        assert json.loads(run("query", "--json", "--url", "unix:" + socket_path, "-",
                              stdin=tokens)[1])["contiguous_pages"] == prompt["leading"]
    best = max(capture.info["prompts"], key=lambda p: p["leading"])
    tokens = " ".join(str(t) for t in capture.tokens_of(best)).encode()
    code, out, _ = run("query", "-f", "-", stdin=tokens, env={"KVGRAFT_URL": daemon.url})
    assert code == 0 and out.startswith("%d of %d pages" % (best["leading"], best["pages"]))
    assert "fresh" in out and "\033" not in out
    code, out, _ = run("query", "--explain", "--url", daemon.url, "-", stdin=tokens)
    assert out.count("  present") == sum(best["presence"])
    code, _, err = run("query", "--page-size", "64", "--url", daemon.url, "1..64")
    assert code == 1 and "page_size" in err
    code, out, _ = run("query", "--json", "--source", "nosuch", "--url", daemon.url, "1")
    assert code == 1 and json.loads(out)["status"] == 404


# demo

def test_demo_ends_by_itself_and_its_answers_are_the_truth():
    code, out, err = run("demo", "--exit", "--json", "-n", "300", "--listen",
                         "127.0.0.1:%d" % free_port())
    assert code == 0, err
    got = json.loads(out)
    assert got["requests"] == 300
    assert got["wrong_answers"] == 0 and got["not_fresh_answers"] == 0
    assert got["index_pages"] == got["store_pages"] == got["pages"] - got["shared"]
    assert got["confidence"] == "fresh"
    assert got["bytes_verified"] > 0 and got["bytes_wrong"] == 0 and got["routed_wrong"] == 0
    assert got["store"].startswith("file:/tmp/kvgraft-demo-")
    assert not os.path.exists(got["store"][5:].split("?")[0])
    routed, in_turn = got["routed"], got["round_robin"]
    for saved in routed, in_turn:
        assert saved["requests"] == 300
        assert (saved["device_tokens"] + saved["store_tokens"] + saved["computed_tokens"]
                == got["tokens"])
    # All that was computed before is found, wherever a prompt goes; routing finds it nearer.
    assert routed["device_tokens"] + routed["store_tokens"] == 64 * got["shared"]
    assert routed["computed_tokens"] == in_turn["computed_tokens"]
    assert routed["device_tokens"] > in_turn["device_tokens"]
    again = json.loads(run("demo", "--exit", "--json", "-n", "300", "--listen",
                           "127.0.0.1:%d" % free_port())[1])
    assert (again["pages"], again["shared"]) == (got["pages"], got["shared"])
    other = json.loads(run("demo", "--exit", "--json", "-n", "300", "--seed", "2", "--listen",
                           "127.0.0.1:%d" % free_port())[1])
    assert other["pages"] != got["pages"] and other["wrong_answers"] == 0


def test_demo_recovers_from_engines_and_publishers_that_die():
    code, out, err = run("demo", "--exit", "--json", "-n", "500", "--kill", "--engines", "3",
                         "--store", "memory:?bytes=1GiB", "--listen",
                         "127.0.0.1:%d" % free_port(), timeout=300)
    assert code == 0, err
    got = json.loads(out)
    assert got["engines_killed"] > 0 and got["publishers_killed"] > 0
    assert got["wrong_answers"] == got["routed_wrong"] == got["bytes_wrong"] == 0
    assert got["index_pages"] == got["store_pages"] == got["pages"] - got["shared"]
    # What a dead engine held is in the store all the same.
    assert (got["routed"]["device_tokens"] + got["routed"]["store_tokens"]
            >= 64 * got["shared"])


def test_demo_says_what_is_wrong_with_a_store():
    code, _, err = run("demo", "--exit", "--store", "nosuch:x", "--listen",
                       "127.0.0.1:%d" % free_port())
    assert code == 1 and "nosuch" in err


def test_demo_stays_up_and_can_be_asked_until_ctrl_c():
    port = free_port()
    process = subprocess.Popen(
        [PROGRAM, "demo", "-n", "50", "--listen", "127.0.0.1:%d" % port],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        lines = []
        while not any("Ctrl-C" in line for line in lines):
            line = process.stdout.readline().decode()
            assert line, process.stderr.read().decode()
            lines.append(line)
        typed = next(line.split() for line in lines if "kvgraft query" in line)
        code, out, err = run(*typed[1:])
        assert code == 0, err
        assert out.startswith("4 of 6 pages") and "fresh" in out
        # A second one finds the port taken, says so and takes another.
        code, out, err = run("demo", "--exit", "-n", "5", "--listen", "127.0.0.1:%d" % port)
        assert code == 0 and "any free port" in err
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0


@pytest.mark.skipif(not os.path.isdir(TRACES),
                    reason="needs the public traces, in ../shared beside the clone")
@pytest.mark.parametrize("name,shared,blocks", [
    ("conversation_trace.jsonl", 105_710, 288_500), ("synthetic_trace.jsonl", 77_953, 121_877)])
def test_demo_finds_exactly_what_a_public_trace_shares(name, shared, blocks):
    code, out, err = run("demo", "--exit", "--json", "--trace", os.path.join(TRACES, name),
                         "--listen", "127.0.0.1:%d" % free_port(), timeout=600)
    assert code == 0, err
    got = json.loads(out)
    assert (got["shared"], got["pages"]) == (shared, blocks)
    assert got["wrong_answers"] == 0


def test_demo_takes_a_trace_and_names_a_bad_line(tmp_path):
    path = tmp_path / "trace.jsonl"
    line = '{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": %s}\n'
    path.write_text(line % "[0, 1]" + line % "[0, 2]" + line % "[0, 1, 3]")
    code, out, err = run("demo", "--exit", "--json", "--trace", path, "--listen",
                         "127.0.0.1:%d" % free_port())
    assert code == 0, err
    got = json.loads(out)
    assert (got["requests"], got["pages"], got["shared"]) == (3, 7, 3)
    path.write_text(line % "[0, 1]" + "oops\n")
    code, _, err = run("demo", "--exit", "--trace", path, "--listen",
                       "127.0.0.1:%d" % free_port())
    assert code == 1 and "line 2" in err


# config

def test_config_init_is_good_and_check_says_what_is_not(tmp_path):
    code, out, _ = run("config", "init")
    path = tmp_path / "kvgraft.json"
    path.write_text(out)
    assert code == 0
    code, out, err = run("config", "check", path)
    assert code == 0, err
    path.write_text('{"http": {"lisen": "127.0.0.1:1"}}')
    code, out, err = run("config", "check", path)
    assert code == 1 and "lisen" in err + out and "listen" in err + out
    code, _, err = run("config", "check", tmp_path / "nosuch")
    assert code == 1 and err
    code, _, _ = run("config", "nosuch")
    assert code == 2
