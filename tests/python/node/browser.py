"""A headless Chromium, driven by the DevTools protocol over two pipes: no driver, no package.

Without a Chromium the tests are skipped; ``FARROW_CHROMIUM=require`` makes its absence a failure.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

LIMIT_SECONDS = 60.0
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def program() -> str:
    """The path of a Chromium; without one the test is skipped."""
    path = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if path is None:
        text = "no Chromium on this machine: apt install chromium"
        if os.environ.get("FARROW_CHROMIUM") == "require":
            pytest.fail(text)
        pytest.skip(text)
    return path


class Browser:
    """One page. Errors and messages of its console are in ``problems``."""

    def __init__(self, folder: Path) -> None:
        path = program()
        to_browser, from_us = os.pipe()
        to_us, from_browser = os.pipe()
        command = [
            path, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
            f"--user-data-dir={folder / 'profile'}", "about:blank",
        ]  # fmt: skip
        # Chromium reads from descriptor 3 and writes to descriptor 4.
        script = f'exec 3<&{to_browser} 4>&{from_browser} && exec "$@"'
        with (folder / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", script, "bash", *command],
                pass_fds=(to_browser, from_browser),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(to_browser)
        os.close(from_browser)
        self._in, self._out = to_us, from_us
        self._left = b""
        self._number = 0
        self._session = ""
        self.problems: list[str] = []
        page = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._out)
        try:
            self._process.wait(LIMIT_SECONDS / 4)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(LIMIT_SECONDS)
        os.close(self._in)

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + LIMIT_SECONDS
        while True:
            answer = self._read(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self, end: float) -> dict[str, Any]:
        """The next message; events of errors are kept."""
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser ended"
            self._left += data
        text, _, self._left = self._left.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        kind, parameters = message.get("method"), message.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"]))
        elif kind == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"]["text"])
        elif kind == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog {parameters['message']!r}")
        return message

    def show(self, width: int, height: int, scheme: str) -> None:
        """Set the size of the window, and "light" or "dark"."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        result = self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, script: str) -> Any:
        """The value of an expression as soon as it is true."""
        end = time.monotonic() + LIMIT_SECONDS
        while not (value := self.evaluate(script)):
            assert time.monotonic() < end, f"never true: {script}; {self.problems}"
            time.sleep(0.05)
        return value

    def click(self, selector: str) -> None:
        """Click into the middle of an element, as a mouse does."""
        quoted = json.dumps(selector)
        self.wait(f"document.querySelector({quoted}) !== null")
        x, y = self.evaluate(
            f"(() => {{ const e = document.querySelector({quoted});"
            " e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def write(self, selector: str, text: str) -> None:
        """Replace the text of a field by typing."""
        quoted = json.dumps(selector)
        self.evaluate(
            f"(() => {{ const e = document.querySelector({quoted}); e.focus(); e.select(); }})()"
        )
        if text:
            self._call("Input.insertText", text=text)
        else:
            for kind in ("keyDown", "keyUp"):
                self._call("Input.dispatchKeyEvent", type=kind, key="Delete",
                           code="Delete", windowsVirtualKeyCode=46)  # fmt: skip

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                       windowsVirtualKeyCode={"Escape": 27, "Enter": 13}[key])  # fmt: skip

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        taken = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))
