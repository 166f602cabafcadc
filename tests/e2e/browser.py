# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""A real Chromium, driven over its debugging pipe: nothing but Python's own library is needed.

The browser speaks its DevTools protocol over two file descriptors (3 in, 4 out), one JSON
message after another, each ended by a zero byte.  Only what these tests need is here.
"""
import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find():
    """The browser's program, or None.  KVGRAFT_CHROMIUM names another."""
    named = os.environ.get("KVGRAFT_CHROMIUM")
    return named or next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page in a headless browser with a profile of its own."""

    def __init__(self, width=1280, height=900, dark=False, wait_s=60):
        self.wait_s = wait_s
        self.number = 0
        self.session = None
        self.events = []  # Messages nobody waited for.
        self.buffer = b""
        self.folder = tempfile.mkdtemp(prefix="kvgraft-browser-")
        to_browser, self.write_fd = os.pipe()
        self.read_fd, from_browser = os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_browser, from_browser)]
        os.close(to_browser)
        os.close(from_browser)

        def set_pipes():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
             "--disable-background-networking", "--disable-component-update",
             "--remote-debugging-pipe", "--user-data-dir=" + self.folder, "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=set_pipes, pass_fds=(3, 4))
        for fd in ends:
            os.close(fd)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target,
                                 flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.look(width, height, dark)

    def look(self, width, height, dark=False):
        """Size and colour scheme of the window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 500)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def receive(self):
        while b"\0" not in self.buffer:
            data = os.read(self.read_fd, 1 << 20)
            assert data, "the browser ended with %s" % self.process.poll()
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_fd, json.dumps(message).encode() + b"\0")
        while True:
            got = self.receive()
            if got.get("id") == self.number:
                assert "error" not in got, "%s: %s" % (method, got["error"])
                return got["result"]
            self.events.append(got)

    def go(self, url):
        self.events.clear()
        self.call("Page.navigate", url=url)

    def run(self, script):
        """The value of a script, which may be a promise."""
        got = self.call("Runtime.evaluate", expression=script, awaitPromise=True,
                        returnByValue=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def until(self, script, what=None):
        """Waits until a script gives something true, and returns that."""
        deadline = time.monotonic() + self.wait_s
        while True:
            try:
                got = self.run(script)
            except AssertionError as error:  # The page is on its way.
                got = None
                last = error
            else:
                last = got
            if got:
                return got
            assert time.monotonic() < deadline, "never: %s; at last: %s" % (what or script, last)
            time.sleep(0.05)

    def text(self, selector):
        return self.run("document.querySelector(%s)?.innerText ?? null" % json.dumps(selector))

    def press(self, key, code=None):
        for kind in ("keyDown", "keyUp"):
            extra = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key,
                      windowsVirtualKeyCode={"Enter": 13, "Escape": 27, "Tab": 9,
                                             "ArrowUp": 38, "ArrowDown": 40}.get(key, 0),
                      **extra)

    def click(self, selector):
        """With the mouse, in the middle of it."""
        x, y = self.until("""(() => {
            const e = document.querySelector(%s);
            if (!e) return null;
            e.scrollIntoView({ block: "center" });
            const b = e.getBoundingClientRect();
            return [b.x + b.width / 2, b.y + b.height / 2];
        })()""" % json.dumps(selector), selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left",
                      clickCount=1)

    def complaints(self):
        """What the console said: exceptions, refusals of the content policy, errors."""
        self.run("0")
        out = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                out.append(json.dumps(params["exceptionDetails"])[:500])
            elif event.get("method") == "Log.entryAdded":
                if params["entry"]["level"] in ("error", "warning"):
                    out.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
            elif event.get("method") == "Runtime.consoleAPICalled":
                out.append(json.dumps(params["args"])[:500])
        return out

    def requested(self):
        """The addresses of all requests since the page was opened."""
        self.run("0")
        return [e["params"]["request"]["url"] for e in self.events
                if e.get("method") == "Network.requestWillBeSent"]

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        with open(path, "wb") as file:
            file.write(base64.b64decode(data["data"]))

    def close(self):
        self.session = None
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.write_fd)
        os.close(self.read_fd)
        for _ in range(50):  # Its children may still be writing.
            shutil.rmtree(self.folder, ignore_errors=True)
            if not os.path.exists(self.folder):
                break
            time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
