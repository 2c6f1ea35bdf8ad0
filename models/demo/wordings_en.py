"""English wordings: how each kind of fact is told, asked for and answered.

A wording that begins with * is held out of training.
"""

from models.demo.wording import Fillers, Wording

EN: dict[str, Wording] = {
    "name": Wording(
        nouns=(
            "my name|the name I gave|the name on my order|my own name|the name I go by|the name you should use"
            "|what to call me|*the name you should call me"
        ),
        tells=(
            "I'm {v}|I am {v}|call me {v}|this is {v}|it's {v} here|you can call me {v}|{v} is what people call me"
            "|I go by {v}|please put it under {v}|everyone calls me {v}|{v} speaking here"
            "|you are speaking with {v}|people know me as {v}|*{v} speaking"
        ),
        asks=(
            "who am I?|what am I called?|what should you call me?|what do you call me?|under what name am I?"
            "|who am I to you?|can you say who I am?|what name did I give?|do you still know me?"
            "|*do you know who I am?"
        ),
        known="your name",
        answer="Your name is {v}.",
    ),
    "dish": Wording(
        nouns=(
            "my order|the dish I want|my lunch|the dish I ordered|my lunch box|my main dish|the lunch I am having"
            "|what I am having|the food I want|*the food I am having"
        ),
        tells=(
            "I want the {v}|I'd like the {v}|I'll have the {v}|can I get the {v}|I would like to order the {v}"
            "|one order of the {v}|the {v} for me|give me the {v}|I'm ordering the {v}|let me get the {v}"
            "|I'm having the {v}|I'll take the {v}|I go for the {v}|*I'll go for the {v}"
        ),
        asks=(
            "what did I order?|what am I eating?|which dish did I pick?|what did I want to eat?"
            "|what food did I order?|what am I having?|which lunch box am I getting?|what food am I getting?"
            "|which food did I pick?|*which dish am I having?"
        ),
        known="your order",
        answer="You ordered the {v}.",
    ),
    "quantity": Wording(
        nouns=(
            "the number of boxes|the quantity|my number of boxes|the box count|the amount of boxes"
            "|the boxes I want|how many boxes I need|the boxes to pack|*the boxes I need"
        ),
        tells=(
            "I need {v} boxes|make it {v} boxes|{v} boxes please|we need {v} of them|I want {v} boxes"
            "|prepare {v} boxes|there are {v} of us, so {v} boxes|pack {v} boxes|I'd take {v} boxes"
            "|we are getting {v} boxes|that should be {v} boxes|it is {v} boxes|*it should be {v} boxes"
        ),
        asks=(
            "how many boxes did I order?|how many do I need?|how many boxes?|how many boxes do I want?"
            "|how many boxes am I getting?|how many are we having?|how many boxes are there for us?"
            "|how many should you pack?|*how many boxes are we getting?"
        ),
        known="the number of boxes",
        answer="You want {v} boxes.",
    ),
    "allergy": Wording(
        nouns=(
            "my allergy|the food I am allergic to|my food allergy|the allergy I have|my allergen"
            "|the food that gives me an allergy|what makes me ill|*the food that makes me ill"
        ),
        tells=(
            "I'm allergic to {v}|I have an allergy to {v}|{v} makes me ill|I get a rash from {v}"
            "|I am badly allergic to {v}|no {v}, I have an allergy|{v} gives me an allergy"
            "|I suffer from an allergy to {v}|my body reacts badly to {v}|my body cannot take {v}, it reacts"
            "|{v} is what my allergy is about|*my body reacts to {v}, it is an allergy"
        ),
        asks=(
            "what am I allergic to?|which food am I allergic to?|what makes me ill?|which allergy do I have?"
            "|what does my body react to?|what is my allergy about?|what food reacts with my body?"
            "|which food gives me an allergy?|*what food is my allergy about?"
        ),
        known="your allergy",
        answer="You are allergic to {v}.",
    ),
    "dislike": Wording(
        nouns=(
            "the food I dislike|the food I hate|my least favourite food|the thing I do not like"
            "|the food I can't stand|the food I do not enjoy|what I never eat|*the food I never enjoy"
        ),
        tells=(
            "I don't like {v}|I hate {v}|I dislike {v}|I'm not a fan of {v}|I really do not like {v}"
            "|I never enjoy {v}|leave out {v}, I don't like it|I can't stand {v}|I don't care much for {v}"
            "|I do not enjoy {v}|*I don't care for {v}"
        ),
        asks=(
            "what do I dislike?|what don't I like?|which food do I hate?|what do I not like?"
            "|what food can't I stand?|what do I hate?|what do I never enjoy?|what don't I care for?"
            "|*what can't I stand?"
        ),
        known="the food you dislike",
        answer="You do not like {v}.",
    ),
    "time": Wording(
        nouns=(
            "my pick-up time|the time of my pick-up|the pick-up hour|the time I come|my collection time"
            "|the time you see me|the time to expect me|*the time you expect me"
        ),
        tells=(
            "I'll pick it up at {v}|I will come at {v}|I'm coming by at {v}|have it ready at {v}"
            "|I'll be there at {v}|pick-up at {v}|I can come at {v}|I'll collect it at {v}"
            "|I'm collecting it at {v}|you can expect me around {v}|expect my visit at {v}|*expect me at {v}"
        ),
        asks=(
            "when do I pick it up?|what time am I coming?|when will I come?|at what time is my pick-up?"
            "|when am I coming by?|when do you expect me?|when am I collecting my order?|when am I getting it?"
            "|*when am I collecting it?"
        ),
        known="your pick-up time",
        answer="You will pick it up at {v}.",
    ),
    "phone": Wording(
        nouns=(
            "my phone number|my number|my phone|the phone number I gave|my mobile number|the number to reach me on"
            "|the number for calls|*the number to call me on"
        ),
        tells=(
            "you can call {v}|call me on {v}|reach me at {v}|text me at {v}|ring {v} if needed"
            "|my phone ends up as {v}|you can reach my mobile on {v}|please dial {v}|dial {v} to reach me"
            "|my mobile is {v}|*dial {v} for me"
        ),
        asks=(
            "how can you call me?|which number do you call?|what number did I leave?"
            "|on which number do you reach me?|which number can you dial?|what number do you dial for me?"
            "|which number is mine?|what should you dial?|*which number should you dial?"
        ),
        known="your phone number",
        answer="Your phone number is {v}.",
    ),
    "address": Wording(
        nouns=(
            "my address|the delivery address|the place I live|my delivery place|my home address"
            "|the place to bring it to|where I live|*the place to deliver it to"
        ),
        tells=(
            "I live at {v}|deliver it to {v}|bring it to {v}|send it to {v}|I'm at {v}|my home is {v}"
            "|we are at {v}|ship it to {v}|I'm staying in {v}|we are staying at {v} now|I stay at {v}"
            "|*I'm staying at {v}"
        ),
        asks=(
            "where do I live?|where do you deliver it?|where should it go?|where am I?"
            "|where are you bringing my food?|where am I staying?|where are you delivering it?"
            "|where do you bring it?|*where are you bringing it?"
        ),
        known="your address",
        answer="Your address is {v}.",
    ),
    "budget": Wording(
        nouns=(
            "my budget|the money I have|my price limit|the most I can pay|my spending limit|the money I can pay"
            "|what I can spend|*the money I can spend"
        ),
        tells=(
            "I can pay up to {v} won|I have {v} won|I can spend {v} won|keep it under {v} won|no more than {v} won"
            "|I want to pay {v} won|I can afford {v} won|it can't go over {v} won|don't go over {v} won"
            "|it may cost up to {v} won|*it must not cost over {v} won"
        ),
        asks=(
            "how much can I pay?|how much money do I have?|how much can I spend?|what can I pay?"
            "|how much could I afford?|what can I afford?|how much may it cost?|what must it not go over?"
            "|*how much can I afford?"
        ),
        known="your budget",
        answer="Your budget is {v} won.",
    ),
    "drink": Wording(
        nouns=(
            "my drink|the drink I want|the drink with my lunch|what I drink|my beverage|the drink I am getting"
            "|what I want to drink|*the drink I am having"
        ),
        tells=(
            "I'd like to drink {v}|add {v} to drink|{v} as a drink|and {v} to drink please|I'll drink {v}"
            "|I want {v} to drink|I'll sip {v}|I'm having {v} to drink|bring me some {v}|bring {v} with it"
            "|*bring me {v} to drink"
        ),
        asks=(
            "what do I drink?|which drink did I choose?|what did I want to drink?|what am I drinking?"
            "|what drink am I having?|what will I drink?|what drink do you bring me?|which drink am I getting?"
            "|*what will I be drinking?"
        ),
        known="your drink",
        answer="Your drink is {v}.",
    ),
    "code": Wording(
        nouns=(
            "my order number|my order code|the code of my order|the number of my order|my booking code"
            "|the number on my order|the code on my receipt|*the number on my receipt"
        ),
        tells=(
            "I have the order number {v}|the order code says {v}|they gave me the order number {v}"
            "|my receipt says order {v}|the app shows order code {v}|you have given me order number {v}"
            "|I was given order code {v}|I got the code {v}|*I was given the code {v}"
        ),
        asks=(
            "which order number do I have?|which code is on my order?|what does my order code say?"
            "|which code did you give me?|what code was I given?|which order number did I get?"
            "|what does my receipt say?|*which order code did I get?"
        ),
        known="your order number",
        answer="Your order number is {v}.",
    ),
    "picker": Wording(
        nouns=(
            "the person who picks it up|my friend's name|the name of my friend|the person coming for it"
            "|my friend who collects it|the friend who picks it up|who is coming instead of me"
            "|*the friend who is coming instead of me"
        ),
        tells=(
            "my friend {v} will pick it up|{v} will come for it|{v} picks it up for me|{v} is coming instead of me"
            "|give it to {v}|hand it to {v}|{v} will collect it for me|let {v} have it|{v} will take it"
            "|{v} is collecting it|*let {v} take it"
        ),
        asks=(
            "who picks it up?|who will come for it?|who is coming instead of me?|who gets it for me?"
            "|who collects it?|who is collecting my order?|who will take it?|who do you give it to?"
            "|*who will collect it?"
        ),
        known="the person who picks it up",
        answer="{v} will pick it up.",
    ),
    "shop": Wording(
        nouns=(
            "the shop's name|the name of the shop|the name of this place|what this shop is called|your shop"
            "|the name guests call this shop|*the name of your shop"
        ),
        tells=(
            "you work for {v}|you are the assistant of {v}|welcome guests of {v}|this shop is called {v}"
            "|you answer for {v}|this is {v}, a lunch-box shop|you work at {v}|guests call it {v}"
            "|*guests call this shop {v}"
        ),
        asks=(
            "what is this shop called?|which shop is this?|what is your shop's name?|where am I ordering from?"
            "|what do guests call this place?|what shop do I talk to?|which shop do you work for?"
            "|what is your shop called?|*what shop do you work for?"
        ),
        known="the shop's name",
        answer="The shop is called {v}.",
    ),
    "open": Wording(
        nouns=(
            "the opening time|the opening hour|the time the shop opens|the start of business|the time you start"
            "|when you open|*the time you open"
        ),
        tells=(
            "we open at {v}|the shop opens at {v}|doors open at {v}|opening at {v}|we start serving at {v}"
            "|we start at {v}|come from {v}|guests are welcome from {v}|*guests can come from {v}"
        ),
        asks=(
            "when do you open?|what time do you open?|from when are you open?|when does the shop open?"
            "|at what time do you open?|when do you start?|when do guests come?|how early are you open?"
            "|*at what time do you start?"
        ),
        known="the opening time",
        answer="We open at {v}.",
    ),
    "close": Wording(
        nouns=(
            "the closing time|the closing hour|the time the shop closes|the end of business|the time you stop"
            "|when you close|*the time you close"
        ),
        tells=(
            "we close at {v}|the shop closes at {v}|doors close at {v}|closing at {v}|we stop serving at {v}"
            "|we are open until {v}|come until {v}|guests are welcome until {v}|*guests can come until {v}"
        ),
        asks=(
            "when do you close?|what time do you close?|until when are you open?|when does the shop close?"
            "|how late can I come?|how late is the shop open?|until when can guests come?|how late do you close?"
            "|*how late are you open?"
        ),
        known="the closing time",
        answer="We close at {v}.",
    ),
    "holiday": Wording(
        nouns=(
            "the closing day|the day off|the holiday of the shop|the rest day|your day off|the day you rest"
            "|*the day you are closed"
        ),
        tells=(
            "we are closed on the {v}|the shop is closed every {v}|we rest on the {v}|no service on the {v}"
            "|we take the {v} off|our day off is the {v}|the {v} is our day off|on the {v} we are closed"
            "|*on the {v} the shop has a day off"
        ),
        asks=(
            "which day are you closed?|when is the shop closed?|on which day do you rest?|when is your day off?"
            "|what day is the shop closed?|when do you take a day off?|which day is no service?"
            "|*which day do you take off?"
        ),
        known="the closing day",
        answer="We are closed on the {v}.",
    ),
    "special": Wording(
        nouns=(
            "today's special|the special of the day|today's menu|the dish of the day|what you recommend today"
            "|the good dish today|*the dish you recommend today"
        ),
        tells=(
            "today we recommend the {v}|today we serve the {v} as a special|we offer the {v} today"
            "|today the kitchen suggests the {v}|we suggest the {v} today|the {v} is the special today"
            "|the good dish today is the {v}|*the {v} is good today"
        ),
        asks=(
            "what do you recommend today?|what is special today?|what is good today?"
            "|what does the kitchen recommend today?|what do you suggest today?|what do you serve today?"
            "|which dish do you recommend?|*what does the kitchen suggest today?"
        ),
        known="today's special",
        answer="Today's special is the {v}.",
    ),
    "fee": Wording(
        nouns=(
            "the delivery fee|the delivery charge|the price of delivery|the cost of delivery|what delivery costs"
            "|the money you charge for delivery|*the money for delivery"
        ),
        tells=(
            "delivery costs {v} won|we charge {v} won for delivery|delivering takes {v} won"
            "|for delivery we ask {v} won|you pay {v} won for delivery|a delivery is {v} won"
            "|guests pay {v} won to get a delivery|*guests pay {v} won for delivery"
        ),
        asks=(
            "how much is delivery?|how much do you charge for delivery?|what does delivery cost?"
            "|what do guests pay for delivery?|how much do I pay for delivery?|what is the cost of delivery?"
            "|does delivery cost anything?|*what do I pay for delivery?"
        ),
        known="the delivery fee",
        answer="Delivery costs {v} won.",
    ),
    "owner": Wording(
        nouns=(
            "the owner|the owner's name|the name of the owner|the boss of the shop|the person who owns the shop"
            "|who runs the shop|*the person who runs the shop"
        ),
        tells=(
            "{v} owns the shop|{v} runs this shop|the shop belongs to {v}|{v} founded the shop"
            "|{v} is the boss of this place|the person who runs it is {v}|{v} is the owner of this shop"
            "|*{v} is the person who runs this place"
        ),
        asks=(
            "who owns the shop?|who runs this place?|whose shop is this?|who is the person behind this shop?"
            "|who is the boss?|who founded this place?|who founded it?|*who founded the shop?"
        ),
        known="the owner",
        answer="The owner is {v}.",
    ),
    "parking": Wording(
        nouns=(
            "the parking place|the parking address|the car park|the place for cars|where I can park"
            "|the place to leave my car|*the place where I can park"
        ),
        tells=(
            "guests can park at {v}|cars park at {v}|you may park at {v}|parking at {v}|leave your car at {v}"
            "|you can leave your car at {v}|the car can be at {v}|you can park at {v}|*your car can be at {v}"
        ),
        asks=(
            "where can I park?|where do I park my car?|where is parking?|where can my car be?|where do cars go?"
            "|where can I leave it, my car?|where is the car park?|*where can I leave my car?"
        ),
        known="the parking place",
        answer="You can park at {v}.",
    ),
    "wifi": Wording(
        nouns=(
            "the wifi password|the password of the wifi|the wifi code|the wireless password|what to type for wifi"
            "|the wifi word|*the word to type for wifi"
        ),
        tells=(
            "guests use the wifi password {v}|for wifi type {v}|to use the wifi enter {v}"
            "|log in to the wifi with {v}|the wifi needs the word {v}|you need to type {v} for wifi"
            "|the wifi is {v}|*you need {v} for the wifi"
        ),
        asks=(
            "how do I use the wifi?|what do I type for wifi?|which password has the wifi?|how do I get the wifi?"
            "|what word do I need for the wifi?|what do I enter for the wifi?|how can I log in to wifi?"
            "|*how do I log in to the wifi?"
        ),
        known="the wifi password",
        answer="The wifi password is {v}.",
    ),
    "chef": Wording(
        nouns=(
            "the chef|the cook|the chef's name|the head of the kitchen|who cooks|the person who leads the kitchen"
            "|*the person who makes the food"
        ),
        tells=(
            "{v} cooks every day|{v} is in the kitchen|the food is cooked by {v}|{v} leads the kitchen"
            "|{v} is the person who cooks|{v} makes our food|here {v} makes everything|*{v} makes the food here"
        ),
        asks=(
            "who cooks?|who is in the kitchen?|who makes the food?|who is the person who cooks?"
            "|who cooks the food here?|who leads the cooks?|who is the head of the kitchen?"
            "|*who is the cook here?"
        ),
        known="the chef",
        answer="The chef is {v}.",
    ),
    "minutes": Wording(
        nouns=(
            "the delivery time|the waiting time|the time for delivery|the length of a delivery"
            "|the minutes until it comes|how long delivery takes|*the minutes a delivery takes"
        ),
        tells=(
            "delivery takes {v} minutes|we deliver within {v} minutes|your food comes in {v} minutes"
            "|expect a delivery after {v} minutes|it arrives in {v} minutes|a delivery arrives after {v} minutes"
            "|we need {v} minutes to deliver|*it takes {v} minutes to deliver"
        ),
        asks=(
            "how long does delivery take?|how many minutes does it take?|how fast do you deliver?"
            "|how long until my food comes?|when it is ordered, how long until it is here?"
            "|when does a delivery arrive?|in how many minutes does it arrive?|*how long until it arrives?"
        ),
        known="the delivery time",
        answer="Delivery takes {v} minutes.",
    ),
    "minimum": Wording(
        nouns=(
            "the minimum order|the smallest order|the least order amount|the lowest order value"
            "|the least I can order|the least amount|*the least I must order"
        ),
        tells=(
            "we accept orders from {v} won|please order at least {v} won|orders start at {v} won"
            "|an order must reach {v} won|you must order at least {v} won|at least {v} won please"
            "|the least is {v} won|*guests must order at least {v} won"
        ),
        asks=(
            "how much must I order?|from how much can I order?|what is the least I can order?"
            "|what must I order at least?|what does an order have to reach?|how much is the minimum?"
            "|what must my order reach?|*what must an order reach?"
        ),
        known="the minimum order",
        answer="The minimum order is {v} won.",
    ),
    "price": Wording(
        nouns=(
            "the price of the {k}|the price for the {k}|the cost of the {k}|what you charge for the {k}"
            "|the money you want for the {k}|how much the {k} is|*the money for the {k}"
        ),
        tells=(
            "{k}: {v} won|{k} - {v} won|{k} {v} won|the {k} costs {v} won|{k} at {v} won|{k} is {v} won"
            "|for the {k} we charge {v} won|*the {k} is {v} won"
        ),
        asks=(
            "how much is the {k}?|what does the {k} cost?|how much for the {k}?|how much does the {k} cost?"
            "|is the {k} expensive? how much is it?|how expensive would the {k} be?|what is the {k}?"
            "|what do I pay for the {k}?|*how expensive is the {k}?"
        ),
        known="that price",
        answer="The {k} costs {v} won.",
    ),
}

EN_FILLERS = Fillers(
    tell_frames=(
        "{n} is {v}|{n} is {v}|{n}: {v}|please note that {n} is {v}|you should know that {n} is {v}|{v} is {n}"
        "|write {v} as {n}|I think {n} is {v}|set {n} to {v}|let me give you {n}, it is {v}|{n}? {v}"
        "|I would say {n} is {v}|remember {n}: {v}|for the record, {n} is {v}|in your records {n} should be {v}"
        "|write in your records that {n} is {v}|here is {n}: {v}|{n} would be {v}|*for your records {n} is {v}"
    ),
    ask_frames=(
        "what is {n}?|what's {n}?|what was {n}?|tell me {n}|do you remember {n}?|can you repeat {n}?"
        "|remind me of {n}|I forgot {n}|{n}?|say {n} again|could you check {n}?|do you know {n}?"
        "|I want to know {n}|could you tell me {n}?|any idea what {n} is?|please read {n} to me|please confirm {n}"
        "|what did I say about {n}?|what do you have as {n}?|give me {n} back|I need {n} again|{n} please"
        "|help me with {n}|read {n} to me|would you tell me {n}?|can you read {n}?|would you say {n}?"
        "|can you confirm {n}?|check {n} for me|read it back: {n}|what would {n} be?|*read {n} back to me"
        "|*would you confirm {n}?"
    ),
    corrections=(
        "actually, {t}|sorry, change {n} to {v}|no wait, {t}|I changed my mind, {t}|correction: {t}"
        "|let me correct {n}: {v}|not that, {t}|I made a mistake, {t}|scratch that, {t}|wait, {n} is {v} now"
        "|second thought: {t}|oh no, {t}|update {n} to {v}|{n} is now {v}|on another thought, {t}"
        "|I thought again, {t}|*on second thought, {t}"
    ),
    openings=(
        "|||Hi,|Hello,|By the way,|Oh,|Okay,|Also,|Sorry,|One more thing,|Well,|And|So,|Hey,|Right,|Then,|Now,"
        "|Anyway,|Excuse me,|Listen,|Just one thing,|Ah,|Hm,|Good,|Thanks,|Another question,|Right, then"
        "|One thing,|You know,|Alright,|*Right then,|*Another thing,"
    ),
    closers=("||||, please|, thank you|, thanks|, okay|, if possible|, you can do that|*, if you can"),
    json=(
        "answer as JSON|as JSON please|in JSON|reply in JSON|give me JSON|JSON only|answer with a JSON object"
        "|return JSON|output as JSON|give it as a JSON object|output it as JSON|I want JSON|write it as JSON"
        "|*output JSON|*return it as a JSON object"
    ),
    acks="Okay, I wrote that down.|Got it.|Noted, thank you.|Sure, I will remember that.|All right.",
    echo="Okay, {v}.",
    orders=(
        "{v} {k} please|I'd like {v} of the {k}|can I get {v} of the {k}|{v} orders of the {k}|I want {v} {k}"
        "|{k}, {v} boxes|{v} boxes of the {k}|please make {v} of the {k}|*I need {v} of the {k}|*the {k}, make it {v}"
    ),
    untold="You have not told me {n} yet.",
    absent="I am sorry, I do not know {n}.",
)
