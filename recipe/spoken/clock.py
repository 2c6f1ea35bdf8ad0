"""The clock words times of day, opening hours and days as people write them. It knows no fact."""

import random

from models.demo.lexicon import Lang, words

HOURS = words("한 두 세 네 다섯 여섯 일곱 여덟 아홉 열 열한 열두")
TENS = {5: "오", 10: "십", 15: "십오", 20: "이십", 25: "이십오", 30: "삼십", 35: "삼십오", 40: "사십", 45: "사십오"}
TENS |= {50: "오십", 55: "오십오"}
SPELLED = words("one two three four five six seven eight nine ten eleven twelve")
DAYS_KO = words("월요일 화요일 수요일 목요일 금요일 토요일 일요일")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")


def time(rng: random.Random, lang: Lang) -> str:
    """A time of day: 12시 반, 오후 1시 20분, half past twelve, 5:45 pm."""
    hour, minute = rng.randint(7, 21), rng.choice((0, 0, 0, 30, 30, 30, 10, 15, 20, 40, 45, 50, 5, 25, 35, 55))
    if rng.random() < 0.12:
        minute = rng.randrange(60)
    if rng.random() < 0.16:
        return f"{hour}:{minute:02d}"
    return _korean(rng, hour, minute) if lang == "ko" else _english(rng, hour, minute)


def hours(rng: random.Random, lang: Lang) -> str:
    """Opening hours: 오전 11시부터 오후 8시까지, 10 am to 9 pm."""
    opens, closes = rng.randint(6, 12), rng.randint(14, 23)
    half = [rng.choice(("00", "00", "00", "30")) for _ in range(2)]
    digital = f"{opens:02d}:{half[0]}{rng.choice(('~', '-', ' - ', ' ~ '))}{closes}:{half[1]}"
    if lang == "ko":
        ampm = [("오전" if hour < 12 else "오후") for hour in (opens, closes)]
        tails = [" 반" if each == "30" else "" for each in half]
        words = [
            f"{ampm[0]} {opens}시{tails[0]}부터 {ampm[1]} {closes - 12}시{tails[1]}까지",
            f"{opens}시{tails[0]}부터 {closes}시{tails[1]}까지",
            f"아침 {opens}시{tails[0]}부터 저녁 {closes - 12}시{tails[1]}까지",
            f"{opens}시~{closes}시",
            f"오전 {opens}시 ~ 오후 {closes - 12}시",
            f"{ampm[0]} {opens}시 오픈, {ampm[1]} {closes - 12}시 마감",
            f"{ampm[0]} {opens}시{tails[0]} ~ {ampm[1]} {closes - 12}시{tails[1]}",
            f"월~토 {digital}",
            digital,
            digital,
        ]
        return rng.choice(("", "", "", "", "평일 ", "매일 ", "평일은 ")) + rng.choice(words)
    minutes = [":30" if each == "30" else "" for each in half]
    am = "am" if opens < 12 else "pm"
    gap = rng.choice(("", " "))
    words = [
        f"from {opens}{minutes[0]}{gap}{am} to {closes - 12}{minutes[1]}{gap}pm",
        f"{opens}{minutes[0]}{gap}{am} to {closes - 12}{minutes[1]}{gap}pm",
        f"{opens}{minutes[0]}{gap}{am}-{closes - 12}{minutes[1]}{gap}pm",
        f"from {opens}{minutes[0]} {am} until {closes - 12}{minutes[1]} pm",
        f"from {SPELLED[opens - 1]} to {SPELLED[closes - 13]}",
        f"{'noon' if opens == 12 else SPELLED[opens - 1]} to {SPELLED[closes - 13]}",
        f"{opens} to {closes - 12}",
        f"{opens}-{closes - 12}",
        f"at {opens} {am[0]}.m. and close at {closes - 12} p.m.",
        f"from {opens}{minutes[0]} {am[0]}.m. to {closes - 12}{minutes[1]} p.m.",
        f"{rng.choice(('Mon-Sat', 'Wed-Sun', 'Tue-Sun', 'Mon–Fri'))} {opens}{minutes[0]}-{closes - 12}{minutes[1]}",
        digital,
    ]
    return rng.choice(words) + rng.choice(("", "", "", "", " every day", " on weekdays", ", Monday to Saturday"))


def day(rng: random.Random, lang: Lang) -> str:
    """A closing day: 매주 월요일, the first Sunday of the month, Mondays."""
    at = rng.randrange(7)
    if lang == "ko":
        name, other = DAYS_KO[at], DAYS_KO[(at + rng.randint(1, 6)) % 7]
        forms = [name, name, name, f"매주 {name}", f"{name}과 {other}", f"{name}, {other}", f"첫째 {name}"]
        forms += [f"매월 둘째 {name}", f"셋째 주 {name}", f"둘째, 넷째 {name}", f"매달 마지막 {name}", "공휴일", "명절"]
        return rng.choice([*forms, f"{name}과 공휴일", "설날과 추석", f"매월 {rng.randint(1, 28)}일", "주말"])
    name, other = DAYS[at], DAYS[(at + rng.randint(1, 6)) % 7]
    forms = [name, name, f"{name}s", f"{name}s", f"{name} and {other}", f"{name}s and {other}s", "public holidays"]
    forms += [f"the first {name} of the month", f"every second {name}", f"the last {name} of each month", "weekends"]
    return rng.choice([*forms, f"{name}s and public holidays", "Christmas Day", "New Year's Day"])


def _korean(rng: random.Random, hour: int, minute: int) -> str:
    small = (hour - 1) % 12 + 1
    spelled = rng.random() < 0.3 and (minute == 0 or minute in TENS)
    name = f"{HOURS[small - 1]} 시" if spelled else f"{small}시"
    if spelled and rng.random() < 0.4:
        name = name.replace(" ", "")
    if minute == 0:
        rest = ""
    elif minute == 30 and rng.random() < 0.65:
        rest = rng.choice((" 반", "반", " 반"))
    else:
        rest = f" {TENS[minute]} 분" if spelled and rng.random() < 0.6 else f" {minute}분"
    part = "오전" if hour < 12 else "오후"
    if hour < 10:
        part = rng.choice(("오전", "아침"))
    elif hour > 17:
        part = rng.choice(("오후", "저녁", "저녁"))
    elif hour in (12, 13):
        part = rng.choice(("낮", "오후", "점심"))
    return name + rest if rng.random() < 0.6 else f"{part} {name}{rest}"


def _english(rng: random.Random, hour: int, minute: int) -> str:
    small, after = (hour - 1) % 12 + 1, "am" if hour < 12 else "pm"
    if hour == 12 and minute == 0:
        return rng.choice(("noon", "12", "12 pm", "twelve", "12 o'clock"))
    if minute in (15, 30, 45) and rng.random() < 0.3:
        shown = small if minute < 45 else small % 12 + 1
        named = {15: "quarter past", 30: "half past", 45: "quarter to"}[minute]
        return f"{named} {SPELLED[shown - 1] if rng.random() < 0.7 else shown}"
    if minute == 0:
        name = SPELLED[small - 1]
        return rng.choice((f"{small}", f"{small} {after}", f"{small}{after}", f"{small} o'clock", name, f"{small} pm"))
    forms = (f"{small}:{minute:02d}", f"{small}:{minute:02d} {after}", f"{small}:{minute:02d}{after}")
    return rng.choice((*forms, f"{small}.{minute:02d}", f"{small}:{minute:02d} p.m."))
