# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""watch, record and replay against publishers over ZeroMQ."""
import json
import os
import signal
import socket
import struct
import subprocess
import threading

import msgpack
import pytest
import zmq

from conftest import PROGRAM, WAIT_S, free_port, run
from standin import DATA, Capture, read_messages

CAPTURES = sorted(name[:-6] for name in os.listdir(DATA) if name.endswith(".kvcap"))


def watch(endpoint, *more):
    """Watches in a process of its own; .communicate() gives what it saw."""
    return subprocess.Popen([PROGRAM, "watch", *more, endpoint], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def finish(process):
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("name", CAPTURES)
def test_a_capture_that_is_replayed_is_watched_as_it_was_recorded(name):
    capture = Capture(name)
    counts = capture.info["counts"]
    endpoint = "tcp://127.0.0.1:%d" % free_port()
    watcher = watch(endpoint, "--json", "-n", str(counts["messages"]))
    code, _, err = run("replay", "--speed", "0", os.path.join(DATA, name + ".kvcap"), endpoint)
    assert code == 0, err
    code, out, err = finish(watcher)
    assert code == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    summary = lines[-1]["summary"]
    assert len(lines) - 1 == counts["messages"]
    assert [line["sequence"] for line in lines[:-1]] == [
        struct.unpack(">Q", frames[1])[0] for _, frames in capture.messages]
    assert sum(len(line["events"]) for line in lines[:-1]) == counts["events"]
    assert summary["events"] == counts["events"]
    assert summary["stored"] == counts["stored"]
    assert summary["removed"] == counts["removed"]
    assert summary["gaps"] == counts["gaps"]
    assert summary["missed_sequences"] == counts["missing_sequences"]
    assert summary["restarts"] == counts["sequence_resets"]
    assert summary["bad_frames"] == summary["bad_payloads"] == summary["bad_events"] == 0


def test_a_recording_of_a_replay_is_the_same_stream(tmp_path):
    capture = Capture("mla_tagged_pp2")
    endpoint = "tcp://127.0.0.1:%d" % free_port()
    copy = str(tmp_path / "copy.kvcap")
    recorder = subprocess.Popen([PROGRAM, "record", "-n", str(len(capture.messages)), endpoint,
                                 copy], stderr=subprocess.PIPE)
    code, _, err = run("replay", "--speed", "0", os.path.join(DATA, "mla_tagged_pp2.kvcap"),
                       endpoint)
    assert code == 0, err
    _, err = recorder.communicate(timeout=WAIT_S)
    assert recorder.returncode == 0, err
    with open(copy, "rb") as file:
        copied = read_messages(file.read())
    assert [frames for _, frames in copied] == [frames for _, frames in capture.messages]


def test_a_recording_does_not_overwrite_a_file(tmp_path):
    path = tmp_path / "there"
    path.write_text("mine")
    code, _, err = run("record", "-d", "10ms", "tcp://127.0.0.1:1", path)
    assert code == 1 and "--force" in err
    assert path.read_text() == "mine"


def test_replay_keeps_the_timing(tmp_path):
    """Two messages 200 ms apart at half speed take at least 400 ms."""
    path = tmp_path / "slow.kvcap"
    message = struct.pack("<I", 1) + struct.pack("<I", 1) + b"x"
    path.write_bytes(b"KVCAP01\n" + struct.pack("<Q", 0) + message +
                     struct.pack("<Q", 200_000_000) + message)
    endpoint = "tcp://127.0.0.1:%d" % free_port()
    watcher = watch(endpoint, "--json", "-n", "2")
    code, _, err = run("replay", "--speed", "0.5", path, endpoint)
    assert code == 0, err
    assert float(err.split(" sent in ")[1].split(" s")[0]) >= 0.4
    code, out, _ = finish(watcher)
    assert json.loads(out.splitlines()[-1])["summary"]["bad_frames"] == 2


@pytest.mark.parametrize("cut", [0, 5, 8, 9, 30, 1000])
def test_a_capture_that_is_cut_off_is_replayed_up_to_the_cut(tmp_path, cut):
    data = open(os.path.join(DATA, "mha_tp1_small.kvcap"), "rb").read()
    path = tmp_path / "cut.kvcap"
    path.write_bytes(data[:cut])
    code, _, err = run("replay", "--wait", "0", "--speed", "0", path,
                       "tcp://127.0.0.1:%d" % free_port())
    if cut == 8:
        assert code == 0
    else:
        assert code == 1 and err.strip()


def test_watch_tells_an_engine_from_a_store():
    context = zmq.Context()
    publisher = context.socket(zmq.XPUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    watcher = watch("tcp://127.0.0.1:%d" % port, "-n", "3")
    assert publisher.poll(WAIT_S * 1000) and publisher.recv()
    hashes = [11, 12, 13]
    event = ["BlockStored", hashes, None, list(range(48)), 16, None, "GPU"]
    for sequence in (7, 8):
        publisher.send_multipart([b"kv@engine", struct.pack(">Q", sequence),
                                  msgpack.packb([1.5, [event], 0])])
    publisher.send_multipart([b"kv@engine", b"short", b""])
    code, out, err = finish(watcher)
    assert code == 0, err
    assert "engine (blocks, vLLM or SGLang), arrays" in out
    assert "joined a running stream" in out
    assert "3 blocks of 16 tokens" in out
    assert "kv@engine (2)" in out
    assert "unreadable" in out
    publisher.close()
    context.term()


def test_watch_says_when_the_port_speaks_something_else():
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def speak():
        listener.settimeout(0.2)
        while not stop.is_set():
            try:
                peer, _ = listener.accept()
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" * 4)
                peer.close()
            except OSError:
                pass
    thread = threading.Thread(target=speak)
    thread.start()
    code, out, err = run("watch", "-d", "3s", "tcp://127.0.0.1:%d" % listener.getsockname()[1])
    stop.set()
    thread.join()
    listener.close()
    assert code == 1
    assert "no ZeroMQ publisher" in err, err + out


def test_ctrl_c_ends_watch_with_a_summary():
    context = zmq.Context()
    publisher = context.socket(zmq.XPUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    watcher = watch("tcp://127.0.0.1:%d" % port, "--json")
    assert publisher.poll(WAIT_S * 1000) and publisher.recv()
    publisher.send_multipart([b"", struct.pack(">Q", 1), msgpack.packb([1, [], 0])])
    assert b'"sequence":1' in watcher.stdout.readline()
    watcher.send_signal(signal.SIGINT)
    code, out, _ = finish(watcher)
    assert code == 0
    assert json.loads(out)["summary"]["messages"] == 1
    publisher.close()
    context.term()


@pytest.mark.parametrize("arguments", [
    ("watch",), ("watch", "a", "b"), ("watch", "--nosuch", "tcp://x:1"),
    ("watch", "--count", "x", "tcp://x:1"), ("record", "tcp://x:1"), ("replay", "x"),
    ("replay", "--speed", "-1", "a", "b"), ("nosuch",), ()])
def test_wrong_use_is_2_and_says_what_to_do(arguments):
    code, out, err = run(*arguments)
    assert code == 2 and out == "" and ("help" in err or "usage" in err)


@pytest.mark.parametrize("arguments", [
    ("watch", "nonsense"), ("watch", "tcp://"), ("replay", "/no/such/file", "tcp://127.0.0.1:*"),
    ("record", "-d", "1ms", "tcp://127.0.0.1:1", "/no/such/folder/x")])
def test_what_cannot_be_done_is_1_and_says_why(arguments):
    code, _, err = run(*arguments)
    assert code == 1 and err.startswith("kvgraft " + arguments[0])
