# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""`kvgraft simulate`, from outside."""
import json
import os
import xml.etree.ElementTree as ElementTree

import pytest

from conftest import run
from standin import ROOT, SHARED

SMALL = os.path.join(ROOT, "tests", "data", "simulate", "small.jsonl")
TRACES = os.path.join(SHARED, "traces")
LINE = '{"timestamp": 0, "input_length": %d, "output_length": 5, "hash_ids": %s}\n'


def simulate(*arguments, **more):
    code, out, err = run("simulate", "--json", *arguments, **more)
    assert code == 0, err
    return json.loads(out)


def test_a_sweep_is_a_table_json_and_a_picture(tmp_path):
    svg, js = tmp_path / "sweep.svg", tmp_path / "sweep.json"
    code, out, err = run("simulate", SMALL, "-c", "100pages..400pages,unlimited", "-P",
                         "lru,slru", "--svg", svg, "--out", js)
    assert code == 0 and err == ""
    rows = [line.split() for line in out.splitlines() if line.startswith(("  lru", "  slru"))]
    assert len(rows) == 8 and "2,838 pages hit, 64.53 %" in out
    got = json.loads(js.read_text())
    runs = got["traces"][0]["runs"]
    assert [(r["policy"], r["capacity_pages"]) for r in runs] == [
        (policy, pages) for policy in ("lru", "slru") for pages in (100, 200, 400, None)]
    for row, told in zip(rows, runs):
        assert "{:,}".format(told["pages_hit"]) in row
        assert told["operations_per_second"] > 0 and told["memory_bytes"] > 0
    tree = ElementTree.parse(svg)
    lines = tree.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert [len(line.get("points").split()) for line in lines] == [3, 3]


def test_default_capacities_end_at_all_distinct_pages():
    got = simulate(SMALL)["traces"][0]
    assert len(got["runs"]) == 8
    assert got["runs"][-1]["capacity_pages"] == got["pages_distinct"] == 1560
    assert got["runs"][-1]["pages_hit"] == got["ideal"]["pages_hit"] == 2838


def test_bytes_tokens_and_pages_are_the_same_capacity():
    runs = simulate(SMALL, "-b", "1KiB", "-c", "100MiB,102400tokens,200pages")
    hits = {r["pages_hit"] for r in runs["traces"][0]["runs"]}
    assert len(hits) == 1


def test_times_are_all_that_differs_from_run_to_run():
    arguments = (SMALL, SMALL, "-P", "all", "-c", "100pages..400pages", "--no-times")
    first = run("simulate", "--json", *arguments)
    assert first[0] == 0
    assert run("simulate", "--json", *arguments, "--threads", "1", "--seed", "9") == first
    table = run("simulate", *arguments)
    assert table[0] == 0 and run("simulate", *arguments, "-t", "1") == table


def test_stdin_is_a_trace_and_engines_share_nothing():
    with open(SMALL, "rb") as file:
        text = file.read()
    alone = simulate("-", "-c", "unlimited", stdin=text)["traces"][0]
    four = simulate("-", "-c", "unlimited", "--engines", "4", stdin=text)["traces"][0]
    assert alone["runs"][0]["pages_hit"] == alone["ideal"]["pages_hit"]
    assert four["runs"][0]["pages_hit"] < four["ideal"]["pages_hit"]


def test_other_blocks_and_pages(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(LINE % (40, "[0, 1, 2]") + LINE % (45, "[0, 1, 3]"))
    got = simulate(path, "--block-tokens", "16", "-p", "8", "-c", "unlimited")["traces"][0]
    assert (got["pages"], got["ideal"]["pages_hit"]) == (12, 4)
    got = simulate(path, "--block-tokens", "16", "-p", "8", "-c", "unlimited",
                   "--last-block", "cut")["traces"][0]
    assert (got["pages"], got["ideal"]["pages_hit"]) == (10, 4)
    assert got["ideal"]["token_hit_ratio"] == pytest.approx(32 / 85)


@pytest.mark.parametrize("arguments,says", [
    ((), "takes a trace"),
    ((SMALL, "-c", "64GiB"), "--bytes-per-token"),
    ((SMALL, "-c", "5"), "is no capacity"),
    ((SMALL, "-c", "100tokens"), "less than one page of 512 tokens"),
    ((SMALL, "-P", "best"), "there are lru"),
    ((SMALL, "-p", "0"), "1 to 65536"),
    ((SMALL, "--engines", "65"), "1 to 64"),
    ((SMALL, "--grain", "block"), "node|page"),
    ((SMALL,) * 9, "at most 8 traces")])
def test_wrong_use_is_2_and_says_what_is_allowed(arguments, says):
    code, out, err = run("simulate", *arguments)
    assert code == 2 and out == "" and says in err


def test_what_is_wrong_with_a_trace_is_said_with_its_line(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(LINE % (512, "[0]") + LINE % (513, "[0]"))
    code, out, err = run("simulate", path)
    assert code == 1 and out == "" and "bad.jsonl: line 2" in err and "--block-tokens" in err
    path.write_text(LINE % (512, "[0]") + "\noops\n")
    code, _, err = run("simulate", path)
    assert code == 1 and "line 3" in err
    path.write_text("")
    code, _, err = run("simulate", path)
    assert code == 1 and "no request" in err
    code, _, err = run("simulate", tmp_path / "nosuch")
    assert code == 1 and err.count("nosuch") == 1
    code, _, err = run("simulate", SMALL, "--svg", tmp_path / "no" / "such")
    assert code == 1 and "No such file" in err


@pytest.mark.skipif(not os.path.isdir(TRACES),
                    reason="needs the public traces, in ../shared beside the clone")
@pytest.mark.parametrize("name,hit,pages", [
    ("conversation_trace.jsonl", 105_710, 288_500), ("synthetic_trace.jsonl", 77_953, 121_877)])
def test_the_published_reuse_of_a_public_trace(name, hit, pages):
    got = simulate(os.path.join(TRACES, name), "-c", "unlimited", "--grain", "page", "--compact",
                   timeout=600)["traces"][0]
    assert (got["ideal"]["pages_hit"], got["pages"]) == (hit, pages)
    assert (got["runs"][0]["pages_hit"], got["runs"][0]["nodes"]) == (hit, pages - hit)
