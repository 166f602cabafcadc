# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""`kvgraft store`: what it prints, and its exit codes."""
import json
import os

from conftest import run


def url(tmp_path, more=""):
    return "file:%s/store?floor=0%s" % (tmp_path, more)


def test_an_object_goes_in_and_comes_out(tmp_path):
    body = os.urandom(200000)
    assert run("store", "put", url(tmp_path), "abc_0_k", "-", "--group", "g", stdin=body)[0] == 0
    code, out, _ = run("store", "get", url(tmp_path), "abc_0_k", "-o", str(tmp_path / "out"))
    assert code == 0 and (tmp_path / "out").read_bytes() == body
    run("store", "get", url(tmp_path), "abc_0_k", "-o", str(tmp_path / "out"),
        "--offset", "65530", "--bytes", "20")
    assert (tmp_path / "out").read_bytes() == body[65530:65550]
    code, out, _ = run("store", "ls", "--json", url(tmp_path))
    assert json.loads(out) == {"key": "abc_0_k", "bytes": 200000, "medium": "disk", "group_id": "g"}
    stat = json.loads(run("store", "stat", "--json", url(tmp_path))[1])
    assert stat["objects"] == 1 and stat["bytes"] == 200000 and "persistent" in stat["promises"]
    text = run("store", "stat", url(tmp_path))[1]
    assert "objects    1\n" in text and "bytes      195.3 KiB of " in text, text
    assert "200.0 KiB on disk" in text or "196.0 KiB on disk" in text, text
    assert run("store", "rm", url(tmp_path), "abc_0_k")[0] == 0
    assert run("store", "rm", url(tmp_path), "abc_0_k")[0] == 1
    assert run("store", "get", url(tmp_path), "abc_0_k")[0] == 1


def test_damage_is_found_and_repaired(tmp_path):
    for name in "abc":
        run("store", "put", url(tmp_path), name, "-", stdin=name.encode() * 5000)
    segment = tmp_path / "store" / "segment-00000000"
    bytes_ = bytearray(segment.read_bytes())
    bytes_[8192 + 100] ^= 1
    segment.write_bytes(bytes_)
    code, out, err = run("store", "check", url(tmp_path))
    assert code == 1 and "1 damaged" in out and "damaged: b" in err
    assert run("store", "repair", url(tmp_path))[0] == 0
    code, out, _ = run("store", "check", "--json", url(tmp_path))
    assert code == 0 and json.loads(out)["objects"] == 2


def test_clearing_wants_to_be_meant(tmp_path):
    run("store", "put", url(tmp_path), "a", "-", stdin=b"x")
    assert run("store", "clear", url(tmp_path))[0] == 2
    assert run("store", "clear", "--yes", url(tmp_path))[0] == 0
    assert run("store", "ls", url(tmp_path))[1] == ""


def test_mistakes_are_explained_and_secrets_kept(tmp_path):
    code, _, err = run("store", "stat", "swim:pool")
    assert code == 1 and "memory:" in err
    code, _, err = run("store", "stat", url(tmp_path, "&password=hunter2"))
    assert code == 1 and "hunter2" not in err and "no such parameter" in err
    assert run("store", "stat", url(tmp_path))[0] == 1  # Not there, and not made by looking.
    assert not (tmp_path / "store").exists()
    assert run("store", "dance", url(tmp_path))[0] == 2
    assert run("store")[0] == 2


def test_faults_can_be_asked_for(tmp_path):
    run("store", "put", url(tmp_path), "a", "-", stdin=b"x")
    code, _, err = run("store", "get", "fault+" + url(tmp_path, "&fault.fail=get:1"), "a")
    assert code == 1 and "on purpose" in err
    assert "fault+URL" in run("store", "schemes")[1]


def test_a_store_that_does_not_tell_its_changes_is_not_published():
    code, _, err = run("store", "publish", "memory:")
    assert code == 1 and "other processes" in err


def test_a_directory_without_a_store_is_told_in_words(tmp_path):
    code, _, err = run("store", "stat", "file:%s" % tmp_path)
    assert code == 1
    assert "no store in this directory yet" in err
