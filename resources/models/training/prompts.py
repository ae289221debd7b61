"""What the teacher is asked: simple questions from wide templates, and follow-ups."""

from __future__ import annotations

import random

from facts import facts
from settings import IM_END, IM_START

DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
OTHER_SYSTEMS = [
    "You are a helpful assistant.",
    "You are a friendly assistant who answers in short, clear sentences.",
    "You are a helpful AI assistant.",
    "Answer the user's questions simply.",
    "You are a kind teacher.",
]

# Asked of SmolLM2 and of the student to compare them by eye; never used as training prompts.
EVALUATION = [
    "What is the capital of France?",
    "Hello! How are you today?",
    "What color is the sky on a clear day?",
    "Write a short story about a cat who finds a key.",
    "What is 2 + 3?",
    "Name three fruits.",
    "Explain what a river is in one sentence.",
    "Write a Python function that adds two numbers.",
    "Why do people sleep?",
    "What sound does a dog make?",
    "Give me three tips for staying healthy.",
    "Who wrote Romeo and Juliet?",
    "What is photosynthesis?",
    "Write a two-line poem about the sea.",
    "How many days are in a week?",
    "What is the opposite of hot?",
    "Describe a sunset in two sentences.",
    "What do bees make?",
    "Rewrite this sentence in a friendlier tone: Send me the report now.",
    "What is the largest planet in the solar system?",
]

WORDS: dict[str, str] = {
    "animal": "cat dog fox rabbit bear mouse horse lion owl turtle frog bird fish elephant monkey "
    "wolf deer squirrel penguin duck bee whale dolphin snake spider butterfly goat cow sheep pig",
    "person": "girl,boy,king,queen,farmer,teacher,sailor,baker,painter,doctor,old woman,old man,"
    "child,robot,wizard,princess,knight,student,scientist,gardener,singer,traveler,young dragon",
    "thing": "key,map,letter,lamp,box,coin,ring,book,door,flower,boat,bridge,star,bell,clock,kite,"
    "stone,hat,mirror,violin,seed,treasure,bicycle,garden,candle,umbrella,painting,basket,shell",
    "act": "finds,loses,makes,looks for,shares,hides,paints,fixes,follows,dreams about,gives away",
    "place": "forest,city,village,mountain,beach,island,desert,castle,school,farm,garden,library,"
    "river,lake,market,house by the sea,small town,park,cave,train station,ship",
    "feeling": "happiness,friendship,love,fear,hope,courage,kindness,patience,honesty,curiosity",
    "nature": "river,mountain,ocean,forest,desert,volcano,rainbow,cloud,storm,lake,island,glacier,"
    "waterfall,valley,star,planet,moon,sunset,sunrise,snowflake,thunderstorm,tree,flower,beach",
    "topic": "photosynthesis,gravity,electricity,evaporation,the water cycle,the moon,the sun,rain,"
    "snow,wind,earthquakes,volcanoes,the solar system,stars,atoms,energy,magnets,sound,light,heat,"
    "plants,trees,the heart,the brain,the lungs,blood,bones,muscles,vitamins,sleep,dreams,exercise,"
    "democracy,money,a bank,taxes,history,geography,mathematics,algebra,geometry,fractions,poetry,"
    "music,painting,dance,theater,a computer,the internet,software,a robot,machine learning,"
    "artificial intelligence,an engine,a battery,a bicycle,a telescope,a microscope,recycling,"
    "climate change,pollution,renewable energy,solar power,an ecosystem,a food chain,evolution,"
    "dinosaurs,fossils,insects,mammals,reptiles,birds,fish,bacteria,a virus,a vaccine,a cell,DNA,"
    "respiration,digestion,oxygen,carbon dioxide,water,ice,steam,a metaphor,a noun,a verb,"
    "an adjective,a sentence,a paragraph,an essay,a novel,a fable,a volcano,a galaxy,a black hole",
    "field": "cooking,reading,writing,learning a language,studying,gardening,saving money,running,"
    "sleeping well,eating well,public speaking,making friends,staying healthy,staying calm,"
    "time management,taking photos,drawing,working from home,traveling,camping,keeping a pet,"
    "learning to code,playing the guitar,a job interview,being a good friend,cleaning a room",
    "kind": "fruits,vegetables,colors,animals,countries,cities in Europe,planets,sports,birds,"
    "flowers,trees,musical instruments,tools,things in a kitchen,school subjects,jobs,desserts,"
    "drinks,farm animals,sea animals,insects,pieces of furniture,kinds of weather,hobbies,"
    "programming languages,board games,things to take to the beach,healthy breakfasts,berries",
    "why": "do people sleep,do birds fly south,is the sky blue,do leaves fall,do we dream,is "
    "exercise important,do we need water,do cats purr,do dogs wag their tails,is reading good for "
    "us,do plants need light,do we have seasons,is the sea salty,do people travel,do people laugh,"
    "is breakfast important,do bees visit flowers,do we brush our teeth,is sleep important for "
    "health,do people like music,does it rain,does the moon change shape,do stars twinkle,do we "
    "yawn,do people keep pets,is teamwork important,do we go to school,is honesty important,do "
    "fish have gills,does ice float,do we eat vegetables,do trees matter,do we recycle,do people "
    "rest",
    "code": "adds two numbers,multiplies two numbers,returns the larger of two numbers,reverses a "
    "string,counts the vowels in a string,checks if a number is even,checks if a number is prime,"
    "sums a list,returns the factorial of a number,prints the numbers from 1 to 10,finds the "
    "maximum of a list,checks if a word is a palindrome,converts Celsius to Fahrenheit,computes "
    "the area of a circle,sorts a list of numbers,counts the words in a sentence,removes "
    "duplicates from a list,says hello to a person by name,subtracts two numbers,squares a number,"
    "computes the average of a list,returns the first n Fibonacci numbers,joins two strings",
    "rough": "Send me the file today.|You are late again.|I need this done now.|Give me your "
    "answer.|Stop making noise.|Fix this problem.|Call me back.|You made a mistake.|Do not touch "
    "that.|Close the door.|I want my money back.|Finish your work.|That is a bad idea.|Move your "
    "car.|Come here now.|Tell me the price.|Send the invoice now.|Read this before you ask.|Bring "
    "me the document.|You forgot the meeting.|Wait outside.|Answer my email.|Clean your room.",
    "style": "more polite,friendlier,more formal,shorter,simpler,more cheerful,in a kinder tone,"
    "in a more professional tone,in the past tense,as a question,in a warmer tone",
    "hello": "Hello!|Hi!|Hi there.|Good morning!|Good evening!|Hey!|Hello there, how are you?|Hi, "
    "how are you?|How are you doing today?|How's it going?|Nice to meet you.|Hello, can you help "
    "me?|What can you do?|Who are you?|What is your name?|Tell me about yourself.|Thank you!|"
    "Good night!|How is your day going?|Can I ask you a question?|Hi! What's up?|Are you a robot?",
    "number": "two three four five",
    "adjective": "small,brave,happy,lonely,clever,sleepy,curious,kind,shy,funny,tiny,old,lost",
    "lesson": "being kind,telling the truth,working together,never giving up,sharing,listening",
    "reader": "a child,a beginner,a friend,a ten-year-old,someone new to it",
}

TEMPLATES = """4 Write a short story about a {adjective} {animal}.
4 Write a short story about {a:person} who {act} {a:thing}.
4 Write a short story about {a:animal} that {act} {a:thing} in {a:place}.
2 Tell me a story about {a:adjective} {person} in {a:place}.
2 Write a story about {a:animal} and {a:animal} who become friends.
1 Write a short fable about {lesson}.
1 Tell me a bedtime story about {a:animal}.
1 Write a very short story that begins in {a:place}.
2 Write a poem about {a:nature}.
2 Write a {number}-line poem about {a:nature}.
1 Write a short poem about {feeling}.
1 Write a haiku about {a:nature}.
1 Write a short poem about {a:animal}.
2 Describe {a:nature} in {number} sentences.
1 Describe {a:place} at night.
1 Describe {a:animal} in a few words.
1 Describe your favorite {place}.
3 What is {topic}?
3 Explain {topic} in one sentence.
3 Explain {topic} to {reader}.
2 Can you explain {topic}?
2 How does {topic} work?
1 Why is {topic} important?
1 Tell me something interesting about {topic}.
2 What is {a:nature}?
2 Explain what {a:nature} is in one sentence.
1 What is {a:animal}?
1 Explain what {a:animal} is in {number} sentences.
1 What is the difference between {a:nature} and {a:nature}?
1 What is the difference between {a:animal} and {a:animal}?
1 Define {feeling}.
1 What does {feeling} mean?
3 Give me {number} tips for {field}.
2 How can I get better at {field}?
1 What should I know about {field}?
1 Give me some advice about {field}.
3 Name {number} {kind}.
2 List {number} {kind}.
1 What are some {kind}?
1 Give me {number} examples of {kind}.
1 Can you name {number} {kind} and say something about each?
4 Why {why}?
1 Can you tell me why {why}?
3 Write a Python function that {code}.
1 Write Python code that {code}.
1 How do I write a Python function that {code}?
3 Rewrite this sentence so that it is {style}: {rough}
2 Rewrite this sentence in a friendlier way: {rough}
1 Make this sentence {style}: {rough}
3 {hello}
1 What does {a:animal} eat?
1 Where does {a:animal} live?
1 How big is {a:animal}?
1 What do you use {a:thing} for?
1 What would you do with {a:thing} in {a:place}?
1 Write one sentence about {a:animal} and {a:thing}.
1 Write {number} sentences about {a:place}.
1 Make up a name for {a:adjective} {animal}.
1 Write a short letter to {a:person}.
1 Write a short dialogue between {a:animal} and {a:person}.
1 What can I see in {a:place}?
1 Is {topic} hard to understand?
1 Give me a fun fact about {a:animal}.
1 Summarize what {topic} is in {number} sentences."""

FOLLOW_UPS = """Thank you!|Can you tell me more?|Why?|Can you give me an example?|Make it shorter.
|Can you say that in one sentence?|That is interesting. What else?|Explain it to a child.|Thanks!
|Can you write it again in simpler words?|What do you mean?|And then what happened?|Are you sure?
|Can you give me another one?|Please continue.|How does that work?|Okay, great.|Tell me more."""


def _choices() -> dict[str, list[str]]:
    out = {}
    for key, text in WORDS.items():
        mark = "|" if "|" in text else "," if "," in text else " "
        out[key] = [word.strip() for word in text.split(mark)]
    return out


def _fill(template: str, choices: dict[str, list[str]], draw: random.Random) -> str:
    while "{" in template:
        before, _, rest = template.partition("{")
        name, _, after = rest.partition("}")
        word = draw.choice(choices[name.removeprefix("a:")])
        if name.startswith("a:"):
            word = f"an {word}" if word[0] in "aeiou" else f"a {word}"
        template = before + word + after
    return template


def turn(role: str, text: str) -> str:
    return f"{IM_START}{role}\n{text}{IM_END}\n"


STARTED_SHARE = 0.75
"""How many of the simple facts come with the true answer begun."""
ANSWER = f"{IM_START}assistant\n"


def opening(draw: random.Random, question: str) -> str:
    """A conversation up to the point where the assistant starts to answer."""
    # The template's own system text in most conversations, since most clients send none.
    system = DEFAULT_SYSTEM if draw.random() < 0.85 else draw.choice(OTHER_SYSTEMS)
    return turn("system", system) + turn("user", question) + ANSWER


def questions(draw: random.Random, count: int) -> list[str]:
    """Opened conversations: some simple facts (most with the answer begun), else templates."""
    held = {q.lower() for q in EVALUATION}
    choices, known = _choices(), facts()
    weighted = [line.partition(" ") for line in TEMPLATES.split("\n")]
    templates = [template for weight, _, template in weighted for _ in range(int(weight))]
    # Sums are many and alike, so the other facts are drawn as often as all the sums together.
    sums = [f for f in known if "=" in f[1]]
    others = [f for f in known if "=" not in f[1]]
    out: list[str] = []
    while len(out) < count:
        if draw.random() < 0.3:
            asked, answer = draw.choice(sums if draw.random() < 0.25 else others)
            question = draw.choice(asked)
            started = answer if draw.random() < STARTED_SHARE else ""
        else:
            question, started = _fill(draw.choice(templates), choices, draw), ""
        if question.lower() in held:
            continue
        out.append(opening(draw, question) + started)
    return out


def free_openings() -> list[str]:
    """Conversations whose first question the teacher is to make up itself."""
    systems = [DEFAULT_SYSTEM] * 8 + OTHER_SYSTEMS
    return [turn("system", system) + f"{IM_START}user\n" for system in systems]


def follow_ups() -> list[str]:
    """Next turns of the user, up to the point where the assistant answers."""
    texts = [text.strip() for text in FOLLOW_UPS.replace("\n", "").split("|")]
    return ["\n" + turn("user", text) + ANSWER for text in texts]
