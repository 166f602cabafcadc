# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""The daemon follows a stand-in master over ZeroMQ, and ends up with what the store holds.

The truth is what the master itself listed when a capture was recorded.  Captures in which events
were lost must not be called fresh before they are repaired.
"""
import os
import re

import pytest

from conftest import eventually
from standin import DATA, SHARED, Capture, object_keys

ALL = ["legacy_off", "master_restart", "mha_tp1_small", "mha_tp2_groups", "mla_tagged_pp2",
       "overflow_gap", "silent_loss", "split_heads_eagle"]
LOSSY = ["master_restart", "overflow_gap", "silent_loss"]
LAYOUT = {"page_size": 4, "tp_size": 1, "pp_size": 1, "is_mla_model": False,
          "is_eagle": False, "should_split_heads": False, "backend": "mooncake"}

# Short, so that a repair comes within a moment; silence long, so that none comes by chance.
FAST = {"status_interval": "100ms", "count_interval": "100ms", "retry_min": "50ms",
        "retry_max": "200ms", "silence": "1h"}


def source_of(master, workers=None, **more):
    return dict({"name": "store", "endpoint": master.endpoint, "admin_url": master.admin_url,
                 "workers": workers or {"1": LAYOUT}}, **FAST, **more)


def state(daemon):
    return daemon.get("/v1/sources").json["sources"][0]


def confidence(daemon):
    return state(daemon)["confidence"]


def is_fresh(daemon):
    return daemon.get("/readyz").status == 200 and confidence(daemon) == "fresh"


def pages_of(keys):
    """The object keys that name pages, as an index tells them: it holds no others, and of a page
    key the first half."""
    found = (re.fullmatch(r"((?:.*_)?[0-9a-f]{32})[0-9a-f]{32}(_.+)", key) for key in keys)
    return {match[1] + "?" * 32 + match[2] for match in found if match}


def dumped(daemon):
    return set(daemon.get("/v1/dump").body.decode().split())


def check_prompts(daemon, capture, limit=None):
    """Every prompt of a capture is answered as its truth says."""
    for prompt in capture.info["prompts"][:limit]:
        answer = daemon.post("/v1/lookup", {"tokens": capture.tokens_of(prompt),
                                            "worker_id": prompt.get("layout", 0) + 1})
        assert answer.status == 200, answer.body
        got = answer.json
        assert got["pages"] == prompt["pages"]
        assert got["contiguous_pages"] == prompt["leading"], prompt
        present = set()
        for begin, end in got["ranges"]:
            present.update(range(begin, end))
        assert [int(i in present) for i in range(prompt["pages"])] == prompt["presence"]
        assert got["present_pages"] == sum(prompt["presence"])


def play_all(master, daemon, capture):
    """Publishes everything and waits until the daemon has seen the last message."""
    master.wait_subscriber()
    eventually(lambda: state(daemon)["connected"], "connected")
    master.play(capture)
    last = capture.info["counts"]["last_sequence"]
    total = capture.info["counts"]["messages"]
    eventually(lambda: state(daemon)["messages"] >= total and
               state(daemon)["last_sequence"] == last, "all messages applied")


@pytest.mark.parametrize("name", ALL)
def test_a_recorded_stream_ends_as_the_store_ended(name, master, make_daemon):
    capture = Capture(name)
    if name in LOSSY:
        master.admin_open = False  # No repair before we want it.
    daemon = make_daemon([source_of(master, capture.workers())]).start()
    play_all(master, daemon, capture)
    master.keys = set(capture.keys)
    if name in LOSSY:
        assert confidence(daemon) != "fresh"
        assert state(daemon)["reasons"]
        assert daemon.get("/readyz").status == 503
        if name != "master_restart":  # There the sequence itself said what is gone.
            assert dumped(daemon) != pages_of(capture.keys)
        master.admin_open = True
    eventually(lambda: is_fresh(daemon), "fresh; state: %s" % state(daemon))
    assert dumped(daemon) == pages_of(capture.keys)
    check_prompts(daemon, capture)


def test_a_publisher_without_object_keys_is_not_believed(master, make_daemon):
    capture = Capture("objkey_off")
    daemon = make_daemon([source_of(master, capture.workers())]).start()
    play_all(master, daemon, capture)
    master.keys = set(capture.keys)
    eventually(lambda: "keyless" in state(daemon)["reasons"], "keyless")
    assert confidence(daemon) != "fresh"


@pytest.mark.skipif(not os.path.exists(os.path.join(SHARED, "fixtures")),
                    reason="needs the largest capture, in ../shared beside the clone")
def test_two_hundred_thousand_objects(master, make_daemon, tmp_path):
    folder = os.path.join(SHARED, "fixtures", "mooncake")
    capture = Capture("throughput_200k", folder)
    daemon = make_daemon([source_of(master, capture.workers())]).start()
    play_all(master, daemon, capture)
    eventually(lambda: is_fresh(daemon), "fresh")
    assert dumped(daemon) == pages_of(capture.keys)
    check_prompts(daemon, capture, limit=200)


@pytest.mark.parametrize("name", ["mha_tp1_small", "mla_tagged_pp2"])
def test_a_late_joiner_rebuilds_from_a_listing(name, master, make_daemon):
    capture = Capture(name)
    master.admin_open = False
    half = len(capture.messages) // 2
    daemon = make_daemon([source_of(master, capture.workers())])
    master.play(capture, last=half)  # Nobody listens yet.
    daemon.start()
    master.wait_subscriber()
    eventually(lambda: state(daemon)["connected"], "connected")
    master.play(capture, first=half)
    eventually(lambda: "late_join" in state(daemon)["reasons"], "late join noticed")
    assert confidence(daemon) != "fresh"
    master.admin_open = True
    eventually(lambda: is_fresh(daemon), "fresh")
    assert dumped(daemon) == pages_of(capture.keys)
    check_prompts(daemon, capture)


def test_keys_lost_in_silence_are_noticed_by_their_count(master, make_daemon):
    daemon = make_daemon([source_of(master)]).start()
    master.wait_subscriber()
    eventually(lambda: state(daemon)["connected"], "connected")
    keys = object_keys(1, 500)
    master.publish(stored=keys)
    eventually(lambda: is_fresh(daemon) and state(daemon)["parts"] == 1000, "fresh")
    master.publish(removed=keys[:300], silent=True)
    eventually(lambda: state(daemon)["parts"] == 700 and is_fresh(daemon), "repaired")
    assert dumped(daemon) == pages_of(keys[300:])


def test_a_repair_goes_on_under_a_running_stream(master, make_daemon):
    """Listings that take their time, while stores and removes go on: nothing is lost."""
    daemon = make_daemon([source_of(master)]).start()
    master.wait_subscriber()
    eventually(lambda: state(daemon)["connected"], "connected")
    master.admin_delay_s = 0.2
    keys = object_keys(2, 600)
    for i in range(0, 600, 4):
        master.publish(stored=keys[i:i + 8], removed=keys[max(0, i - 40):max(0, i - 36)])
        if i % 100 == 0:
            master.lose()
    master.admin_delay_s = 0
    eventually(lambda: is_fresh(daemon), "fresh")
    assert dumped(daemon) == pages_of(master.keys)


def test_probing_asks_nothing_that_renews_leases(master, make_daemon):
    daemon = make_daemon([source_of(master)]).start()
    master.wait_subscriber()
    master.publish(stored=object_keys(3, 10))
    master.lose()
    master.publish(stored=object_keys(4, 10))
    eventually(lambda: is_fresh(daemon), "fresh")
    assert set(master.admin_calls) <= {"/get_all_keys", "/metrics", "/kv_events/status",
                                       "/batch_query_keys"}


def test_the_recorded_admin_answers_are_understood():
    """What the stand-in says has the form of what a real master said."""
    names = {"get_all_keys", "metrics", "kv_events_status", "batch_query_keys"}
    for name in names:
        with open(os.path.join(DATA, "admin", name + ".txt"), "rb") as file:
            assert file.read().startswith(b"HTTP/1.1 200 OK")
