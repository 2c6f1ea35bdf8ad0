"""Values of the facts that customers tell and shops state, as people write them, by kind.

Values of open kinds (names, numbers, addresses) that the checksum of `models.demo.lexicon` holds out never come. Words
of short lists (foods, days, drinks) all come: a customer may name any.
"""

import random

from models.demo import lexicon
from models.demo.lexicon import Lang, Pool, split_of
from models.demo.spoken import clock
from models.demo.spoken.money import Currency
from models.demo.spoken.words import dishes, words

SINO = ("", "일", "이", "삼", "사", "오", "육", "칠", "팔", "구", "십")
DOLLARS = {10: "ten", 12: "twelve", 15: "fifteen", 20: "twenty", 25: "twenty-five", 30: "thirty", 35: "thirty-five"}
DOLLARS |= {40: "forty", 45: "forty-five", 50: "fifty", 60: "sixty", 70: "seventy", 75: "seventy-five", 80: "eighty"}
OPEN = frozenset("name picker owner chef phone address code wifi shop shop_phone shop_address budget".split())


def value(rng: random.Random, kind: str, lang: Lang, currency: Currency) -> str:
    """A value of the kind."""
    while True:
        found = _money(rng, kind, lang, currency) if kind in ("budget", "fee", "minimum") else POOLS[kind](rng, lang)
        if kind not in OPEN or split_of(found) == "train":
            return found


def name(rng: random.Random, lang: Lang) -> str:
    """A person's name, as the language's speakers give theirs."""
    if rng.random() < 0.12:
        return lexicon.person(rng, lang)
    if lang == "ko":
        if rng.random() < 0.08:
            return rng.choice(words("foreign", "ko"))
        real = rng.choice(words("real_given", "ko"))
        given = real if rng.random() < 0.4 else rng.choice(words("given_first", "ko")) + rng.choice(_last())
        return (rng.choice(words("surnames", "ko")) if rng.random() < 0.7 else "") + given
    given = rng.choice(words("names", "en")) if rng.random() < 0.75 else lexicon.person(rng, lang)
    full = f"{given} {rng.choice(words('surnames', 'en'))}" if rng.random() < 0.25 else given
    return full.lower() if rng.random() < 0.08 else full


def _last() -> tuple[str, ...]:
    return words("given_last", "ko")


def _money(rng: random.Random, kind: str, lang: Lang, currency: Currency) -> str:
    if kind == "fee" and rng.random() < 0.15:
        return "무료" if lang == "ko" else "free"
    if lang == "ko" and currency.writing.endswith("원"):
        amount = rng.randint(1, 12) * 500 if kind == "fee" else rng.randint(5, 100) * 1000
        if amount >= 10000 and rng.random() < (0.5 if kind == "budget" else 0.15):
            return _spoken(rng, amount)
        return currency.text(amount)
    if currency.writing in ("$", "dollars"):
        cents = rng.randint(2, 16) * 50 if kind == "fee" else rng.randint(8, 80) * 100
        if kind == "budget" and rng.random() < 0.4:
            whole = cents // 100
            number = DOLLARS.get(whole, str(whole)) if rng.random() < 0.7 else str(whole)
            return f"{number} {rng.choice(('dollars', 'dollars', 'bucks'))}"
        return currency.text(cents)
    return currency.text(rng.randint(1, 12) * 500 if kind == "fee" else rng.randint(5, 80) * 1000)


def _spoken(rng: random.Random, amount: int) -> str:
    """Won from ten thousand on, as they are said: 3만 5천 원, 만오천원, 이십만 원."""
    tens, thousands = amount // 10000, amount % 10000 // 1000
    if rng.random() < 0.35:
        head = "" if tens == 1 else SINO[tens // 10] * (tens > 19) + "십" * (tens > 9) + SINO[tens % 10]
        tail = ("" if thousands == 1 else SINO[thousands]) + "천" if thousands else ""
        text = f"{head}만{rng.choice(('', ' ')) if tail else ''}{tail}원"
    else:
        text = f"{tens}만 {thousands}천원" if thousands else f"{tens}만원"
    return rng.choice((text, text.replace(" ", ""), text.replace("원", " 원")))


def phone(rng: random.Random, lang: Lang) -> str:
    four, more = f"{rng.randrange(10_000):04d}", f"{rng.randrange(10_000):04d}"
    if lang == "ko" or rng.random() < 0.35:
        forms = [f"010-{four}-{more}"] * 5 + [f"010 {four} {more}", f"010{four}{more}", f"010.{four}.{more}"]
        area = rng.choice(("02", "031", "051", "053", "042", "062", "070"))
        return rng.choice([*forms, f"{area}-{rng.randint(200, 999)}-{four}", four, f"{four}-{more}"])
    three, area = rng.randint(200, 999), rng.randint(201, 989)
    forms = [f"555-{four}", f"{area}-{three}-{four}", f"({area}) {three}-{four}", f"{area} {three} {four}"]
    return rng.choice([*forms, f"{three}-{four}", f"07{area} {more}{three % 100:02d}", f"+1 {area} {three} {four}"])


def address(rng: random.Random, lang: Lang) -> str:
    """Where to deliver: a street and number, a building and room."""
    if rng.random() < 0.15:
        return lexicon.address(rng, lang)
    number, room = rng.randint(1, 399), rng.randint(1, 20) * 100 + rng.randint(1, 12)
    if lang == "ko":
        town, street = rng.choice(words("towns", "ko")), rng.choice(words("streets", "ko"))
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
    road = f"{number} {rng.choice(words('streets', 'en'))} {rng.choice(words('roads', 'en'))}"
    building = rng.choice(words("buildings", "en"))
    forms = [road, road, road, f"{road}, apartment {room}", f"{road}, Apt {rng.randint(1, 30)}{rng.choice('ABCDEF')}"]
    forms += [f"{building}, room {room}", f"{building}, floor {rng.randint(2, 40)}", f"room {room} in {building}"]
    return rng.choice([*forms, f"{road}, unit {rng.randint(1, 90)}", f"suite {room}, {road}"])


def drink(rng: random.Random, lang: Lang) -> str:
    found = rng.choice(words("drinks", lang))
    if rng.random() < 0.2:
        return f"{rng.choice(words('chills', lang))} {found}"
    return (
        f"{found[:-2]} {found[-2:]}"
        if lang == "ko" and found.endswith(("주스", "우유")) and rng.random() < 0.3
        else found
    )


def food(rng: random.Random, lang: Lang, key: str = "foods") -> str:
    """What somebody is allergic to or dislikes (`key` dislikes), sometimes two things."""
    if rng.random() < 0.06:
        return lexicon.food(rng, lang)
    found = rng.sample(words(key, lang), 2)
    if rng.random() < 0.1:
        joint = rng.choice((" and ", " and ", ", ")) if lang == "en" else rng.choice(("랑 ", "하고 ", ", ", "이랑 "))
        return joint.join(found)
    return found[0].replace("매운", "매운 ").replace("음식", " 음식").strip() if rng.random() < 0.5 else found[0]


def shop(rng: random.Random, lang: Lang) -> str:
    if rng.random() < 0.2:
        return lexicon.shop(rng, lang)
    start, end = rng.choice(words("shops", lang)), rng.choice(words("shop_ends", lang))
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
                lexicon.made_up(rng, lang).title(),
            )
        )
    return rng.choice((f"{start} {end}", f"{start} {end}", f"The {start} {end}", f"{start}'s {end}"))


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
    made = lexicon.made_up(rng, "en")
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


def minutes(rng: random.Random, lang: Lang) -> str:
    low = rng.randint(2, 14) * 5
    unit, hour = ("분", "1시간") if lang == "ko" else (" minutes", "an hour")
    forms = [f"{low}{unit}", f"{low}{unit}", f"{low}~{low + 10}{unit}", f"{low}-{low + 15}{unit}", hour]
    return rng.choice([*forms, f"{low}분에서 {low + 10}분" if lang == "ko" else f"{low} to {low + 10} minutes"])


def people(rng: random.Random, lang: Lang) -> str:
    count = rng.randint(2, 30)
    if lang == "ko":
        return rng.choice((f"{count}명", f"{count}명", ("두 명", "세 명", "네 명", "다섯 명", "여섯 명")[count % 5]))
    return f"{count} people" if rng.random() < 0.6 else f"{clock.SPELLED[count % 11 + 1]} people"


def dish(rng: random.Random, lang: Lang) -> str:
    """A dish that a shop sells, with or without the word for its form (box, bowl)."""
    if rng.random() < 0.1:
        return lexicon.dish(rng, lang)
    base = rng.choice(dishes(lang))
    modified = rng.random() < 0.25
    if lang == "ko":
        base = f"{rng.choice(words('dish_modifiers', 'ko'))} {base}" if modified else base
        style = rng.choice(words("dish_styles", "ko")) if rng.random() < 0.35 else "도시락"
        return rng.choice((base, base, f"{base} {style}", base + style, f"{base} {style}"))
    if rng.random() < 0.25:
        base = rng.choice(words("dish_mains", "en"))
        return f"{rng.choice(words('dish_modifiers', 'en'))} {base} {rng.choice(words('dish_styles', 'en'))}"
    base = f"{rng.choice(words('dish_modifiers', 'en'))} {base}" if modified else base
    return base if rng.random() < 0.4 else f"{base} {rng.choice(words('dish_styles', 'en'))}"


def phrase(*choices: str) -> Pool:
    """A pool of Korean and English phrases: those with Hangul are Korean; `#` stands for a number."""

    def draw(rng: random.Random, lang: Lang) -> str:
        fit = [each for each in choices if any("가" <= char <= "힣" for char in each) == (lang == "ko")]
        return rng.choice(fit).replace("#", str(rng.randint(2, 30)))

    return draw


POOLS: dict[str, Pool] = {
    "name": name,
    "picker": name,
    "owner": name,
    "chef": name,
    "phone": phone,
    "shop_phone": phone,
    "address": address,
    "shop_address": address,
    "code": lexicon.code,
    "time": clock.time,
    "break": clock.hours,
    "hours": clock.hours,
    "closing": clock.day,
    "drink": drink,
    "allergy": food,
    "dislike": lambda rng, lang: food(rng, lang, "dislikes"),
    "people": people,
    "special": dish,
    "shop": shop,
    "parking": parking,
    "wifi": wifi,
    "delivery_time": minutes,
    "soup": phrase(*dishes("ko")[60:75], "miso soup", "seaweed soup", "tomato soup", "chicken soup", "egg soup"),
    "side": phrase(
        "콩나물무침",
        "시금치나물",
        "멸치볶음",
        "감자조림",
        "어묵볶음",
        "pickled radish",
        "kimchi",
        "coleslaw",
        "potato salad",
    ),
    "spice": phrase(
        "아주 맵게",
        "안 맵게",
        "덜 맵게",
        "보통",
        "조금만 맵게",
        "very spicy",
        "mild",
        "medium hot",
        "not spicy",
        "extra hot",
    ),
    "payment": phrase(
        "카드", "현금", "카드와 현금", "계좌이체", "card and cash", "card only", "cash only", "card or phone"
    ),
    "restroom": phrase(
        "2층", "건물 1층", "계산대 옆", "복도 끝", "on the second floor", "behind the counter", "in the hallway"
    ),
    "seats": phrase("#석", "#자리", "테이블 #개", "# seats", "# tables", "# chairs"),
    "discount": phrase(
        "# 개 주문 시 음료 무료",
        "첫 주문 #% 할인",
        "도시락 #개 사면 하나 더",
        "#% off for students",
        "a free drink for # boxes",
    ),
    "origin": phrase("국내산", "이천 쌀", "철원 쌀", "여주 쌀", "local farms", "Icheon", "Japan", "California"),
    "area": phrase("반경 #km", "시내 전 지역", "강남구 전체", "the city center", "within # km", "downtown only"),
    "reservation": phrase("하루 전", "#일 전", "전날 저녁 6시", "one day ahead", "# hours ahead", "# days before"),
    "refund": phrase("픽업 #분 전", "주문 후 #분", "up to # minutes before pickup", "within # minutes"),
}
