# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""A stand-in Mooncake master: events over ZeroMQ, answers on an admin port.

It publishes recorded captures frame by frame, or events made here, and keeps what it has
published; the admin port answers like the recorded answers in tests/data/mooncake/admin.  Tests
can close the gate (503), slow answers down, and say what a listing holds.
"""
import http.server
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.parse

import msgpack
import zmq

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DATA = os.path.join(ROOT, "tests", "data", "mooncake")
SHARED = os.environ.get("KVGRAFT_SHARED", os.path.join(os.path.dirname(ROOT), "shared"))

LISTEN_TIMEOUT_S = 20


def read_bytes(path):
    """A file, or its .zst beside it."""
    if os.path.exists(path):
        with open(path, "rb") as file:
            return file.read()
    return subprocess.run(["zstd", "-dqc", path + ".zst"], check=True,
                          capture_output=True).stdout


def read_messages(data):
    """The messages of a capture: (nanoseconds, frames)."""
    assert data[:8] == b"KVCAP01\n"
    messages = []
    offset = 8
    while offset < len(data):
        time_ns, count = struct.unpack_from("<QI", data, offset)
        offset += 12
        frames = []
        for _ in range(count):
            (size,) = struct.unpack_from("<I", data, offset)
            offset += 4
            frames.append(data[offset:offset + size])
            offset += size
        messages.append((time_ns, frames))
    return messages


class Capture:
    """A recorded stream, with the truth beside it."""

    def __init__(self, name, folder=DATA):
        self.name = name
        self.messages = read_messages(read_bytes(os.path.join(folder, name + ".kvcap")))
        self.keys = set(read_bytes(os.path.join(folder, name + ".keys")).decode().split())
        with open(os.path.join(folder, name + ".json"), encoding="utf-8") as file:
            self.info = json.load(file)

    def workers(self):
        """One worker a layout, as workers advertise it."""
        out = {}
        layouts = [self.info["layout"]] + self.info.get("extra_layouts", [])
        for number, layout in enumerate(layouts):
            advertised = {name: value for name, value in layout.items() if value is not None}
            out[str(number + 1)] = dict(advertised, backend="mooncake")
        return out

    def tokens_of(self, prompt):
        """The tokens of a prompt of the capture, by the token rule of the fixtures."""
        if "tokens" in prompt:
            return prompt["tokens"]
        return [((s * 2654435761 + j * 2246822519 + 374761393) % 2**32) % 151936
                for s, n in prompt["segments"] for j in range(n)]


class Master:
    """The stand-in.  `with Master() as master: ...`"""

    def __init__(self, port=0, admin_port=0):
        self.context = zmq.Context()
        self.lock = threading.Lock()
        self.admin_open = True
        self.admin_delay_s = 0.0
        self.admin_calls = {}
        self.keys = set()       # What a listing says.
        self.enabled = True
        self.batches = 0
        self.events = 0
        self.dropped = 0
        self.socket = None
        self.open_stream(port)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", admin_port),
                                                      self.handler_class())
        self.server.daemon_threads = True
        self.admin_port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    # The stream

    def open_stream(self, port=0):
        self.socket = self.context.socket(zmq.XPUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        for _ in range(100):  # A port that was just closed may need a moment.
            try:
                self.socket.bind("tcp://127.0.0.1:%s" % (port or "*"))
                break
            except zmq.ZMQError:
                time.sleep(0.05)
        endpoint = self.socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        self.port = int(endpoint.rsplit(":", 1)[1])
        self.endpoint = "tcp://127.0.0.1:%d" % self.port

    def close_stream(self):
        self.socket.close()

    @property
    def admin_url(self):
        return "http://127.0.0.1:%d" % self.admin_port

    def wait_subscriber(self):
        deadline = time.monotonic() + LISTEN_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.socket.poll(100):
                if self.socket.recv()[:1] == b"\1":
                    return
        raise AssertionError("nobody subscribed")

    def send(self, frames):
        self.socket.send_multipart(frames)

    def play(self, capture, first=0, last=None):
        """Publishes messages of a capture, and counts like the master did."""
        for _, frames in capture.messages[first:last]:
            sequence = struct.unpack(">Q", frames[1])[0]
            payload = msgpack.unpackb(frames[2], raw=False)
            with self.lock:
                if sequence <= self.batches + self.dropped:  # It starts again.
                    self.batches = self.events = self.dropped = 0
                    self.keys = set()
                self.batches += 1
                self.events += len(payload[1])
                self.dropped = sequence - self.batches
                for event in payload[1]:
                    key = event.get("object_key")
                    if key is None:
                        key = str(event["seq_hashes"][0]) if event.get("seq_hashes") else None
                    if event["event_type"] == "stored":
                        self.keys.add(key)
                    else:
                        self.keys.discard(key)
            self.send(frames)

    def publish(self, stored=(), removed=(), silent=False):
        """One message of events made here.  `silent` changes the store and says nothing."""
        with self.lock:
            self.keys.update(stored)
            self.keys.difference_update(removed)
            if silent:
                return
            now = int(time.time() * 1000)
            events = []
            for kind, names in (("stored", stored), ("removed", removed)):
                for name in names:
                    self.events += 1
                    events.append({"event_id": self.events, "timestamp": now,
                                   "event_type": kind, "model_name": None, "block_size": None,
                                   "additional_salt": None, "lora_name": None,
                                   "tenant_id": "default", "medium": "cpu", "dp_rank": None,
                                   "backend_id": "pool-a", "seq_hashes": [],
                                   "object_key": name, "group_id": None})
            self.batches += 1
            sequence = self.batches + self.dropped
        self.send([b"", struct.pack(">Q", sequence), msgpack.packb([now, events, 0])])

    def lose(self, messages=1):
        """As if a full queue had dropped events: the sequence goes on without them."""
        with self.lock:
            self.dropped += messages

    # The admin port

    def answer(self, path, query):
        with self.lock:
            if path == "/get_all_keys":
                return 200, "text/plain; version=0.0.4", "".join(k + "\n" for k in self.keys)
            if path == "/metrics":
                return 200, "text/plain; version=0.0.4", (
                    "# HELP master_key_count Total number of keys managed by the master\n"
                    "# TYPE master_key_count gauge\nmaster_key_count %d\n"
                    "master_soft_pin_key_count 0\n" % len(self.keys))
            if path == "/kv_events/status":
                return 200, "application/json; charset=utf-8", json.dumps({
                    "enabled": self.enabled, "published_batches": self.batches,
                    "published_events": self.events, "dropped_events": self.dropped,
                    "skipped_unparsed_keys": self.events})
            if path == "/batch_query_keys":
                data = {}
                for key in urllib.parse.unquote(query.get("keys", [""])[0]).split(","):
                    found = key in self.keys
                    data[key] = {"ok": found, "error": None if found else "OBJECT_NOT_FOUND",
                                 "values": [{"size_": 256}] if found else None}
                return 200, "application/json; charset=utf-8", json.dumps(
                    {"success": True, "data": data})
        return 404, "text/plain", ""

    def handler_class(self):
        master = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                url = urllib.parse.urlsplit(self.path)
                with master.lock:
                    master.admin_calls[url.path] = master.admin_calls.get(url.path, 0) + 1
                if master.admin_delay_s:
                    time.sleep(master.admin_delay_s)
                if master.admin_open:
                    status, kind, body = master.answer(url.path,
                                                       urllib.parse.parse_qs(url.query))
                else:
                    status, kind, body = 503, "text/plain", "closed"
                data = body.encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", kind)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # The daemon was killed, or gave the answer up.

            def log_message(self, *_):
                pass

        return Handler

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.socket.close()
        self.context.term()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def object_keys(seed, pages, suffixes=("_0_k", "_0_v")):
    """Names of objects that look right, from a seed."""
    rng = random.Random(seed)
    return [key + suffix for key in (rng.randbytes(32).hex() for _ in range(pages))
            for suffix in suffixes]


class RemoteMaster:
    """A stand-in in a process of its own, which can be frozen and killed."""

    def __init__(self, port=0, admin_port=0):
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), str(port), str(admin_port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ports = json.loads(self.process.stdout.readline())
        self.port, self.admin_port = ports
        self.endpoint = "tcp://127.0.0.1:%d" % self.port
        self.admin_url = "http://127.0.0.1:%d" % self.admin_port

    def call(self, method, *arguments, **more):
        self.process.stdin.write(json.dumps([method, arguments, more]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGCONT)
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()


def main():
    """[port, admin port] on the first line, then one answer a command: [method, args, kwargs]."""
    with Master(int(sys.argv[1]), int(sys.argv[2])) as master:
        print(json.dumps([master.port, master.admin_port]), flush=True)
        for line in sys.stdin:
            method, arguments, more = json.loads(line)
            print(json.dumps(getattr(master, method)(*arguments, **more)), flush=True)


if __name__ == "__main__":
    main()
