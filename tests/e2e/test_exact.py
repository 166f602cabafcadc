# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""Publishers that say their epoch, one written from docs/events.md alone and our own, are followed
exactly: whenever the daemon says fresh and has caught up, it holds what the store holds."""
import http.server
import json
import random
import struct
import subprocess
import threading
import time

import msgpack
import pytest
import zmq

from conftest import PROGRAM, eventually, free_port
from test_follow import FAST, LAYOUT, confidence, dumped, is_fresh, pages_of

KEYS = ["%064x_0_%s" % (random.Random(i).getrandbits(256), part)
        for i in range(200) for part in "kv"]


class Publisher:
    """The other side, as the document has it; it can be told to lose messages."""

    def __init__(self, keys=(), keeps=1000):
        self.lock = threading.RLock()
        self.keys = set(keys)
        self.keeps = keeps
        self.context = zmq.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.pub_port = self.pub.bind_to_random_port("tcp://127.0.0.1")
        self.router = self.context.socket(zmq.ROUTER)
        self.router_port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.listings = self.replays = 0
        self.losing = False
        self.stopping = False
        self.begin()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.threads = [threading.Thread(target=self.server.serve_forever),
                        threading.Thread(target=self.beat),
                        threading.Thread(target=self.serve_replays)]
        for thread in self.threads:
            thread.start()

    def source(self, **more):
        return dict({"name": "store", "endpoint": "tcp://127.0.0.1:%d" % self.pub_port,
                     "replay": "tcp://127.0.0.1:%d" % self.router_port,
                     "admin_url": "http://127.0.0.1:%d" % self.server.server_address[1],
                     "workers": {"1": LAYOUT}}, **FAST, **more)

    def begin(self):
        """Another life; the store stays as it is."""
        with self.lock:
            self.epoch = random.randrange(1, 2**63)
            self.sequence = self.events = 0
            self.kept = {}
            self.publish()

    def publish(self, changes=()):
        with self.lock:
            now = int(time.time() * 1000)
            for kind, key in changes:
                (self.keys.add if kind == "stored" else self.keys.discard)(key)
            events = [{"event_type": "heartbeat", "epoch": self.epoch,
                       "objects": len(self.keys), "timestamp": now}]
            for kind, key in changes:
                self.events += 1
                events.append({"event_id": self.events, "timestamp": now, "event_type": kind,
                               "tenant_id": "default", "backend_id": "here", "medium": "cpu",
                               "object_key": key})
            self.sequence += 1
            self.kept[self.sequence] = msgpack.packb([now, events, 0])
            self.kept.pop(self.sequence - self.keeps, None)
            if not self.losing:
                self.pub.send_multipart([b"", struct.pack(">Q", self.sequence),
                                         self.kept[self.sequence]])

    def beat(self):
        while not self.stopping:
            time.sleep(0.2)
            self.publish()

    def serve_replays(self):
        while not self.stopping:
            if not self.router.poll(50):
                continue
            identity, empty, first = self.router.recv_multipart()
            assert empty == b""
            with self.lock:
                self.replays += 1
                for sequence in sorted(self.kept):
                    if sequence >= struct.unpack(">Q", first)[0]:
                        self.router.send_multipart([identity, b"", struct.pack(">Q", sequence),
                                                    self.kept[sequence]])
                self.router.send_multipart([identity, b"", b"\xff" * 8, b""])

    def handler(self):
        publisher = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                with publisher.lock:
                    headers = {}
                    if self.path == "/get_all_keys":
                        publisher.listings += 1
                        body = "".join(key + "\n" for key in publisher.keys)
                        headers = {"X-Kvgraft-Epoch": str(publisher.epoch),
                                   "X-Kvgraft-Sequence": str(publisher.sequence)}
                    elif self.path == "/kv_events/status":
                        body = json.dumps({
                            "enabled": True, "published_batches": publisher.sequence,
                            "published_events": publisher.events, "dropped_events": 0,
                            "epoch": publisher.epoch,
                            "first_kept_sequence": min(publisher.kept)})
                    else:
                        body = "master_key_count %d\n" % len(publisher.keys)
                self.send_response(200)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_):
                pass
        return Handler

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stopping = True
        self.server.shutdown()
        for thread in self.threads:
            thread.join()
        self.server.server_close()
        self.context.destroy(linger=0)


def change(publisher, rng, count=20):
    for _ in range(count):
        publisher.publish([(rng.choice(["stored", "stored", "removed"]), rng.choice(KEYS))
                           for _ in range(rng.randrange(1, 5))])


def is_right(daemon, keys):
    return is_fresh(daemon) and dumped(daemon) == pages_of(keys)


def test_what_was_missed_is_replayed_without_a_listing(make_daemon):
    rng = random.Random(1)
    with Publisher() as publisher:
        daemon = make_daemon([publisher.source()]).start()
        eventually(lambda: is_fresh(daemon), "fresh")
        listings = publisher.listings
        for _ in range(5):
            change(publisher, rng)
            publisher.losing = True
            change(publisher, rng)
            publisher.losing = False
            change(publisher, rng)
            eventually(lambda: is_right(daemon, publisher.keys), "it holds what the store does")
        assert publisher.replays >= 5
        assert publisher.listings == listings
        assert daemon.metric("kvgraft_source_replayed_messages_total") >= 100
        assert daemon.metric("kvgraft_source_count_comparisons_total") == 0


def test_what_is_no_longer_kept_is_listed(make_daemon):
    rng = random.Random(2)
    with Publisher(keeps=10) as publisher:
        daemon = make_daemon([publisher.source()]).start()
        eventually(lambda: is_fresh(daemon), "fresh")
        publisher.losing = True
        change(publisher, rng, 50)
        publisher.losing = False
        eventually(lambda: is_right(daemon, publisher.keys), "it holds what the store does")
        assert daemon.metric("kvgraft_source_exact_listings_total") >= 1


def test_another_epoch_is_another_life_even_with_the_next_number(make_daemon):
    rng = random.Random(3)
    with Publisher(KEYS[:50]) as publisher:
        daemon = make_daemon([publisher.source()]).start()
        eventually(lambda: is_right(daemon, publisher.keys), "it holds what the store does")
        for _ in range(3):
            with publisher.lock:  # The store is replaced; the numbers go on as if nothing was.
                sequence = publisher.sequence
                publisher.keys = set(rng.sample(KEYS, 60))
                publisher.epoch += 1
                publisher.sequence = sequence
            eventually(lambda: is_right(daemon, publisher.keys), "it holds what the store does")
        assert daemon.metric("kvgraft_source_restarts_total") >= 3


def test_three_missed_heartbeats_are_silence(make_daemon):
    with Publisher(KEYS[:10]) as publisher:
        daemon = make_daemon([publisher.source()]).start()
        eventually(lambda: is_fresh(daemon), "fresh")
        publisher.losing = True
        eventually(lambda: confidence(daemon) != "fresh", "it notices the silence")
        publisher.losing = False
        eventually(lambda: is_right(daemon, publisher.keys), "fresh again")


# Our own publisher, of a store in a directory ----------------------------------------------

class Ours:
    """`kvgraft store publish` of a directory."""

    def __init__(self, folder):
        self.url = "file:%s?bytes=64MiB" % folder
        self.ports = [free_port() for _ in range(3)]
        self.process = None

    def start(self):
        self.process = subprocess.Popen([
            PROGRAM, "store", "publish", self.url, "--bind", "tcp://127.0.0.1:%d" % self.ports[0],
            "--replay", "tcp://127.0.0.1:%d" % self.ports[1],
            "--admin", "127.0.0.1:%d" % self.ports[2]])

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def source(self):
        return dict({"name": "store", "endpoint": "tcp://127.0.0.1:%d" % self.ports[0],
                     "replay": "tcp://127.0.0.1:%d" % self.ports[1],
                     "admin_url": "http://127.0.0.1:%d" % self.ports[2],
                     "workers": {"1": LAYOUT}}, **FAST)


class Writer:
    """Puts and removes objects of a directory, by the command."""

    def __init__(self, url):
        self.url = url
        self.keys = set()

    def change(self, rng, count):
        for _ in range(count):
            key = rng.choice(KEYS)
            if key in self.keys and rng.random() < 0.4:
                self.run(["rm", self.url, key])
                self.keys.discard(key)
            else:
                self.run(["put", self.url, key, "-"])
                self.keys.add(key)

    @staticmethod
    def run(arguments):
        subprocess.run([PROGRAM, "store", *arguments], input=b"page", check=True,
                       stdout=subprocess.DEVNULL)


def has_store_command():
    return subprocess.run([PROGRAM, "store", "--help"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


def kill_and_compare(make_daemon, folder, seed, kills):
    rng = random.Random(seed)
    ours = Ours(folder)
    writer = Writer(ours.url)
    writer.change(rng, 5)
    ours.start()
    try:
        daemon = make_daemon([ours.source()]).start()
        for turn in range(kills):
            writer.change(rng, 5)
            eventually(lambda: is_right(daemon, writer.keys), "turn %d" % turn)
            what = rng.choice(["publisher", "follower", "both"])
            if what != "follower":
                ours.kill()
            if what != "publisher":
                daemon.kill()
            writer.change(rng, 5)
            if what != "follower":
                ours.start()
            if what != "publisher":
                daemon.start()
        eventually(lambda: is_right(daemon, writer.keys), "the end")
    finally:
        ours.kill()


@pytest.mark.skipif(not has_store_command(), reason="no command to write a store with")
@pytest.mark.parametrize("seed", range(2))
def test_kills_of_publisher_and_follower_leave_the_index_right(make_daemon, tmp_path, seed):
    kill_and_compare(make_daemon, str(tmp_path / "store"), seed, 6)


@pytest.mark.long
def test_a_thousand_kills_leave_the_index_right(make_daemon, tmp_path):
    kill_and_compare(make_daemon, str(tmp_path / "store"), 7, 1000)


@pytest.mark.skipif(not has_store_command(), reason="no command to write a store with")
def test_a_cleared_store_is_empty_at_once(make_daemon, tmp_path):
    ours = Ours(str(tmp_path / "store"))
    writer = Writer(ours.url)
    writer.change(random.Random(1), 5)
    ours.start()
    try:
        daemon = make_daemon([ours.source()]).start()
        eventually(lambda: is_right(daemon, writer.keys), "it holds what the store does")
        writer.run(["clear", writer.url, "--yes"])
        eventually(lambda: is_right(daemon, []), "it is empty")
        writer.keys.clear()
        writer.change(random.Random(2), 5)
        eventually(lambda: is_right(daemon, writer.keys), "it holds what the store does")
    finally:
        ours.kill()


@pytest.mark.skipif(not has_store_command(), reason="no command to write a store with")
def test_two_publishers_and_two_daemons_on_one_directory_all_tell_the_same(make_daemon, tmp_path):
    """Each publisher follows the directory by itself: none needs the other, and either may die."""
    rng = random.Random(4)
    publishers = [Ours(str(tmp_path / "store")) for _ in range(2)]
    writer = Writer(publishers[0].url)
    writer.change(rng, 5)
    for publisher in publishers:
        publisher.start()
    try:
        daemons = [make_daemon([publisher.source()]).start() for publisher in publishers]
        for turn in range(4):
            writer.change(rng, 5)
            for daemon in daemons:
                eventually(lambda d=daemon: is_right(d, writer.keys), "turn %d" % turn)
        publishers[0].kill()
        writer.change(rng, 5)
        eventually(lambda: is_right(daemons[1], writer.keys), "the other goes on")
        publishers[0].start()
        for daemon in daemons:
            eventually(lambda d=daemon: is_right(d, writer.keys), "both again")
    finally:
        for publisher in publishers:
            publisher.kill()
