"""The audit's screen in a real browser: who did what, newest first, page by page, by action and by key."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from tests.e2e.server import Server
from tests.ui.browser import cells, needs_browser, window
from tests.ui.conftest import KEY

pytestmark = needs_browser


def test_the_audit_leads_from_the_keys_to_who_did_what(chromium: Browser, keyed: Server) -> None:
    with keyed.client() as client:
        client.headers["Authorization"] = f"Bearer {KEY}"
        made = client.post("/v1/keys", json={"name": "<b>가게</b>", "scopes": ["models:write"]}).json()
        for number in range(60):
            client.put("/v1/repository/models/demo/aliases/audited", json={"version": str(number % 2 + 1)})
        client.delete("/v1/repository/models/demo/aliases/audited", headers={"Authorization": f"Bearer {made['key']}"})
    with window(chromium, keyed.url) as shown:
        page = shown.page
        page.goto(f"{keyed.url}/ui/keys")
        page.get_by_label("Key").fill(KEY)
        page.get_by_role("button", name="Sign in").click()
        shown.forget("401")
        page.get_by_role("link", name="Audit").click()
        table = page.get_by_role("table", name="Audit")
        expect(table.get_by_role("row")).to_have_count(51)
        [deleted] = [each for each in cells(table)[:3] if "aliases.delete" in each[1]]
        assert deleted[1].split() == ["aliases.delete", "done"] and deleted[2] == "demo@audited"
        assert deleted[3].split("\n") == ["<b>가게</b>", f"{made['id']} · 127.0.0.1"]
        page.get_by_role("button", name="More").click()
        expect(page.get_by_role("status")).to_contain_text("Rows shown: ")
        expect(table.get_by_role("row").nth(55)).to_contain_text("aliases.promote")

        table.get_by_role("link", name="<b>가게</b>").first.click()
        expect(table.get_by_role("row")).to_have_count(2)
        assert f"owner={made['id']}" in page.url
        page.get_by_role("combobox", name="Who").fill("")
        page.get_by_role("combobox", name="Action").fill("keys.create")
        page.get_by_role("combobox", name="Outcome").select_option("done")
        expect(table.get_by_role("row").nth(1)).to_contain_text('scopes: ["models:write"]')
        page.reload()
        expect(table).to_contain_text("keys.create")
        assert {each[1].split()[0] for each in cells(table)} == {"keys.create"}
        page.get_by_role("combobox", name="Of what").fill("nobody")
        expect(page.get_by_role("status")).to_have_text("No row fits.")
        assert not shown.complaints, shown.complaints
    with keyed.client() as client:  # the keys' screen begins without any
        client.headers["Authorization"] = f"Bearer {KEY}"
        assert client.delete(f"/v1/keys/{made['id']}").is_success
