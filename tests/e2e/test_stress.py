# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""The daemon under what goes wrong: kills, freezes, nonsense, floods, full queues.

It stays up, its memory stays bounded, and its answers say what they are worth.
"""
import os
import random
import signal
import socket
import struct
import threading

import pytest

from conftest import eventually
from standin import Master, RemoteMaster, object_keys
from test_follow import dumped, is_fresh, pages_of, source_of, state

MIB = 1 << 20


def ready(master, daemon):
    eventually(lambda: state(daemon)["connected"], "connected")


def inode_of(path):
    return path.stat().st_ino if path.exists() else None


def test_a_killed_daemon_starts_warm_and_is_suspect_until_repaired(master, make_daemon,
                                                                   tmp_path):
    dump = tmp_path / "dump"
    dump.mkdir()
    daemon = make_daemon([source_of(master)], dump={"path": str(dump), "interval": "200ms"})
    daemon.start()
    master.wait_subscriber()
    ready(master, daemon)
    keys = object_keys(10, 1000)
    master.publish(stored=keys)
    eventually(lambda: is_fresh(daemon) and state(daemon)["parts"] == 2000, "fresh")
    # The first dump that ends from now on may have begun before; the second has not.
    for turn in range(2):
        last = inode_of(dump / "store.kvgdump")
        eventually(lambda: inode_of(dump / "store.kvgdump") != last, "dumped")
    daemon.kill()
    master.publish(removed=keys[:200])  # Missed: nobody listens.
    master.admin_open = False
    daemon.start()
    now = state(daemon)
    assert now["parts"] == 2000, "not warm: %s" % now
    assert now["confidence"] != "fresh"
    master.admin_open = True
    eventually(lambda: is_fresh(daemon) and state(daemon)["parts"] == 1800, "repaired")
    assert dumped(daemon) == pages_of(keys[200:])


def test_a_dump_that_was_damaged_is_refused_and_the_daemon_starts_cold(master, make_daemon,
                                                                       tmp_path):
    dump = tmp_path / "dump"
    dump.mkdir()
    daemon = make_daemon([source_of(master)], dump={"path": str(dump)})
    daemon.start()
    master.wait_subscriber()
    ready(master, daemon)
    master.publish(stored=object_keys(11, 500))
    eventually(lambda: state(daemon)["parts"] == 1000, "stored")
    assert daemon.stop() == 0
    (path,) = [f for f in dump.iterdir() if f.is_file()]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    daemon.start()
    eventually(lambda: is_fresh(daemon) and state(daemon)["parts"] == 1000, "rebuilt")


def test_a_killed_publisher_is_noticed_and_its_successor_starts_from_nothing(make_daemon):
    with RemoteMaster() as first:
        daemon = make_daemon([source_of(first)]).start()
        first.call("wait_subscriber")
        ready(first, daemon)
        first.call("publish", stored=object_keys(12, 100))
        eventually(lambda: is_fresh(daemon) and state(daemon)["parts"] == 200, "fresh")
        first.kill()
        eventually(lambda: "no_stream" in state(daemon)["reasons"], "the loss noticed")
        assert daemon.get("/readyz").status == 503
        assert state(daemon)["parts"] == 200  # Suspect, not gone.
        with RemoteMaster(first.port, first.admin_port) as second:
            second.call("wait_subscriber")
            ready(second, daemon)
            keys = object_keys(13, 50)
            second.call("publish", stored=keys)
            eventually(lambda: is_fresh(daemon) and dumped(daemon) == pages_of(keys), "the second")


def test_a_frozen_publisher_is_told_from_a_quiet_one(make_daemon):
    with RemoteMaster() as master:
        daemon = make_daemon([source_of(master) | {"silence": "500ms"}]).start()
        master.call("wait_subscriber")
        ready(master, daemon)
        master.call("publish", stored=object_keys(14, 100))
        eventually(lambda: is_fresh(daemon), "fresh")
        master.signal(signal.SIGSTOP)
        eventually(lambda: state(daemon)["confidence"] == "suspect", "suspect")
        assert set(state(daemon)["reasons"]) & {"silence", "unchecked"}
        assert state(daemon)["parts"] == 200
        master.signal(signal.SIGCONT)
        eventually(lambda: is_fresh(daemon), "fresh again")


def test_a_port_that_speaks_nonsense_is_no_stream(master, make_daemon):
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()
    rng = random.Random(15)

    def speak():
        listener.settimeout(0.1)
        while not stop.is_set():
            try:
                peer, _ = listener.accept()
                peer.sendall(rng.choice([b"HTTP/1.1 200 OK\r\n\r\n", rng.randbytes(300),
                                         b"\xff" + bytes(8) + b"\x7f\x03", b""]))
                peer.close()
            except OSError:
                pass
    thread = threading.Thread(target=speak)
    thread.start()
    try:
        source = source_of(master) | {
            "endpoint": "tcp://127.0.0.1:%d" % listener.getsockname()[1]}
        daemon = make_daemon([source]).start()
        eventually(lambda: (daemon.metric("kvgraft_stream_handshakes_failed_total") or 0) +
                   (daemon.metric("kvgraft_stream_connect_retries_total") or 0) >= 3, "tried")
        now = state(daemon)
        print(now)
        assert now["confidence"] == "blind" and "no_stream" in now["reasons"]
        assert not now["connected"]
    finally:
        stop.set()
        thread.join()
        listener.close()


def flood(master, total_bytes, sizes, seed):
    """Messages of any number of frames with anything in them."""
    rng = random.Random(seed)
    block = rng.randbytes(2 * MIB)
    sent = 0
    while sent < total_bytes:
        frames = []
        for _ in range(rng.choice([1, 2, 3, 3, 3, 4, 9])):
            size = rng.choice(sizes)
            start = rng.randrange(len(block) - size + 1)
            frames.append(block[start:start + size])
        if len(frames) == 3 and rng.random() < 0.7:
            frames[1] = struct.pack(">Q", rng.choice([0, 1, 7, 2**63, 2**64 - 1]))
        master.send(frames)
        sent += sum(len(frame) for frame in frames)
    return sent


def check_flood(make_daemon, megabytes):
    # The publisher waits for its subscriber here: what counts is what the daemon takes.
    master = Master()
    daemon = make_daemon([source_of(master) | {"queue_bytes_max": "16MiB",
                                               "message_bytes_max": "2MiB",
                                               "receive_hwm": 1000}]).start()
    with master:
        master.wait_subscriber()
        ready(master, daemon)
        keys = object_keys(16, 100)
        master.publish(stored=keys)
        eventually(lambda: is_fresh(daemon), "fresh")
        before = daemon.rss_bytes
        top = before
        sent = 0
        while sent < megabytes * MIB:
            sent += flood(master, 8 * MIB, [0, 1, 8, 100, 5000, MIB], sent)
            top = max(top, daemon.rss_bytes)
            assert daemon.process.poll() is None, daemon.log
        assert top < before + 256 * MIB, "grew from %d to %d MiB" % (before >> 20, top >> 20)
        assert daemon.get("/healthz").status == 200
        more = object_keys(17, 100)
        master.publish(stored=more)
        eventually(lambda: is_fresh(daemon) and dumped(daemon) == pages_of(keys + more),
                   "repaired; state: %s" % state(daemon))
        assert daemon.metric("kvgraft_source_bad_frames_total") > 0


def test_a_flood_of_rubbish_costs_bounded_memory_and_is_repaired(make_daemon):
    check_flood(make_daemon, 100)


@pytest.mark.long
def test_a_gigabyte_of_rubbish(make_daemon):
    check_flood(make_daemon, 1024)


def test_a_frame_over_the_limit_cuts_the_publisher_off_and_it_recovers(master, make_daemon):
    daemon = make_daemon([source_of(master) | {"message_bytes_max": "64KiB"}]).start()
    master.wait_subscriber()
    ready(master, daemon)
    keys = object_keys(18, 50)
    master.publish(stored=keys)
    eventually(lambda: is_fresh(daemon), "fresh")
    master.send([b"", struct.pack(">Q", 2), bytes(MIB)])
    eventually(lambda: daemon.metric("kvgraft_stream_disconnects_total") >= 1 and
               state(daemon)["connected"], "cut off, and back")
    more = object_keys(19, 10)
    master.publish(stored=more)
    eventually(lambda: is_fresh(daemon) and dumped(daemon) == pages_of(keys + more), "recovered")


def test_a_full_queue_drops_and_says_so_and_is_repaired(master, make_daemon):
    """The loop is kept from its work while a burst comes that is larger than the queue."""
    daemon = make_daemon([source_of(master) | {"queue_bytes_max": "1MiB"}]).start()
    master.wait_subscriber()
    ready(master, daemon)
    keys = object_keys(20, 40000)
    for i in range(0, len(keys), 2000):
        master.publish(stored=keys[i:i + 2000])
    eventually(lambda: is_fresh(daemon) and state(daemon)["parts"] == len(keys), "repaired",
               wait_s=120)
    assert dumped(daemon) == pages_of(keys)


def test_a_stopped_daemon_that_comes_back_repairs_what_it_missed(master, make_daemon):
    """SIGSTOP: the publisher's queue for it fills, and drops."""
    daemon = make_daemon([source_of(master)]).start()
    master.wait_subscriber()
    ready(master, daemon)
    master.publish(stored=object_keys(21, 10))
    eventually(lambda: is_fresh(daemon), "fresh")
    daemon.process.send_signal(signal.SIGSTOP)
    keys = object_keys(22, 3000)
    for i in range(0, len(keys), 100):
        master.publish(stored=keys[i:i + 100])
    for _ in range(20):
        master.lose(3)
    daemon.process.send_signal(signal.SIGCONT)
    master.publish(removed=keys[:10])
    eventually(lambda: is_fresh(daemon) and dumped(daemon) == pages_of(master.keys), "repaired")


def test_a_master_that_is_slow_to_answer_does_not_hold_up_questions(master, make_daemon):
    master.admin_delay_s = 1.0
    daemon = make_daemon([source_of(master)]).start()
    master.wait_subscriber()
    ready(master, daemon)
    for _ in range(20):
        assert daemon.post("/v1/lookup", {"tokens": list(range(64))}).status == 200


def test_sigterm_ends_it_cleanly_under_load(master, make_daemon):
    daemon = make_daemon([source_of(master)]).start()
    master.wait_subscriber()
    stop = threading.Event()

    def ask():
        while not stop.is_set():
            try:
                daemon.post("/v1/lookup", {"tokens": list(range(256))})
            except OSError:
                return
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(50):
        master.publish(stored=object_keys(100 + i, 20))
    assert daemon.stop() == 0
    stop.set()
    for thread in threads:
        thread.join()


def test_two_daemons_do_not_share_a_port(master, make_daemon, tmp_path):
    first = make_daemon([source_of(master)]).start()
    other = tmp_path / "other"
    os.mkdir(other)
    from conftest import run
    config = os.path.join(str(tmp_path), "kvgraft.json")
    code, _, err = run("serve", "--config", config, timeout=20)
    assert code == 1 and str(first.port) in err
