"""Wrong keys are counted and slowed by their peer; a right key passes at any time."""

from __future__ import annotations

import httpx

from service.api.edge import wrong_keys
from service.api.edge.wrong_keys import WrongKeys
from tests.api.conftest import KEY, Serve
from tests.fake_service import URL, World


def client(world: World, address: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(world.app, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url=URL)


async def test_wrong_keys_are_refused_for_longer_and_the_right_one_never(serve: Serve) -> None:
    right, wrong = {"Authorization": f"Bearer {KEY}"}, {"X-Api-Key": "guess"}
    async with serve(admin_key=KEY) as world, client(world, "10.0.0.1") as guessing:
        for _ in range(30):
            assert (await guessing.get("/v1/models")).status_code == 401
        answers = [await guessing.get("/v1/models", headers=wrong) for _ in range(300)]
        assert [each.status_code for each in answers] == [401] * 10 + [429] * 290
        waits = [int(each.headers["retry-after"]) for each in answers[10:]]
        assert waits == sorted(waits) and (waits[0], waits[-1]) == (12, 60)
        assert (await guessing.get("/v1/models", headers=right)).status_code == 200
        form = await guessing.post("/ui/sign-in", data={"key": "guess"})
        assert (form.status_code, form.json()["code"]) == (429, "rate_limited")
        assert (await guessing.post("/ui/sign-in", data={"key": KEY})).status_code == 303
        async with client(world, "10.0.0.2") as other:
            assert (await other.get("/v1/models", headers=wrong)).status_code == 401
        shown = (await guessing.get("/metrics", headers=right)).text
        assert 'dosirak_wrong_keys_total{status="401"} 11.0' in shown
        assert 'dosirak_wrong_keys_total{status="429"} 291.0' in shown
        assert "dosirak_wrong_key_peers 1.0" in shown


def test_a_peer_is_forgiven_when_it_said_it_would_be() -> None:
    now = 1000.0
    keys = WrongKeys(clock=lambda: now)
    peer = {"client": ("2001:db8::1", 1)}
    refusals = [keys.count(peer) for _ in range(11)]
    assert refusals[:10] == [None] * 10 and (refusal := refusals[10]) is not None
    assert keys.count({"client": ("2001:db8::ffff", 1)}) is not None  # the same network of one host
    now += 17
    assert keys.refused_peers == 1
    now += 1
    assert keys.refused_peers == 0 and keys.count(peer) is None
    assert refusal.retry_after == 12


def test_what_is_remembered_has_a_bound() -> None:
    keys = WrongKeys()
    for number in range(2 * wrong_keys.MOST_PEERS):
        keys.count({"client": (f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 1)})
    assert len(keys._empty_at) == wrong_keys.MOST_PEERS
