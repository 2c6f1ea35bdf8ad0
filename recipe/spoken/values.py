"""Values of the facts that customers tell and shops state, as people write them, by kind.

Values of open kinds (names, numbers, addresses) that the checksum of `models.demo.lexicon` holds out never come. Words
of short lists (foods, days, drinks) all come: a customer may name any.
"""

import random

from models.demo import lexicon
from models.demo.lexicon import Lang, Pool, split_of
from recipe.spoken import clock
from recipe.spoken.invented import invented
from recipe.spoken.money import Currency, amount
from recipe.spoken.places import address, parking, phone, shop, wifi
from recipe.spoken.words import dishes, words

INVENTED = 0.25  # share of names, drinks, foods and dishes
OPEN = frozenset(
    lexicon.words("name companion picker owner chef phone address code wifi shop shop_phone shop_address budget")
)


def value(rng: random.Random, kind: str, lang: Lang, currency: Currency) -> str:
    """A value of the kind."""
    while True:
        found = amount(rng, kind, lang, currency) if kind in ("budget", "fee", "minimum") else POOLS[kind](rng, lang)
        if kind not in OPEN or split_of(found) == "train":
            return found


def name(rng: random.Random, lang: Lang) -> str:
    """A person's name, as the language's speakers give theirs."""
    if rng.random() < 0.12:
        return lexicon.person(rng, lang)
    if rng.random() < INVENTED:
        return invented(rng, lang).title()
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


def drink(rng: random.Random, lang: Lang) -> str:
    found = invented(rng, lang) if rng.random() < INVENTED else rng.choice(words("drinks", lang))
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
    if rng.random() < INVENTED:
        return invented(rng, lang)
    found = rng.sample(words(key, lang), 2)
    if rng.random() < 0.1:
        joint = rng.choice((" and ", " and ", ", ")) if lang == "en" else rng.choice(("하고 ", ", "))
        return joint.join(found)
    return found[0].replace("매운", "매운 ").replace("음식", " 음식").strip() if rng.random() < 0.5 else found[0]


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
    base = invented(rng, lang) if rng.random() < INVENTED else rng.choice(dishes(lang))
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
    "companion": name,
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
