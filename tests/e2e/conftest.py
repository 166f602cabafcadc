# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""What the tests from outside share: the program under test, and a daemon to talk to.

KVGRAFT names the program (default: build/dev/kvgraft).  Nothing here measures time to pass or
fail; waits have generous ends, so that a busy machine is only slow.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import standin  # noqa: E402

PROGRAM = os.environ.get("KVGRAFT", os.path.join(standin.ROOT, "build", "dev", "kvgraft"))
WAIT_S = float(os.environ.get("KVGRAFT_E2E_WAIT", "60"))


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="the long tier: more, and larger")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        for item in items:
            if "long" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="long tier: pytest --long"))


def pytest_configure(config):
    config.addinivalue_line("markers", "long: by hand, before a release")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(condition, what, wait_s=WAIT_S):
    """Waits until the condition holds and returns what it gave."""
    deadline = time.monotonic() + wait_s
    while True:
        got = condition()
        if got:
            return got
        assert time.monotonic() < deadline, "not within %g s: %s" % (wait_s, what)
        time.sleep(0.02)


class Answer:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)


class Daemon:
    """`kvgraft serve` in a process of its own."""

    def __init__(self, folder, sources, **groups):
        self.folder = folder
        self.port = free_port()
        self.process = None
        self.config = {"http": {"listen": "127.0.0.1:%d" % self.port},
                       "sources": sources, **groups}
        self.config["http"].update(groups.get("http", {}))
        self.config["http"].setdefault("listen", "127.0.0.1:%d" % self.port)
        self.config["http"]["listen"] = "127.0.0.1:%d" % self.port
        self.log_path = os.path.join(folder, "log")

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.port

    def start(self):
        path = os.path.join(self.folder, "kvgraft.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.config, file)
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen([PROGRAM, "serve", "--config", path],
                                            stdout=log, stderr=log)
        eventually(self.is_up, "the daemon answers; its log:\n" + self.log)
        return self

    def is_up(self):
        assert self.process.poll() is None, "the daemon ended:\n" + self.log
        try:
            return self.get("/healthz").status == 200
        except OSError:
            return False

    @property
    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()[-4000:]

    def ask(self, method, path, body=None, kind="application/json", headers=None):
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=body, method=method,
                                         headers=headers or {})
        if body is not None:
            request.add_header("Content-Type", kind)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())

    def get(self, path, **more):
        return self.ask("GET", path, **more)

    def post(self, path, body, **more):
        return self.ask("POST", path, body, **more)

    def metric(self, name):
        """Sum of the samples of a metric."""
        total = None
        for line in self.get("/metrics").body.decode().split("\n"):
            if line.startswith(name) and line[len(name):len(name) + 1] in ("{", " "):
                total = (total or 0) + float(line.rsplit(" ", 1)[1])
        return total

    @property
    def rss_bytes(self):
        with open("/proc/%d/statm" % self.process.pid, encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """SIGTERM; returns the exit code."""
        if self.process is None or self.process.poll() is not None:
            return None if self.process is None else self.process.returncode
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.fixture
def master():
    with standin.Master() as it:
        yield it


@pytest.fixture
def make_daemon(tmp_path):
    made = []

    def make(sources, **groups):
        daemon = Daemon(str(tmp_path), sources, **groups)
        made.append(daemon)
        return daemon
    yield make
    for daemon in made:
        code = daemon.stop()
        assert code in (0, None, -9), "the daemon ended with %s:\n%s" % (code, daemon.log)


def run(*arguments, stdin=None, env=None, timeout=WAIT_S):
    """Runs the command; returns (exit code, stdout, stderr)."""
    full = dict(os.environ)
    full.update(env or {})
    done = subprocess.run([PROGRAM, *[str(a) for a in arguments]], input=stdin,
                          capture_output=True, timeout=timeout, env=full)
    return done.returncode, done.stdout.decode(), done.stderr.decode()
