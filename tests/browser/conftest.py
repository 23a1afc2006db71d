"""A real browser: Chromium, driven through its own driver, without a window."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

#: Set it where a browser is required: tests that need one fail instead of being skipped.
REQUIRE_VARIABLE = "STREAM_DPPCA_REQUIRE_BROWSER"
#: A folder for screenshots; without it none are taken. docs/figures comes from these tests.
SCREENSHOTS_VARIABLE = "STREAM_DPPCA_SCREENSHOTS"


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    """One browser for all tests of a session."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        reason = "there is no Chromium with its driver (docker/ensure-browser.sh installs both)"
        if os.environ.get(REQUIRE_VARIABLE, "") not in ("", "0"):
            pytest.fail(f"{REQUIRE_VARIABLE} is set, but {reason}", pytrace=False)
        pytest.skip(reason)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # In a container there is neither a sandbox nor much shared memory.
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        "disable-gpu",
        "hide-scrollbars",
        "disable-background-networking",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield made
    made.quit()


class Browser:
    """A browser window of a size, and what its console says."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.screen(1280, 900)
        driver.get_log("browser")

    def screen(self, width: int, height: int, *, dark: bool = False) -> None:
        phone = width < 600
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {
                "width": width,
                "height": height,
                "deviceScaleFactor": 2 if phone else 1,
                "mobile": phone,
            },
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def give_password(self, password: str) -> None:
        """Send a password with every request, as after it was asked for."""
        given = base64.b64encode(f"anybody:{password}".encode()).decode()
        headers = {"headers": {"Authorization": f"Basic {given}"} if password else {}}
        self.driver.execute_cdp_cmd("Network.enable", {})
        self.driver.execute_cdp_cmd("Network.setExtraHTTPHeaders", headers)

    def text(self, element: str) -> str:
        return str(self.run(f"return document.getElementById('{element}').textContent"))

    def hidden(self, element: str) -> bool:
        return bool(self.run(f"return document.getElementById('{element}').hidden"))

    def complaints(self) -> list[str]:
        """Warnings and errors on the console since the last call."""
        entries = self.driver.get_log("browser")
        return [e["message"] for e in entries if e["level"] in ("WARNING", "SEVERE")]

    def shoot(self, name: str, height: int | None = None) -> None:
        """Take a screenshot of the page, or of the top of it, if screenshots are wanted."""
        folder = os.environ.get(SCREENSHOTS_VARIABLE)
        if folder:
            whole = {"captureBeyondViewport": True, "format": "png"}
            size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
            clip = {**size, "scale": 1, **({} if height is None else {"height": height})}
            data = self.driver.execute_cdp_cmd("Page.captureScreenshot", {**whole, "clip": clip})
            Path(folder, f"{name}.png").write_bytes(base64.b64decode(data["data"]))


@pytest.fixture
def browser(driver: Any) -> Iterator[Browser]:
    made = Browser(driver)
    yield made
    driver.get("about:blank")  # closes the page's connection
    made.give_password("")


Wait = Callable[..., Any]
