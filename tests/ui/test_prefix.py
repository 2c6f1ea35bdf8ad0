"""The UI behind a proxy that strips a prefix, and with no other server in reach."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.server import Server
from tests.ui.browser import needs_browser, window

pytestmark = needs_browser
PREFIX = "/llm/lunch"


@pytest.fixture(scope="module")
def proxied(served: Server) -> Iterator[str]:
    """The address of a proxy that knows nothing of Dosirak: it takes the prefix off and passes everything on."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(PREFIX):
                self.send_error(418, "outside of the prefix")
                return
            headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            target = served.url + self.path[len(PREFIX) :]
            answer = httpx.request(self.command, target, headers=headers, content=body, timeout=60)
            self.send_response(answer.status_code)
            for key, value in answer.headers.items():
                if key not in ("content-length", "transfer-encoding", "connection", "content-encoding"):
                    self.send_header(key, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_POST = do_PUT = do_DELETE = do_PATCH = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_the_store_works_behind_a_prefix(chromium: Browser, proxied: str) -> None:
    with window(chromium, proxied + PREFIX) as shown:
        outside = []
        shown.page.on("request", lambda request: outside.append(request.url) if PREFIX not in request.url else None)
        page = shown.open("")
        page.get_by_role("table", name="Models").get_by_role("link", name="demo", exact=True).click()
        page.get_by_role("table", name="Versions").get_by_role("link", name="demo:2").click()
        expect(page.get_by_role("region", name="Use it")).to_contain_text(f"{proxied}{PREFIX}/v1/chat/completions")
        page.get_by_role("combobox", name="Language").select_option("ko")
        expect(page.get_by_role("navigation", name="주 메뉴")).to_be_visible()
        page.get_by_role("link", name="작업").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("작업")
        assert not outside and not shown.complaints
