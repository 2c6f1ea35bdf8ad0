"""Sixty hostile texts as titles, messages and answers: none runs, none is fetched, and all show as written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.e2e.server import Server
from tests.ui.browser import needs_browser, window

pytestmark = needs_browser
ELSEWHERE: Final = "http://elsewhere.invalid/x"
HANDLERS: Final = (
    "onerror",
    "onload",
    "onfocus",
    "onmouseover",
    "ontoggle",
    "onbegin",
    "onpointerenter",
    "onanimationstart",
)
TAGS: Final = ("img src=x", "svg", "input autofocus", "body", "details open", "video src=x", "marquee", "a href=x")
TEXTS: Final = (
    *(f"<{tag} {handler}=window.ran=1>" for tag, handler in zip(TAGS, HANDLERS, strict=True)),
    "<script>window.ran=1</script>",
    "</script><script>window.ran=1</script>",
    "<script src=http://elsewhere.invalid/x></script>",
    "<img src=http://elsewhere.invalid/x>",
    "<img srcset='http://elsewhere.invalid/x 1x'>",
    "<iframe src=http://elsewhere.invalid/x></iframe>",
    "<iframe srcdoc='<script>parent.ran=1</script>'></iframe>",
    "<object data=http://elsewhere.invalid/x></object>",
    "<embed src=http://elsewhere.invalid/x>",
    "<link rel=stylesheet href=http://elsewhere.invalid/x>",
    "<link rel=prefetch href=http://elsewhere.invalid/x>",
    "<style>@import 'http://elsewhere.invalid/x'</style>",
    "<style>body{background:url(http://elsewhere.invalid/x)}</style>",
    "<base href=http://elsewhere.invalid/>",
    "<meta http-equiv=refresh content='0;url=http://elsewhere.invalid/x'>",
    "<form action=http://elsewhere.invalid/x><button>press</button></form>",
    "<a href='javascript:window.ran=1'>press</a>",
    "javascript:window.ran=1",
    "data:text/html,<script>window.ran=1</script>",
    "[press](javascript:window.ran=1)",
    "![x](http://elsewhere.invalid/x)",
    "![x](javascript:window.ran=1)",
    "${window.ran=1}",
    "{{window.ran=1}}",
    "{{constructor.constructor('window.ran=1')()}}",
    "{% raw %}{{ 7*7 }}{% endraw %}",
    "#{window.ran=1}",
    "<%= window.ran=1 %>",
    "`${window.ran=1}`",
    "'-(window.ran=1)-'",
    '"-(window.ran=1)-"',
    "';window.ran=1;//",
    '"><img src=x onerror=window.ran=1>',
    "'><img src=x onerror=window.ran=1>",
    "--><img src=x onerror=window.ran=1>",
    "]]><img src=x onerror=window.ran=1>",
    "</textarea><img src=x onerror=window.ran=1>",
    "</title><img src=x onerror=window.ran=1>",
    "</option></select><img src=x onerror=window.ran=1>",
    "</pre><img src=x onerror=window.ran=1>",
    "&lt;img src=x onerror=window.ran=1&gt;",
    "&#60;img src=x onerror=window.ran=1&#62;",
    "\\u003cimg src=x onerror=window.ran=1\\u003e",
    "%3Cimg%20src=x%20onerror=window.ran=1%3E",
    "<math><mi xlink:href='javascript:window.ran=1'>x</mi></math>",
    "<svg><a xlink:href='javascript:window.ran=1'><text>x</text></a></svg>",
    "<svg><use href='http://elsewhere.invalid/x#y'/></svg>",
    "<svg><foreignObject><iframe src=http://elsewhere.invalid/x></iframe></foreignObject></svg>",
    "<template><script>window.ran=1</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=window.ran=1>'>",
    "\u202e<gpj.tpircs>\u202c evil",
    "__proto__",
)


@pytest.fixture(scope="module")
def session(served: Server) -> Iterator[str]:
    """A chat whose title, questions and answers are the texts."""
    header = {"metadata": {"title": TEXTS[0]}}
    with served.client() as client:
        made = client.post("/v1/sessions", json=header).json()["id"]
        exported = client.get(f"/v1/sessions/{made}/export").text.splitlines()
        client.delete(f"/v1/sessions/{made}")
        said = [{"role": role, "content": text} for text in TEXTS for role in ("user", "assistant")]
        fixed = {"type": "message", "created_at": "2026-11-22T11:28:37Z"}
        lines = [exported[0], *(json.dumps({**fixed, "id": f"m_{at}", **each}) for at, each in enumerate(said))]
        body = "\n".join(lines) + "\n"
        answer = client.post("/v1/sessions/import", content=body, headers={"Content-Type": "application/x-ndjson"})
        assert answer.status_code < 300, answer.text
        yield answer.json()["id"]


def test_there_are_sixty() -> None:
    assert len(set(TEXTS)) >= 60


@pytest.mark.parametrize("path", ["sessions/{session}", "sessions", "playground?session={session}"])
def test_stored_texts_are_shown_and_nothing_runs(chromium: Browser, served: Server, session: str, path: str) -> None:
    with window(chromium, served.url) as shown:
        asked: list[str] = []
        shown.page.on("request", lambda request: asked.append(request.url))
        page = shown.open(path.format(session=session))
        while (earlier := page.get_by_role("button", name="Earlier messages")).count():
            earlier.click()
        if path != "sessions":
            for text in TEXTS[1:]:
                expect(page.get_by_text(text, exact=False).first).to_be_attached()
        page.wait_for_timeout(300)
        assert page.evaluate("window.ran") is None and not shown.complaints
        assert all(url.startswith((served.url, "data:")) for url in asked)
        assert page.locator("main iframe, main object, main embed, main script, main style, main link").count() == 0


def test_texts_of_the_repository_and_its_errors_are_text(chromium: Browser, served: Server) -> None:
    """Cards, reasons and refusals that an author wrote."""
    card = "\n".join(TEXTS)

    def carded(route: Route) -> None:
        answer = route.fetch()
        body = {
            **answer.json(),
            "card": card,
            "license": TEXTS[0],
            "lineage": {**answer.json()["lineage"], "recipe": card},
        }
        route.fulfill(response=answer, body=json.dumps(body))

    def refused(route: Route) -> None:
        route.fulfill(status=409, body=json.dumps({"error": card, "code": "conflict"}), content_type="application/json")

    with window(chromium, served.url) as shown:
        shown.page.route("**/v1/repository/models/demo/versions/2", carded)
        page = shown.open("models/demo/versions/2")
        expect(page.get_by_role("region", name="Card")).to_contain_text(TEXTS[8])
        shown.page.route("**/verify", refused)
        page.get_by_role("button", name="Verify files").click()
        expect(page.get_by_role("alert")).to_contain_text(TEXTS[8])
        page.wait_for_timeout(300)
        assert page.evaluate("window.ran") is None
        assert page.locator("main iframe, main img, main script, main style, main svg a").count() == 0
