"""Small talk holds sentences of a guest in the shop and the one reply to each. It tells no facts and asks for none."""

from typing import TypeAlias

from models.demo.lexicon import Lang

Pair: TypeAlias = tuple[tuple[str, ...], str]


def _pairs(text: str) -> list[Pair]:
    """One exchange a line: the guest's alternatives separated by "|", then " > " and the reply."""
    pairs = []
    for line in text.strip().replace("\n  > ", " > ").splitlines():
        said, reply = line.split(" > ")
        pairs.append((tuple(said.split("|")), reply))
    return pairs


SMALL_TALK: dict[Lang, list[Pair]] = {
    "en": _pairs(
        """
hi|hello|hey there|good morning|good evening|hi there|hello! > Hello! How can I help you with your lunch box?
thanks|thank you|thanks a lot|thank you so much|great, thanks > You are welcome!
what can you do?|how can you help me?|what are you?|who are you?|help
  > I take lunch-box orders and remember what you tell me.
do you have a menu?|what is on the menu?|what do you sell?|show me the menu
  > We make lunch boxes, bowls, sets and drinks.
is it fresh?|do you cook it fresh?|is the food fresh today? > Yes, we cook everything fresh every day.
is it spicy?|how spicy is it?|is the sauce hot? > Only a little, and we can make it mild.
can I pay by card?|do you take cards?|how do I pay? > Yes, card and cash are both fine.
do you have forks?|can I get chopsticks?|a spoon too please > Of course, we put them in the bag.
it's raining today|the weather is bad|it is so cold outside > Please take care on your way.
what a nice day|the weather is lovely|it's sunny today > Yes, a perfect day for a lunch box!
I'm so hungry|I am starving|I can't wait to eat > Your lunch will be ready soon.
I'm tired today|work was long|it was a busy day > I hope a good meal helps.
can you make it vegetarian?|is there something without meat? > Yes, we can cook it without meat.
how big are the portions?|is one box enough?|are the boxes large? > One box is enough for one hungry guest.
can you heat it up?|will it be warm?|is it served hot? > Yes, it comes warm.
do you have soup?|is soup included?|can I add soup? > Yes, a small soup comes with each box.
my kids love your food|everyone at work likes it|the last one was delicious > That makes us very happy!
tell me a joke|say something funny|make me laugh > Why did the rice smile? It met the soup.
how are you?|how is it going?|are you busy? > I am doing well, thank you.
bye|goodbye|see you|see you later|that's all > Goodbye, enjoy your meal!
okay|alright|I see|sounds good|fine > Good. Anything else?
wait a moment|one second|let me think|hold on > Take your time.
do you have napkins?|please add some napkins|can I get tissues? > Sure, napkins are in the bag.
is the kitchen clean?|who washes the dishes? > We clean the kitchen every evening.
can I cancel later?|what if I change my mind? > Just tell me and I will change it.
"""
    ),
    "ko": _pairs(
        """
안녕하세요|안녕|안녕하세요!|반가워요|좋은 아침이에요|처음 왔어요 > 안녕하세요! 무엇을 도와드릴까요?
고마워요|감사합니다|고맙습니다|정말 감사해요 > 천만에요!
뭘 할 수 있어요?|무엇을 도와줄 수 있어요?|누구세요?|당신은 뭐예요?|도움말 > 도시락 주문을 받고 말씀하신 것을 기억해요.
메뉴가 뭐예요?|메뉴 있어요?|뭐 팔아요?|메뉴 보여 주세요 > 도시락, 덮밥, 정식과 음료가 있어요.
신선한가요?|오늘 만든 거예요?|음식 신선해요? > 네, 매일 새로 만들어요.
매워요?|많이 매운가요?|소스가 매워요? > 조금 매운데 덜 맵게 할 수 있어요.
카드 되나요?|카드로 계산해도 돼요?|어떻게 계산해요? > 네, 카드와 현금 모두 돼요.
젓가락 있어요?|숟가락도 주세요|포크 있나요? > 네, 봉투에 넣어 드릴게요.
비가 오네요|날씨가 안 좋아요|밖이 너무 추워요 > 조심히 오세요.
날씨가 좋네요|오늘 맑아요|오늘 날씨 최고예요 > 네, 도시락 먹기 좋은 날이에요!
배고파요|너무 배고파요|빨리 먹고 싶어요 > 금방 준비할게요.
오늘 피곤해요|일이 많았어요|바쁜 하루였어요 > 맛있게 드시고 힘내세요.
고기 없는 것도 있어요?|채식 되나요? > 네, 고기 없이 만들 수 있어요.
양이 많아요?|하나면 충분해요?|도시락이 커요? > 한 분이 드시기에 충분해요.
데워 주나요?|따뜻해요?|뜨겁게 주시나요? > 네, 따뜻하게 드려요.
국도 있어요?|국물 주세요|국 추가돼요? > 네, 작은 국이 같이 나가요.
지난번에 맛있었어요|아이들이 좋아해요|회사에서 다들 좋아해요 > 정말 기뻐요!
농담 해 주세요|웃겨 주세요|재미있는 말 해 줘요 > 밥이 왜 웃었을까요? 국을 만나서요.
잘 지내요?|어떻게 지내요?|바쁘세요? > 네, 잘 지내요.
안녕히 계세요|다음에 봐요|그게 다예요|끝이에요 > 감사합니다, 맛있게 드세요!
네|알겠어요|좋아요|그렇군요 > 네, 더 필요한 것 있으세요?
잠시만요|잠깐만요|생각 좀 할게요|기다려 주세요 > 천천히 하세요.
휴지 있어요?|물티슈 주세요|냅킨도 넣어 주세요 > 네, 같이 넣어 드릴게요.
주방은 깨끗해요?|설거지는 누가 해요? > 매일 저녁 깨끗이 청소해요.
나중에 취소돼요?|바꿔도 되나요? > 말씀만 하시면 바꿔 드려요.
"""
    ),
}
