"""Headless Chromium driven by its DevTools protocol over a websocket: a page as a person has it."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import websocket

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


def binary() -> str | None:
    """Where Chromium is; None when it is not there."""
    return os.environ.get("TRIALTAP_TEST_CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


class Browser:
    """One tab. `requests` holds the URL of every request it made, `errors` what its console complained about."""

    def __init__(self, width: int = 1360, height: int = 860) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._folder = Path(tempfile.mkdtemp(prefix="trialtap-chromium-"))
        self._process = subprocess.Popen(
            [
                str(binary()),
                *FLAGS,
                f"--user-data-dir={self._folder}",
                f"--window-size={width},{height}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._socket = websocket.create_connection(self._target(), timeout=30, suppress_origin=True)
        except BaseException:
            self.close()
            raise
        self._ids = itertools.count(1)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End this Chromium and what it wrote."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _target(self) -> str:
        port_file = self._folder / "DevToolsActivePort"
        for _ in range(600):
            if port_file.exists() and (text := port_file.read_text()).count("\n") >= 1:
                port = text.split("\n", 1)[0]
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=10) as answer:
                    for target in json.load(answer):
                        if target["type"] == "page":
                            return str(target["webSocketDebuggerUrl"])
            if self._process.poll() is not None:
                raise RuntimeError(f"Chromium ended with {self._process.returncode}")
            time.sleep(0.05)
        raise RuntimeError("Chromium did not open its DevTools port within 30 s")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol; its result."""
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                found: dict[str, Any] = message["result"]
                return found
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                detail = params["exceptionDetails"]
                self.errors.append(detail.get("exception", {}).get("description") or detail["text"])
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def go(self, url: str) -> None:
        """Load a page anew."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, script: str, seconds: float = 20, check: Callable[[Any], bool] = bool) -> Any:
        """Wait until an expression is true (or passes `check`); its value."""
        end = time.monotonic() + seconds
        while True:
            try:
                value = self.evaluate(script)
                if check(value):
                    return value
            except AssertionError as error:  # the document, or what is asked of it, is not there yet
                value = error
            if time.monotonic() > end:
                raise AssertionError(f"after {seconds} s still {value!r}: {script}")
            time.sleep(0.05)

    def key(self, key: str, code: str = "", modifiers: int = 0) -> None:
        """Press and release a key, by its DOM name."""
        codes = {
            "Tab": 9,
            "Enter": 13,
            " ": 32,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
        }
        text = {"text": key} if len(key) == 1 else {}
        number = codes.get(key, ord(key) if len(key) == 1 else 0)
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=code or key,
                modifiers=modifiers,
                windowsVirtualKeyCode=number,
                **(text if kind == "keyDown" else {}),
            )

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """`mousePressed`, `mouseReleased`, `mouseMoved` at a place of the window."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press, move, release the left button."""
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, button="left", buttons=1, clickCount=1)
        self.mouse("mouseMoved", *end, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def dark(self, dark: bool) -> None:
        """Have the system prefer dark or light."""
        value = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def screenshot(self, path: Path) -> None:
        """What is in the window, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
