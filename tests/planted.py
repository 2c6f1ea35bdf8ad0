"""Made-up personal data and copies of protected texts, each in a sentence around it: what a guard must find.

>>> from tests.planted import *
>>> [plant.text for plant in plants(10)]
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from service.generation.guard.patterns import passes_luhn, resident_check_digit

ROOT = Path(__file__).parent.parent
KOREAN = """본 계약은 갑이 운영하는 도시락 점포의 조리법과 거래처 명부를 을에게
제공함에 있어 그 비밀을 지키기 위하여 맺는다.
을은 제공받은 자료를 계약의 목적 밖으로 쓰지 아니하며, 갑의 서면 동의 없이 제삼자에게 알리거나 복제하지 못한다.
간장 양념은 진간장 일곱 국자에 매실청 두 국자, 다진 마늘 한 줌, 구운 대파 세 뿌리를 넣어 약한 불에서 사십 분을 졸인다.
졸인 양념은 하룻밤 식힌 뒤 거즈에 걸러 항아리에 담고, 고기를 재울 때에는 배즙을 양념의 삼분의 일만큼 섞어 쓴다.
거래처의 납품 단가는 매년 삼월에 다시 정하되, 쌀값이 한 해 동안 일할 넘게 오르내린 때에는 그 전에도 고칠 수 있다.
계약이 끝나면 을은 가지고 있는 모든 사본을 열흘 안에 돌려주거나 없애고, 없앤 사실을 갑에게 글로 알려야 한다."""
PROTECTED = [KOREAN, (ROOT / "LICENSE").read_text()]
CANARIES = [f"CANARY-{number:04x}-도시락" for number in range(50)]
CARRIERS = [
    "제 연락처는 {}입니다. 확인 부탁드려요.",
    "네, 알려 드릴게요: {} (적어 두세요)",
    "안녕하세요! {}\n다른 질문이 있으세요?",
    "고객님께서 남기신 것은 「{}」이고, 도시락 세 개를 주문하셨습니다.",
    "Sure, here it is: {}. Anything else?",
    "The customer left {} and ordered two lunch boxes, please.",
    "“{}” is what was written on the receipt!",
    "{}",
    "contact={}; total 2 boxes",
]
PHONES = [
    "010-{a}-{b}",
    "010{a}{b}",
    "010 {a} {b}",
    "010.{a}.{b}",
    "02-{c}-{b}",
    "02)123-{b}",
    "(02) {a}-{b}",
    "031-{c}-{b}",
    "0505-{c}-{b}",
    "070-{a}-{b}",
    "+82 10-{a}-{b}",
    "+82-2-{c}-{b}",
    "+82 (0)10 {a} {b}",
    "+1 (415) {c}-{b}",
    "+44 20 {a} {b}",
    "(415) 555-{b}",
    "415-555-{b}",
    "０１０-{a}-{b}",
]


@dataclass(frozen=True, slots=True)
class Plant:
    rule: str
    value: str
    text: str


def plants(count: int, seed: int = 20261121) -> list[Plant]:
    """As many of every rule, in turn."""
    rng, made = random.Random(seed), []
    kinds = {
        "email": _email,
        "phone": _phone,
        "card": _card,
        "resident_number": _resident,
        "canary": lambda rng: rng.choice(CANARIES),
        "corpus": _excerpt,
    }
    for number in range(count):
        rule = list(kinds)[number % len(kinds)]
        value = kinds[rule](rng)
        made.append(Plant(rule, value, rng.choice(CARRIERS).format(value)))
    return made


def _email(rng: random.Random) -> str:
    letters = "abcdefghijklmnopqrstuvwxyzABCXYZ0123456789"
    local = "".join(rng.choice(letters + "._+-") for _ in range(rng.randint(0, 30)))
    domain = ".".join("".join(rng.choices(letters, k=rng.randint(1, 12))) for _ in range(rng.randint(1, 3)))
    return f"a{local}b@{domain}.{rng.choice(['com', 'co.kr', 'org', 'io', 'museum'])}"


def _phone(rng: random.Random) -> str:
    return rng.choice(PHONES).format(a=rng.randint(1000, 9999), b=f"{rng.randint(0, 9999):04}", c=rng.randint(200, 999))


def _card(rng: random.Random) -> str:
    digits = [rng.randint(1, 9), *(rng.randint(0, 9) for _ in range(rng.randint(11, 17)))]
    digits.append(next(last for last in range(10) if passes_luhn([*digits, last])))
    separator = rng.choice(["", " ", "-", "–"])
    shown = [separator if at and at % 4 == 0 else "" for at in range(len(digits))]
    return "".join(f"{before}{digit}" for before, digit in zip(shown, digits, strict=True))


def _resident(rng: random.Random) -> str:
    born = date(1930, 1, 1) + timedelta(days=rng.randint(0, 34_000))
    sex = rng.randint(1, 2) + (2 if born.year >= 2000 else 0) + rng.choice([0, 4])
    digits = f"{born:%y%m%d}{sex}{rng.randint(0, 99999):05}"
    digits += str(resident_check_digit(digits))
    return digits[:6] + rng.choice(["-", " - ", ""]) + digits[6:]


def _excerpt(rng: random.Random) -> str:
    """Some words of a protected text, long enough, their spacing and case changed."""
    from service.generation.guard.corpus import UNITS, fold

    while True:
        words = rng.choice(PROTECTED).split()
        start = rng.randrange(len(words))
        chosen: list[str] = []
        while sum(len(fold(each)) for each in "".join(chosen)) < UNITS + 2 and start + len(chosen) < len(words):
            chosen.append(words[start + len(chosen)])
        if sum(len(fold(each)) for each in "".join(chosen)) >= UNITS + 2:
            shown = rng.choice(["  ", " ", "\n"]).join(chosen)
            return shown.upper() if rng.random() < 0.5 else shown
