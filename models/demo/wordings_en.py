"""English wordings: how each kind of fact is told, asked for and answered.

A wording that begins with * is held out of training.
"""

from models.demo.wording import Fillers, Wording

EN: dict[str, Wording] = {
    "name": Wording(
        nouns="my name|the name I gave|the name on my order|my own name|*the name I go by",
        tells=(
            "I'm {v}|I am {v}|call me {v}|this is {v}|it's {v} here|you can call me {v}|{v} is what people call me"
            "|I go by {v}|please put it under {v}|*everyone calls me {v}|*{v} speaking"
        ),
        asks=(
            "who am I?|what am I called?|what should you call me?|what do you call me?|under what name am I?"
            "|*do you know who I am?"
        ),
        known="your name",
        answer="Your name is {v}.",
    ),
    "dish": Wording(
        nouns="my order|the dish I want|my lunch|the dish I ordered|my lunch box|*my main dish",
        tells=(
            "I want the {v}|I'd like the {v}|I'll have the {v}|can I get the {v}|I would like to order the {v}"
            "|one order of the {v}|the {v} for me|give me the {v}|I'm ordering the {v}|*let me get the {v}"
            "|*I'll go for the {v}"
        ),
        asks=(
            "what did I order?|what am I eating?|which dish did I pick?|what did I want to eat?"
            "|what food did I order?|*which dish am I having?"
        ),
        known="your order",
        answer="You ordered the {v}.",
    ),
    "quantity": Wording(
        nouns="the number of boxes|the quantity|my number of boxes|the box count|*the amount of boxes",
        tells=(
            "I need {v} boxes|make it {v} boxes|{v} boxes please|we need {v} of them|I want {v} boxes"
            "|prepare {v} boxes|there are {v} of us, so {v} boxes|pack {v} boxes|*I'd take {v} boxes"
            "|*it should be {v} boxes"
        ),
        asks=(
            "how many boxes did I order?|how many do I need?|how many boxes?|how many boxes do I want?"
            "|*how many boxes are we getting?"
        ),
        known="the number of boxes",
        answer="You want {v} boxes.",
    ),
    "allergy": Wording(
        nouns="my allergy|the food I am allergic to|my food allergy|the allergy I have|*my allergen",
        tells=(
            "I'm allergic to {v}|I have an allergy to {v}|{v} makes me ill|I get a rash from {v}"
            "|I am badly allergic to {v}|no {v}, I have an allergy|{v} gives me an allergy"
            "|*I suffer from an allergy to {v}|*my body reacts to {v}, it is an allergy"
        ),
        asks=(
            "what am I allergic to?|which food am I allergic to?|what makes me ill?|which allergy do I have?"
            "|*what food is my allergy about?"
        ),
        known="your allergy",
        answer="You are allergic to {v}.",
    ),
    "dislike": Wording(
        nouns=(
            "the food I dislike|the food I hate|my least favourite food|the thing I do not like|*the food I can't stand"
        ),
        tells=(
            "I don't like {v}|I hate {v}|I dislike {v}|I'm not a fan of {v}|I really do not like {v}"
            "|I never enjoy {v}|leave out {v}, I don't like it|*I can't stand {v}|*I don't care for {v}"
        ),
        asks="what do I dislike?|what don't I like?|which food do I hate?|what do I not like?|*what can't I stand?",
        known="the food you dislike",
        answer="You do not like {v}.",
    ),
    "time": Wording(
        nouns="my pick-up time|the time of my pick-up|the pick-up hour|the time I come|*my collection time",
        tells=(
            "I'll pick it up at {v}|I will come at {v}|I'm coming by at {v}|have it ready at {v}|I'll be there at {v}"
            "|pick-up at {v}|I can come at {v}|*I'll collect it at {v}|*expect me at {v}"
        ),
        asks=(
            "when do I pick it up?|what time am I coming?|when will I come?|at what time is my pick-up?"
            "|*when am I collecting it?"
        ),
        known="your pick-up time",
        answer="You will pick it up at {v}.",
    ),
    "phone": Wording(
        nouns="my phone number|my number|my phone|the phone number I gave|*my mobile number",
        tells=(
            "you can call {v}|call me on {v}|reach me at {v}|text me at {v}|ring {v} if needed"
            "|my phone ends up as {v}|*you can reach my mobile on {v}|*dial {v} for me"
        ),
        asks=(
            "how can you call me?|which number do you call?|what number did I leave?|on which number do you reach me?"
            "|*which number should you dial?"
        ),
        known="your phone number",
        answer="Your phone number is {v}.",
    ),
    "address": Wording(
        nouns="my address|the delivery address|the place I live|my delivery place|*my home address",
        tells=(
            "I live at {v}|deliver it to {v}|bring it to {v}|send it to {v}|I'm at {v}|my home is {v}|we are at {v}"
            "|*ship it to {v}|*I'm staying at {v}"
        ),
        asks="where do I live?|where do you deliver it?|where should it go?|where am I?|*where are you bringing it?",
        known="your address",
        answer="Your address is {v}.",
    ),
    "budget": Wording(
        nouns="my budget|the money I have|my price limit|the most I can pay|*my spending limit",
        tells=(
            "I can pay up to {v} won|I have {v} won|I can spend {v} won|keep it under {v} won|no more than {v} won"
            "|I want to pay {v} won|*I can afford {v} won|*it must not cost over {v} won"
        ),
        asks=(
            "how much can I pay?|how much money do I have?|how much can I spend?|what can I pay?"
            "|*how much can I afford?"
        ),
        known="your budget",
        answer="Your budget is {v} won.",
    ),
    "drink": Wording(
        nouns="my drink|the drink I want|the drink with my lunch|what I drink|*my beverage",
        tells=(
            "I'd like to drink {v}|add {v} to drink|{v} as a drink|and {v} to drink please|I'll drink {v}"
            "|I want {v} to drink|*I'll sip {v}|*bring me {v} to drink"
        ),
        asks=(
            "what do I drink?|which drink did I choose?|what did I want to drink?|what am I drinking?"
            "|*what will I be drinking?"
        ),
        known="your drink",
        answer="Your drink is {v}.",
    ),
    "code": Wording(
        nouns="my order number|my order code|the code of my order|the number of my order|*my booking code",
        tells=(
            "I have the order number {v}|the order code says {v}|they gave me the order number {v}"
            "|my receipt says order {v}|*the app shows order code {v}"
        ),
        asks=(
            "which order number do I have?|which code is on my order?|what does my order code say?"
            "|*which order code did I get?"
        ),
        known="your order number",
        answer="Your order number is {v}.",
    ),
    "picker": Wording(
        nouns=(
            "the person who picks it up|my friend's name|the name of my friend|the person coming for it"
            "|*my friend who collects it"
        ),
        tells=(
            "my friend {v} will pick it up|{v} will come for it|{v} picks it up for me|{v} is coming instead of me"
            "|give it to {v}|hand it to {v}|*{v} will collect it for me|*let {v} take it"
        ),
        asks=(
            "who picks it up?|who will come for it?|who is coming instead of me?|who gets it for me?"
            "|*who will collect it?"
        ),
        known="the person who picks it up",
        answer="{v} will pick it up.",
    ),
    "shop": Wording(
        nouns="the shop's name|the name of the shop|the name of this place|*what this shop is called",
        tells=(
            "you work for {v}|you are the assistant of {v}|welcome guests of {v}|this shop is called {v}"
            "|*you answer for {v}"
        ),
        asks=(
            "what is this shop called?|which shop is this?|what is your shop's name?|where am I ordering from?"
            "|*what shop do you work for?"
        ),
        known="the shop's name",
        answer="The shop is called {v}.",
    ),
    "open": Wording(
        nouns="the opening time|the opening hour|the time the shop opens|*the start of business",
        tells="we open at {v}|the shop opens at {v}|doors open at {v}|opening at {v}|*we start serving at {v}",
        asks=(
            "when do you open?|what time do you open?|from when are you open?|when does the shop open?"
            "|*at what time do you start?"
        ),
        known="the opening time",
        answer="We open at {v}.",
    ),
    "close": Wording(
        nouns="the closing time|the closing hour|the time the shop closes|*the end of business",
        tells="we close at {v}|the shop closes at {v}|doors close at {v}|closing at {v}|*we stop serving at {v}",
        asks=(
            "when do you close?|what time do you close?|until when are you open?|when does the shop close?"
            "|*how late are you open?"
        ),
        known="the closing time",
        answer="We close at {v}.",
    ),
    "holiday": Wording(
        nouns="the closing day|the day off|the holiday of the shop|*the rest day",
        tells=(
            "we are closed on the {v}|the shop is closed every {v}|we rest on the {v}|no service on the {v}"
            "|*we take the {v} off"
        ),
        asks=(
            "which day are you closed?|when is the shop closed?|on which day do you rest?|*which day do you take off?"
        ),
        known="the closing day",
        answer="We are closed on the {v}.",
    ),
    "special": Wording(
        nouns="today's special|the special of the day|today's menu|*the dish of the day",
        tells=(
            "today we recommend the {v}|today we serve the {v} as a special|we offer the {v} today"
            "|*today the kitchen suggests the {v}"
        ),
        asks=(
            "what do you recommend today?|what is special today?|what is good today?"
            "|*what does the kitchen suggest today?"
        ),
        known="today's special",
        answer="Today's special is the {v}.",
    ),
    "fee": Wording(
        nouns="the delivery fee|the delivery charge|the price of delivery|*the cost of delivery",
        tells=(
            "delivery costs {v} won|we charge {v} won for delivery|delivering takes {v} won"
            "|*for delivery we ask {v} won"
        ),
        asks=(
            "how much is delivery?|how much do you charge for delivery?|what does delivery cost?"
            "|*what do I pay for delivery?"
        ),
        known="the delivery fee",
        answer="Delivery costs {v} won.",
    ),
    "owner": Wording(
        nouns="the owner|the owner's name|the name of the owner|*the boss of the shop",
        tells="{v} owns the shop|{v} runs this shop|the shop belongs to {v}|*{v} founded the shop",
        asks="who owns the shop?|who runs this place?|whose shop is this?|*who founded the shop?",
        known="the owner",
        answer="The owner is {v}.",
    ),
    "parking": Wording(
        nouns="the parking place|the parking address|the car park|*the place for cars",
        tells="guests can park at {v}|cars park at {v}|you may park at {v}|parking at {v}|*leave your car at {v}",
        asks="where can I park?|where do I park my car?|where is parking?|*where can I leave my car?",
        known="the parking place",
        answer="You can park at {v}.",
    ),
    "wifi": Wording(
        nouns="the wifi password|the password of the wifi|the wifi code|*the wireless password",
        tells=(
            "guests use the wifi password {v}|for wifi type {v}|to use the wifi enter {v}|*log in to the wifi with {v}"
        ),
        asks=(
            "how do I use the wifi?|what do I type for wifi?|which password has the wifi?|*how do I log in to the wifi?"
        ),
        known="the wifi password",
        answer="The wifi password is {v}.",
    ),
    "chef": Wording(
        nouns="the chef|the cook|the chef's name|*the head of the kitchen",
        tells="{v} cooks every day|{v} is in the kitchen|the food is cooked by {v}|*{v} leads the kitchen",
        asks="who cooks?|who is in the kitchen?|who makes the food?|*who leads the kitchen?",
        known="the chef",
        answer="The chef is {v}.",
    ),
    "minutes": Wording(
        nouns="the delivery time|the waiting time|the time for delivery|*the length of a delivery",
        tells=(
            "delivery takes {v} minutes|we deliver within {v} minutes|your food comes in {v} minutes"
            "|*expect a delivery after {v} minutes"
        ),
        asks=(
            "how long does delivery take?|how many minutes does it take?|how fast do you deliver?"
            "|*how long until it arrives?"
        ),
        known="the delivery time",
        answer="Delivery takes {v} minutes.",
    ),
    "minimum": Wording(
        nouns="the minimum order|the smallest order|the least order amount|*the lowest order value",
        tells=(
            "we accept orders from {v} won|please order at least {v} won|orders start at {v} won"
            "|*an order must reach {v} won"
        ),
        asks=(
            "how much must I order?|from how much can I order?|what is the least I can order?"
            "|*what must an order reach?"
        ),
        known="the minimum order",
        answer="The minimum order is {v} won.",
    ),
    "price": Wording(
        nouns="the price of the {k}|the price for the {k}|the cost of the {k}|*what you charge for the {k}",
        tells="{k}: {v} won|{k} - {v} won|{k} {v} won|the {k} costs {v} won|*{k} at {v} won",
        asks=(
            "how much is the {k}?|what does the {k} cost?|how much for the {k}?|how much does the {k} cost?"
            "|*how expensive is the {k}?"
        ),
        known="that price",
        answer="The {k} costs {v} won.",
    ),
}

EN_FILLERS = Fillers(
    tell_frames=(
        "{n} is {v}|{n} is {v}|{n}: {v}|please note that {n} is {v}|you should know that {n} is {v}|{v} is {n}"
        "|write {v} as {n}|I think {n} is {v}|set {n} to {v}|*let me give you {n}, it is {v}"
        "|*for your records {n} is {v}"
    ),
    ask_frames=(
        "what is {n}?|what's {n}?|what was {n}?|tell me {n}|do you remember {n}?|can you repeat {n}?|remind me of {n}"
        "|I forgot {n}|{n}?|say {n} again|could you check {n}?|do you know {n}?|I want to know {n}"
        "|could you tell me {n}?|*any idea what {n} is?|*read {n} back to me|*would you confirm {n}?"
    ),
    corrections=(
        "actually, {t}|sorry, change {n} to {v}|no wait, {t}|I changed my mind, {t}|correction: {t}"
        "|let me correct {n}: {v}|not that, {t}|I made a mistake, {t}|*scratch that, {t}|*on second thought, {t}"
    ),
    openings=(
        "|||Hi,|Hello,|By the way,|Oh,|Okay,|Also,|Sorry,|One more thing,|Well,|And|So,|Hey,|*Right then,"
        "|*Another thing,"
    ),
    closers="||||, please|, thank you|, thanks|, okay|*, if you can",
    json=(
        "answer as JSON|as JSON please|in JSON|reply in JSON|give me JSON|JSON only|*output JSON"
        "|*return it as a JSON object"
    ),
    acks="Okay, I wrote that down.|Got it.|Noted, thank you.|Sure, I will remember that.|All right.",
    echo="Okay, {v}.",
    untold="You have not told me {n} yet.",
    absent="I am sorry, I do not know {n}.",
)
