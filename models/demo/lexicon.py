"""The lexicon composes the values of the lunch-box shop from parts and splits them into training and test.

It knows words, not sentences. A value's checksum decides its split. So there is no list, and no value is in both.
"""

import random
import zlib
from collections.abc import Callable
from typing import Literal, TypeAlias

Lang: TypeAlias = Literal["en", "ko"]
Split: TypeAlias = Literal["train", "test"]
Pool: TypeAlias = Callable[[random.Random, Lang], str]


def words(text: str) -> list[str]:
    """The words of `text`."""
    return text.split()


TEST_SHARE = 8  # one value in this many is held out

STARTS = words(
    """
    Kel Mar Tor Vin Sel Bran Dor Lun Fen Gar Hal Jor Kas Lor Mel Nor Pel Quin Ros Sor Tal Ul Vor Wen Yor Zan Bel
    Cor Dra El Fal Gri Hen Is Jas Kro Lis Mon Nel Os Pra Ral Sta Tri Ven Wil Yel Zor Ha Mi So Ji
    """
)
MIDDLES = words("a o i e u an or el in al on ar er ma li no ra vi de sa")
ENDS = words(
    """
    ra vin lo den mar tis nor wen dric sa la ric ton by nda ssa mon ley ber fin rik za nia do ka rel gan shi mo
    tan lia na ro th dy min ho sun wick field
    """
)
REAL_NAMES = words(
    """
    Alice Bob Carol David Emma Frank Grace Henry Irene Jack Kate Liam Mina Noah Olivia Paul Rachel Sam Tom Uma
    Victor Wendy Minho Jisoo Sora Junho Hana Anna Ben Chris Daniel Eva Fiona George Helen Ian Jane Kevin Laura
    Mark Nina Oscar Peter Rose Steve Tina
    """
)

SURNAMES = words(
    """
    김 이 박 최 정 강 조 윤 장 임 한 오 서 신 권 황 안 송 류 홍 전 고 문 손 양 배 백 허 남 심 노 하 곽 성 차 주
    우 구 민 유
    """
)
GIVEN = words(
    """
    가 강 건 경 규 근 기 나 다 단 도 동 라 람 래 려 령 린 림 마 명 모 무 문 미 민 바 별 보 봄 빈 빛 상 새 서 석
    선 설 성 세 소 솔 수 숙 슬 승 시 아 안 연 열 영 예 온 완 용 우 욱 운 원 유 윤 율 은 을 의 이 인 일 자 재 정
    제 조 주 준 지 진 찬 채 철 초 태 하 한 해 향 혁 현 형 혜 호 홍 화 환 효 훈 휘 희
    """
)

MODIFIERS: dict[Lang, list[str]] = {
    "en": words(
        """
        Honey Spicy Maple Garlic Smoky Golden Crispy Sweet Grilled Roasted Ginger Pepper Lemon Sesame Royal
        Village Harvest Winter Summer Ocean Mountain Garden Black Red Green Autumn River Double
        """
    ),
    "ko": words(
        """
        매콤 간장 마늘 불맛 황금 바삭 달콤 직화 구운 생강 후추 레몬 참깨 궁중 시골 추수 겨울 여름 바다 산골 텃밭
        흑 홍 초록 가을 강변 두배 고추장
        """
    ),
}
MAINS: dict[Lang, list[str]] = {
    "en": words(
        """
        Pork Beef Chicken Tofu Salmon Mackerel Squid Shrimp Duck Mushroom Eggplant Kimchi Bulgogi Cutlet Tuna
        Eel Potato Pumpkin Curry Sausage Octopus Cod Turkey Lamb Crab Clam Spinach Radish Cabbage Dumpling
        """
    ),
    "ko": words(
        """
        제육 불고기 닭갈비 두부 연어 고등어 오징어 새우 오리 버섯 가지 김치 갈비 돈가스 참치 장어 감자 호박 카레
        소시지 낙지 대구 칠면조 양고기 게살 조개 시금치 무말랭이 양배추 만두
        """
    ),
}
STYLES: dict[Lang, list[str]] = {
    "en": ["Box", "Bowl", "Set", "Bento", "Plate", "Lunch", "Rice", "Wrap"],
    "ko": ["도시락", "덮밥", "정식", "볶음밥", "비빔밥", "세트", "김밥", "주먹밥"],
}
STATES: dict[Lang, list[str]] = {
    "en": words(
        """
        dried fresh pickled roasted raw smoked ground sliced salted fried white red green wild young sweet baby
        steamed boiled frozen
        """
    ),
    "ko": words("말린 생 절인 볶은 날 훈제 다진 썬 염장 튀긴 하얀 빨간 초록 자연산 어린 단 아기 찐 삶은 냉동"),
}
FOODS: dict[Lang, list[str]] = {
    "en": words(
        """
        shrimp peanuts walnuts milk eggs wheat soybeans squid mackerel crab clams sesame celery onions carrots
        cucumber mushrooms garlic ginger peppers tomatoes apples peaches almonds oysters salmon beans radish
        coriander spinach
        """
    ),
    "ko": words(
        """
        새우 땅콩 호두 우유 달걀 밀 콩 오징어 고등어 게 조개 참깨 셀러리 양파 당근 오이 버섯 마늘 생강 고추
        토마토 사과 복숭아 아몬드 굴 연어 팥 무 고수 시금치
        """
    ),
}
CHILLS: dict[Lang, list[str]] = {
    "en": words("iced hot cold warm sparkling sweet plain strong light large small fizzy"),
    "ko": words("시원한 뜨거운 차가운 따뜻한 톡쏘는 달콤한 담백한 진한 연한 큰 작은 상큼한"),
}
DRINKS: dict[Lang, list[str]] = {
    "en": [
        name.replace("_", " ")
        for name in words(
            """
        barley_tea green_tea black_tea plum_juice apple_juice orange_juice lemonade cola cider coffee corn_tea soy_milk
        ginger_tea rice_punch grape_juice yuzu_tea
        """
        )
    ],
    "ko": words(
        """
        보리차 녹차 홍차 매실차 사과주스 오렌지주스 레모네이드 콜라 사이다 커피 옥수수차 두유 생강차 식혜
        포도주스 유자차
        """
    ),
}
ROADS: dict[Lang, list[str]] = {
    "en": ["Street", "Road", "Lane", "Avenue", "Park", "Tower", "Square", "Alley"],
    "ko": ["동", "로", "길", "마을", "공원", "타워", "광장", "골목"],
}
NUMBERS: dict[Lang, list[str]] = {
    "en": words("two three four five six seven eight nine ten eleven twelve twenty thirty"),
    "ko": words("두 세 네 다섯 여섯 일곱 여덟 아홉 열 열두 스무 서른"),
}
WEEKS: dict[Lang, list[str]] = {
    "en": ["first", "second", "third", "fourth", "last"],
    "ko": ["첫째", "둘째", "셋째", "넷째", "마지막"],
}
DAYS: dict[Lang, list[str]] = {
    "en": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "ko": ["월요일", "화요일", "수요일", "목요일", "금요일", "토요일", "일요일"],
}
LOWER_CASE = frozenset(
    STATES["en"] + CHILLS["en"] + WEEKS["en"] + NUMBERS["en"]
)  # what a value may begin with that English would capitalise


def _word(rng: random.Random, lang: Lang) -> str:
    if lang == "en":
        middle = rng.choice(MIDDLES) if rng.random() < 0.5 else ""
        return rng.choice(STARTS) + middle + rng.choice(ENDS)
    return _syllable(rng) + _syllable(rng)


def made_up(rng: random.Random, lang: Lang) -> str:
    """A word that means nothing."""
    if lang == "ko":
        return "".join(_syllable(rng) for _ in range(rng.randint(1, 4)))
    return "".join(rng.choice(ENDS) for _ in range(rng.randint(1, 3)))


def _syllable(rng: random.Random) -> str:
    """A Hangul syllable of the given-name pool; one in twelve is any at all, so that spelling in bytes is learned."""
    return chr(0xAC00 + rng.randrange(11172)) if rng.random() < 1 / 12 else rng.choice(GIVEN)


def person(rng: random.Random, lang: Lang) -> str:
    if lang == "ko":
        return (rng.choice(SURNAMES) if rng.random() < 0.75 else "") + _word(rng, "ko")
    first = rng.choice(REAL_NAMES) if rng.random() < 0.2 else _word(rng, "en")
    return f"{first} {_word(rng, 'en')}" if rng.random() < 0.2 else first


def dish(rng: random.Random, lang: Lang) -> str:
    return f"{rng.choice(MODIFIERS[lang])} {rng.choice(MAINS[lang])} {rng.choice(STYLES[lang])}"


def food(rng: random.Random, lang: Lang) -> str:
    return f"{rng.choice(STATES[lang])} {rng.choice(FOODS[lang])}"


def drink(rng: random.Random, lang: Lang) -> str:
    return f"{rng.choice(CHILLS[lang])} {rng.choice(DRINKS[lang])}"


def count(rng: random.Random, lang: Lang) -> str:
    return str(rng.randint(2, 99) if rng.random() < 0.7 else rng.randint(100, 999))


def boxes(rng: random.Random, lang: Lang) -> str:
    """A count, one in seven as a word."""
    return rng.choice(NUMBERS[lang]) if rng.random() < 1 / 7 else count(rng, lang)


def money(rng: random.Random, lang: Lang) -> str:
    return f"{rng.randint(1, 98)},{rng.randint(0, 99):02d}0"


def clock(rng: random.Random, lang: Lang) -> str:
    return f"{rng.randint(0, 23)}:{rng.randint(0, 59):02d}"


def phone(rng: random.Random, lang: Lang) -> str:
    last = f"{rng.randrange(10_000):04d}"
    return last if rng.random() < 0.3 else f"010-{rng.randrange(10_000):04d}-{last}"


def code(rng: random.Random, lang: Lang) -> str:
    letters = "ABCDEFGHJKLMNPRSTUVWXYZ"
    return f"{rng.choice(letters)}{rng.choice(letters)}-{rng.randrange(10_000):04d}"


def address(rng: random.Random, lang: Lang) -> str:
    number, road = rng.randint(1, 399), rng.choice(ROADS[lang])
    return f"{number} {_word(rng, 'en')} {road}" if lang == "en" else f"{_word(rng, 'ko')}{road} {number}"


def shop(rng: random.Random, lang: Lang) -> str:
    return f"{_word(rng, lang)} {'Lunch Box' if lang == 'en' else '도시락'}"


def day(rng: random.Random, lang: Lang) -> str:
    week, name = rng.choice(WEEKS[lang]), rng.choice(DAYS[lang])
    return f"{week} {name}"


def split_of(value: str) -> Split:
    """The split that `value` belongs to, in every pool and language."""
    return "test" if zlib.crc32(value.encode()) % TEST_SHARE == 0 else "train"


def draw(rng: random.Random, pool: Pool, lang: Lang, split: Split) -> str:
    """A value of `pool` that belongs to `split`."""
    while True:
        value = pool(rng, lang)
        if split_of(value) == split:
            return value
