"""The status page in headless Chromium: what it shows, that a name in it is text, and that it asks nobody else for anything."""

import contextlib
import os
import pathlib
import shlex
import time

import playwright.sync_api
import pytest

from harness import topology, turn, waiting
from harness.server import Server

PORT = 9641
URL = f"http://127.0.0.1:{PORT}/status"
USER = "<img src=x onerror=\"document.title='taken'\">"
#: Debian's Chromium as root in a network without the outside.
FLAGS = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


@pytest.fixture
def server(hosts, tmp_path, servers, certificate):
    options = ("--prometheus", "--status-page", "--user", f"{USER}:hush")
    secure = ("--cert", str(certificate), "--pkey", str(certificate))
    with Server(servers["turnbuckle"], hosts, tmp_path, (*options, *secure)) as server:
        server.await_ready()
        yield server


@pytest.fixture
def pages(hosts, program, tmp_path):
    """Makes pages of a browser in the relay's namespace, and notes what is wrong with them and what they ask for."""
    launcher = tmp_path / "chromium-in-namespace"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(hosts.relay.argv(program("chromium")))} "$@"\n')
    launcher.chmod(0o755)
    with playwright.sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=launcher, args=FLAGS, timeout=waiting.PATIENCE * 1000)
        with contextlib.closing(browser):

            def make(scheme: str = "light", width: int = 1280):
                page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}).new_page()
                page.set_default_timeout(waiting.PATIENCE * 1000)
                page.wrong, page.asked = [], set()
                page.on("console", lambda message: page.wrong.append(message.text))
                page.on("pageerror", lambda error: page.wrong.append(str(error)))
                page.on("request", lambda request: page.asked.add(request.url))
                return page

            yield make


def the_page_shows_what_the_relay_does_and_a_name_stays_text(hosts, server, pages):
    page = pages()
    page.goto(URL)
    page.wait_for_selector("#state.good")
    page.wait_for_selector("text=No sessions.")
    login = turn.Login(server.port, USER, "hush")
    with hosts.client.udp(topology.CLIENT_IPV4) as udp, hosts.peer.udp(topology.PEER_IPV4) as peer:
        client = turn.Client(udp, server.ipv4, login)
        client.allocate()
        begun = time.monotonic()
        page.wait_for_selector("#sessions tbody tr")
        print(f"shown {time.monotonic() - begun:.2f} s after it has begun")
        client.bind(0x4000, peer.getsockname())
        for _ in range(400):
            client.udp.sendto(turn.channel_data(0x4000, bytes(900)), client.server)
            client.udp.sendto(turn.channel_data(0x4001, bytes(10)), client.server)
            time.sleep(0.005)
        page.wait_for_selector("#drops .row")
        cell = page.locator("#sessions tbody td").first
        assert cell.inner_text() == USER
        assert page.locator("#sessions img").count() == 0
        assert page.title() == "Turnbuckle"
        assert page.locator("#drops .label").first.inner_text() == "channel_not_bound"
        # Two samples of the relay's own history, which are five seconds apart, and what came since.
        _await(page, lambda: page.locator("#rates path.line").count() == 3)
        page.fill("#filter", "nobody")
        page.wait_for_selector("text=No session matches.")
        page.fill("#filter", USER[:4])
        page.check("#by-user")
        page.wait_for_selector("#sessions td[data-column=Sessions]")
        page.uncheck("#by-user")
        assert page.locator("#batches h3").count() >= 1
        assert "relay.test" in page.locator("#certificates").inner_text()
        # For whoever wants to look at it.
        narrow = pages(width=360)
        narrow.goto(URL)
        narrow.wait_for_selector("#sessions tbody tr")
        assert narrow.evaluate("document.documentElement.scrollWidth") == 360, "nothing is cut off"
        if folder := os.environ.get("STATUS_PAGE_PICTURES"):
            page.screenshot(path=pathlib.Path(folder) / "light.png", full_page=True)
            for name, scheme, width in (("dark", "dark", 1280), ("narrow", "light", 360)):
                other = pages(scheme, width)
                other.goto(URL)
                other.wait_for_selector("#sessions tbody tr")
                client.udp.sendto(turn.channel_data(0x4000, bytes(900)), client.server)
                other.wait_for_timeout(2500)
                other.screenshot(path=pathlib.Path(folder) / f"{name}.png", full_page=True)
        client.release()
    page.wait_for_selector("text=No sessions.")
    assert page.wrong == []
    assert all(url.startswith(f"http://127.0.0.1:{PORT}/status") for url in page.asked), page.asked


def a_script_in_the_page_or_from_elsewhere_is_not_run(server, pages):
    page = pages()
    page.goto(URL)
    page.wait_for_selector("#state.good")
    page.evaluate(
        """() => {
            document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='document.title=1'>");
            const script = document.createElement("script");
            script.textContent = "document.title = 2";
            document.body.append(script);
        }"""
    )
    _await(page, lambda: sum("Content Security Policy" in text for text in page.wrong) >= 2)
    assert page.title() == "Turnbuckle"
    # A page of another origin reads nothing: a page without an origin stands for it.
    other = pages()
    other.goto("about:blank")
    read = other.evaluate(f"() => fetch('{URL}.json').then(() => 'read', () => 'not read')")
    assert read == "not read"
    other.evaluate(
        f"""() => {{
            const frame = document.createElement("iframe");
            frame.src = "{URL}";
            document.body.append(frame);
        }}"""
    )
    # What Chromium shows in place of what it must not show.
    _await(other, lambda: any(frame.url.startswith("chrome-error:") for frame in other.frames))


def _await(page, condition) -> None:
    """Waits while the browser's events are taken, which happens in calls to it alone."""
    deadline = time.monotonic() + waiting.PATIENCE
    while not condition():
        assert time.monotonic() < deadline, page.wrong
        page.wait_for_timeout(20)
