"""Headless Chromium, driven over a pipe by its DevTools protocol."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time

_NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = f"there is no browser: none of {', '.join(_NAMES)} is installed"


def find_browser():
    """The path of the first browser that is installed; None where there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """A browser with one page; a context manager that ends it."""

    def __init__(self, program, folder, *flags):
        self._program, self._folder, self._flags = program, folder, flags
        self._number, self._read, self._events = 0, b"", []

    def __enter__(self):
        (reads, self._out), (self._in, writes) = os.pipe(), os.pipe()
        words = [
            *(self._program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *(
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--window-size=900,1300",
            ),
            *(f"--user-data-dir={self._folder / 'profile'}", "--remote-debugging-pipe", *self._flags, "about:blank"),
        ]
        # The protocol's pipe is of the files 3 and 4, whatever numbers they have here.
        script = f'exec "$@" 3<&{reads} 4>&{writes}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *map(str, words)],
            pass_fds=[reads, writes],
            env=os.environ | {"HOME": str(self._folder)},
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return self

    def __exit__(self, *exception):
        with contextlib.suppress(OSError):
            os.close(self._out)
        self._process.kill()
        self._process.wait()
        os.close(self._in)

    def _call(self, method, session=None, seconds=120, **given):
        self._number += 1
        message = {"id": self._number, "method": method, "params": given} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while True:
            answer = self._next(deadline)
            if "method" in answer:
                self._events.append(answer)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _next(self, deadline):
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            arrived = os.read(self._in, 1 << 16)
            assert arrived, "the browser has ended"
            self._read += arrived
        first, _, self._read = self._read.partition(b"\0")
        return json.loads(first)

    def open(self, url):
        """Go to a page; gives why that failed, or nothing."""
        return self._call("Page.navigate", self._session, url=url).get("errorText", "")

    def run(self, script):
        """Evaluate what may be a promise in the page; gives its value."""
        found = self._call("Runtime.evaluate", self._session, expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def run_in_workers(self, script):
        """Evaluate an expression in each worker of the page; gives the values by the names of their scripts."""
        self._events.clear()
        self._call("Target.setAutoAttach", self._session, autoAttach=True, waitForDebuggerOnStart=False, flatten=True)
        found = {}
        for one in [one["params"] for one in self._events if one["method"] == "Target.attachedToTarget"]:
            made = self._call("Runtime.evaluate", one["sessionId"], expression=script, returnByValue=True)
            found[one["targetInfo"]["url"].rpartition("/")[2]] = made["result"].get("value")
        return found

    def wait(self, script, seconds):
        """Wait until an expression of the page is true, and give it."""
        deadline = time.monotonic() + seconds
        while not (found := self.run(script)):
            assert time.monotonic() < deadline, f"{script} is not true after {seconds} seconds"
            time.sleep(0.3)
        return found

    def screenshot(self, path):
        """Write a picture of the whole page as PNG."""
        found = self._call("Page.captureScreenshot", self._session, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))
