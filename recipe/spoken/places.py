"""Places and numbers as people write them: addresses, phones, parking, wifi passwords, names of shops."""

import random

from models.demo import lexicon
from models.demo.lexicon import Lang
from recipe.spoken.invented import invented
from recipe.spoken.words import words


def phone(rng: random.Random, lang: Lang) -> str:
    four, more = f"{rng.randrange(10_000):04d}", f"{rng.randrange(10_000):04d}"
    if lang == "ko" or rng.random() < 0.35:
        forms = [f"010-{four}-{more}"] * 5 + [f"010 {four} {more}", f"010{four}{more}", f"010.{four}.{more}"]
        area = rng.choice(("02", "031", "051", "053", "042", "062", "070"))
        return rng.choice([*forms, f"{area}-{rng.randint(200, 999)}-{four}", four, f"{four}-{more}"])
    three, code = rng.randint(200, 999), rng.randint(201, 989)
    forms = [f"555-{four}", f"{code}-{three}-{four}", f"({code}) {three}-{four}", f"{code} {three} {four}"]
    return rng.choice([*forms, f"{three}-{four}", f"07{code} {more}{three % 100:02d}", f"+1 {code} {three} {four}"])


def address(rng: random.Random, lang: Lang) -> str:
    """Where to deliver: a street and number, a building and room."""
    if rng.random() < 0.15:
        return lexicon.address(rng, lang)
    number, room = rng.randint(1, 399), rng.randint(1, 20) * 100 + rng.randint(1, 12)
    strange = invented(rng, lang).title() if rng.random() < 0.2 else ""
    if lang == "ko":
        town = rng.choice(words("towns", "ko"))
        street = f"{strange}로" if strange else rng.choice(words("streets", "ko"))
        building, part = rng.choice(words("buildings", "ko")), rng.choice(words("rooms", "ko"))
        forms = [
            f"{street} {number}",
            f"{street} {number}번길 {rng.randint(1, 60)}",
            f"{town} {number}-{room % 60 + 1}",
        ]
        forms += [
            f"{building} {room}호",
            f"{building} {rng.randint(101, 130)}동 {room}호",
            f"{building} {room % 30 + 1}층",
        ]
        forms += [
            f"{town} {building} {room}호",
            f"{street} {number} {building}",
            f"{building} {part}",
            f"{town} {number}번지",
        ]
        return rng.choice([*forms, f"{rng.randint(1, 30)}층 {part}", f"{building} {rng.choice('ABCD')}동 {room}호"])
    road = f"{number} {strange or rng.choice(words('streets', 'en'))} {rng.choice(words('roads', 'en'))}"
    building = rng.choice(words("buildings", "en"))
    forms = [road, road, road, f"{road}, apartment {room}", f"{road}, Apt {rng.randint(1, 30)}{rng.choice('ABCDEF')}"]
    forms += [f"{building}, room {room}", f"{building}, floor {rng.randint(2, 40)}", f"room {room} in {building}"]
    return rng.choice([*forms, f"{road}, unit {rng.randint(1, 90)}", f"suite {room}, {road}"])


def region(rng: random.Random, lang: Lang) -> str:
    """A part of a town."""
    if lang == "ko":
        town = rng.choice(words("towns", "ko"))
        return town if rng.random() < 0.5 else f"{town.removesuffix('동')}구"
    return rng.choice(words("streets", "en")) + rng.choice(
        ("side", "field", "ton", " Hill", " Park", " District", "ville")
    )


def parking(rng: random.Random, lang: Lang) -> str:
    level, count = rng.randint(1, 5), rng.randint(2, 40)
    if lang == "ko":
        place = rng.choice(words("buildings", "ko"))
        forms = [
            f"건물 지하 {level}층",
            "가게 앞",
            f"가게 앞 {count}대",
            f"건물 뒤편 {count}대",
            "건물 뒤 주차장",
            f"{place} 주차장",
        ]
        forms += [
            "길 건너 공영주차장",
            "근처 공영주차장",
            f"지하주차장 {level}시간 무료",
            "매장 옆 공터",
            "가게 뒤 골목",
        ]
        forms += ["옆 골목 공영주차장", f"맞은편 {place} 지하 {level}층", f"{place} 주차타워", f"건물 뒤 {level}대"]
        return rng.choice([*forms, f"{place} 지하 {level}층", "맞은편 교회 주차장", "시장 공영주차장", "건물 1층"])
    place = rng.choice(words("buildings", "en"))
    forms = ["behind the shop", "in front of the shop", "behind the building", "on the street", "in the lot next door"]
    forms += [f"on basement level {level}", f"at {place}", f"in the garage under {place}", "across the street"]
    return rng.choice([*forms, f"behind {place}", f"in lot {rng.choice('ABCDEF')}", f"in the {count} spaces out back"])


def wifi(rng: random.Random, lang: Lang) -> str:
    start = rng.choice(
        ("dosirak", "bento", "lunch", "bap", "shop", "hello", "welcome", "rice", "guest", "yum", "kimchi")
    )
    made = invented(rng, "en")
    number = str(rng.randrange(10, 10_000))
    forms = [
        start + number,
        made + number,
        lexicon.code(rng, lang),
        number + made,
        f"{start}-{number}",
        start.title() + number,
    ]
    return rng.choice(
        [*forms, f"{start}{number}!", f"{made}_{number}", f"{rng.randrange(10**7, 10**8)}", f"{start}{made}"]
    )


def shop(rng: random.Random, lang: Lang) -> str:
    if rng.random() < 0.2:
        return lexicon.shop(rng, lang)
    start, end = rng.choice(words("shops", lang)), rng.choice(words("shop_ends", lang))
    if rng.random() < 0.15:
        start = invented(rng, lang).title()
    if lang == "ko":
        if rng.random() < 0.25:
            start += (
                rng.choice(words("given_last", "ko")) if rng.random() < 0.5 else rng.choice(("네", "의", "한", "찬"))
            )
        if rng.random() < 0.3:
            return start + rng.choice(words("shops", "ko")) if rng.random() < 0.5 else f"{end} {start}"
        return rng.choice((f"{start} {end}", start + end, f"{start}{rng.choice(words('given_first', 'ko'))} {end}"))
    if rng.random() < 0.3:
        start = rng.choice(
            (
                f"{start} & {rng.choice(words('shops', 'en'))}",
                rng.choice(words("streets", "en")),
                invented(rng, lang).title(),
            )
        )
    return rng.choice((f"{start} {end}", f"{start} {end}", f"The {start} {end}", f"{start}'s {end}"))
