"""Simple facts, asked in several ways: (ways of asking, true answer)."""

from __future__ import annotations

CAPITALS = """France Paris|Germany Berlin|Italy Rome|Spain Madrid|Portugal Lisbon|Greece Athens
|Ireland Dublin|England London|Scotland Edinburgh|Austria Vienna|Switzerland Bern|Belgium Brussels
|Netherlands Amsterdam|Denmark Copenhagen|Sweden Stockholm|Norway Oslo|Finland Helsinki
|Poland Warsaw|Hungary Budapest|Russia Moscow|Ukraine Kyiv|Turkey Ankara|Egypt Cairo
|Kenya Nairobi|Nigeria Abuja|Morocco Rabat|China Beijing|Japan Tokyo|India New_Delhi
|Thailand Bangkok|Vietnam Hanoi|South_Korea Seoul|Indonesia Jakarta|Australia Canberra
|New_Zealand Wellington|Canada Ottawa|Mexico Mexico_City|Cuba Havana|Brazil Brasilia
|Argentina Buenos_Aires|Chile Santiago|Peru Lima|Colombia Bogota|the_United_States Washington,_D.C.
|the_United_Kingdom London|Iceland Reykjavik|Romania Bucharest|Bulgaria Sofia"""

OPPOSITES = """hot cold|big small|up down|fast slow|happy sad|light dark|good bad|old young|new old
|tall short|hard soft|wet dry|full empty|rich poor|early late|loud quiet|open closed|in out
|left right|strong weak|day night|love hate|win lose|push pull|clean dirty|heavy light|high low
|long short|easy difficult|hard easy|cold hot|black white|true false|near far|first last
|begin end|buy sell|inside outside|wide narrow|sweet sour|brave afraid|thick thin|asleep awake"""

SOUNDS = """dog barks|cat meows|cow moos|sheep bleats|duck quacks|horse neighs|pig oinks|lion roars
|bird chirps|frog croaks|snake hisses|bee buzzes|rooster crows|wolf howls|owl hoots|mouse squeaks"""

COLOURS = """sky blue|grass green|snow white|sun yellow|blood red|coal black|banana yellow
|strawberry red|carrot orange|chocolate brown|lemon yellow|sea blue|leaf green|tomato red
|cloud white|pumpkin orange|swan white|night_sky black|clear_daytime_sky blue|ripe_apple red
|frog green"""

COUNTS = """days a_week 7 seven|months a_year 12 twelve|hours a_day 24 twenty-four
|minutes an_hour 60 sixty|seconds a_minute 60 sixty|days a_year 365 365|weeks a_year 52 fifty-two
|seasons a_year 4 four|years a_decade 10 ten|years a_century 100 one_hundred
|planets our_solar_system 8 eight|continents the_world 7 seven|letters the_English_alphabet 26 26
|players a_soccer_team 11 eleven|colors a_rainbow 7 seven|cents a_dollar 100 one_hundred
|centimeters a_meter 100 one_hundred|meters a_kilometer 1,000 one_thousand"""

PARTS = """legs dog four|legs spider eight|legs cat four|legs insect six|legs bird two
|sides triangle three|sides square four|wheels car four|wheels bicycle two|legs horse four
|arms octopus eight|wings bird two|sides hexagon six|legs chair four|eyes person two"""

AUTHORS = """Romeo_and_Juliet William_Shakespeare|Hamlet William_Shakespeare
|Macbeth William_Shakespeare|Pride_and_Prejudice Jane_Austen|Emma Jane_Austen
|Oliver_Twist Charles_Dickens|A_Christmas_Carol Charles_Dickens|War_and_Peace Leo_Tolstoy
|Moby-Dick Herman_Melville|1984 George_Orwell|Animal_Farm George_Orwell|The_Hobbit J.R.R._Tolkien
|Harry_Potter J.K._Rowling|Don_Quixote Miguel_de_Cervantes|Frankenstein Mary_Shelley
|The_Great_Gatsby F._Scott_Fitzgerald|A_Midsummer_Night's_Dream William_Shakespeare
|Great_Expectations Charles_Dickens|Dracula Bram_Stoker|The_Odyssey Homer"""

PLAIN = """What is the largest planet in the solar system?|Which planet is the biggest in our solar
 system?|Name the largest planet.=The largest planet in our solar system is Jupiter.
#What is the smallest planet?|Which planet in our solar system is the smallest?=The smallest planet
 in our solar system is Mercury.
#Which planet is closest to the Sun?|What planet is nearest to the Sun?=The planet closest to the
 Sun is Mercury.
#What is the largest ocean?|Which ocean is the biggest?=The largest ocean is the Pacific Ocean.
#What is the tallest mountain in the world?|Which mountain is the highest on Earth?=The tallest
 mountain in the world is Mount Everest.
#What is the fastest land animal?|Which animal runs fastest?=The fastest land animal is the cheetah.
#What is the largest animal?|Which animal is the biggest in the world?=The largest animal in the
 world is the blue whale.
#What do bees make?|What food do bees produce?|What sweet thing comes from bees?=Bees make honey.
#What do cows give us?|What do cows produce?=Cows give us milk.
#What do chickens lay?|What do hens lay?=Chickens lay eggs.
#What do spiders make?|What does a spider spin?=Spiders spin webs.
#What is water made of?|What elements are in water?=Water is made of hydrogen and oxygen.
#What is ice?|What is ice made of?=Ice is frozen water.
#At what temperature does water boil?|When does water boil?=Water boils at 100 degrees Celsius, or
 212 degrees Fahrenheit.
#At what temperature does water freeze?|When does water freeze?=Water freezes at 0 degrees Celsius,
 or 32 degrees Fahrenheit.
#Who painted the Mona Lisa?|Who is the painter of the Mona Lisa?=The Mona Lisa was painted by
 Leonardo da Vinci.
#Who was the first president of the United States?|Who was America's first president?=The first
 president of the United States was George Washington.
#Who was the first person on the Moon?|Who first walked on the Moon?=Neil Armstrong was the first
 person to walk on the Moon.
#What is the Earth's natural satellite?|What goes around the Earth?=The Moon goes around the Earth.
#What does the Earth go around?|What does the Earth orbit?=The Earth goes around the Sun.
#Where do fish live?|Where can you find fish?=Fish live in water.
#Where do penguins live?|Where are penguins found?=Penguins live mostly in the cold south, such as
 in Antarctica.
#What do plants need to grow?|What does a plant need?=Plants need water, sunlight, air and soil.
#Which day comes after Monday?|What day follows Monday?=Tuesday comes after Monday.
#Which day comes after Friday?|What day follows Friday?=Saturday comes after Friday.
#Which month comes after June?|What month follows June?=July comes after June.
#What is the first month of the year?|Which month starts the year?=January is the first month.
#What language is spoken in France?|What do people speak in France?=People in France speak French.
#What language is spoken in Spain?|What do people speak in Spain?=People in Spain speak Spanish.
#What language is spoken in Brazil?|What do people speak in Brazil?=People in Brazil speak
 Portuguese.
#What is the currency of Japan?|What money is used in Japan?=The currency of Japan is the yen.
#What do we call a baby dog?|What is a young dog called?=A baby dog is called a puppy.
#What do we call a baby cat?|What is a young cat called?=A baby cat is called a kitten.
#Which star is closest to the Earth?|What is our nearest star?=The Sun is the star closest to the
 Earth.
#Is the Earth round or flat?|What shape is the Earth?=The Earth is round, like a ball.
#Is a tomato a fruit or a vegetable?|Is tomato a fruit?=A tomato is a fruit.
#Who discovered gravity?|Who is known for the law of gravity?=Isaac Newton described the law of
 gravity.
#Who developed the theory of relativity?|Who is known for E = mc^2?=Albert Einstein developed the
 theory of relativity."""


def _pairs(text: str) -> list[list[str]]:
    rows = text.replace("\n", "").split("|")
    return [[word.replace("_", " ") for word in row.split()] for row in rows]


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def facts() -> list[tuple[list[str], str]]:
    """Every fact as (questions, answer)."""
    out: list[tuple[list[str], str]] = []
    for country, city in _pairs(CAPITALS):
        ask = f"What is the capital of {country}?|What's the capital city of {country}?"
        ask += f"|Which city is the capital of {country}?|Tell me the capital of {country}."
        ask += f"|Name the capital of {country}.|Can you tell me what the capital of {country} is?"
        ask += f"|{country} capital|what is the capital of {country}"
        out.append((ask.split("|"), f"The capital of {country} is {city}."))
    for word, opposite in _pairs(OPPOSITES):
        ask = f"What is the opposite of {word}?|What is the opposite of the word {word}?"
        ask += f'|Give me the opposite of "{word}".|Name an antonym of {word}.'
        out.append((ask.split("|"), f'The opposite of "{word}" is "{opposite}".'))
    for animal, sound in _pairs(SOUNDS):
        ask = f"What sound does {_article(animal)} make?|How does {_article(animal)} sound?"
        ask += f"|What noise does {_article(animal)} make?|What does {_article(animal)} say?"
        article = _article(animal)
        out.append((ask.split("|"), f"{article[0].upper()}{article[1:]} {sound}."))
    for thing, colour in _pairs(COLOURS):
        ask = f"What color is the {thing}?|Tell me the color of the {thing}."
        ask += f"|What colour is the {thing}?|Which color does the {thing} have?"
        out.append((ask.split("|"), f"The {thing} is {colour}."))
    for unit, whole, digits, word in _pairs(COUNTS):
        ask = f"How many {unit} are in {whole}?|How many {unit} are there in {whole}?"
        ask += f"|What is the number of {unit} in {whole}?|Tell me how many {unit} {whole} has."
        out.append((ask.split("|"), f"There are {digits} {unit} in {whole}."))
        out.append((ask.split("|"), f"There are {word} {unit} in {whole}."))
    for part, owner, number in _pairs(PARTS):
        article = _article(owner)
        ask = f"How many {part} does {article} have?|What number of {part} does {article} have?"
        ask += f"|Tell me how many {part} {article} has.|How many {part} has {article}?"
        out.append((ask.split("|"), f"{article[0].upper()}{article[1:]} has {number} {part}."))
    for book, author in _pairs(AUTHORS):
        ask = f"Who wrote {book}?|Who is the author of {book}?|Tell me who wrote {book}."
        ask += f"|Which author wrote {book}?|{book} was written by whom?"
        out.append((ask.split("|"), f"{book} was written by {author}."))
    for row in PLAIN.replace("\n ", " ").replace("\n", "").split("#"):
        questions, answer = row.split("=", 1) if "E = mc" not in row else row.rsplit("=", 1)
        out.append((questions.split("|"), answer))
    for a in range(13):
        for b in range(13):
            ask = f"What is {a} + {b}?|What is {a} plus {b}?|Add {a} and {b}.|{a} + {b} ="
            out.append((ask.split("|"), f"{a} + {b} = {a + b}."))
            if a >= b:
                ask = f"What is {a} - {b}?|What is {a} minus {b}?|Subtract {b} from {a}."
                out.append((ask.split("|"), f"{a} - {b} = {a - b}."))
            if 0 < a <= 10 and 0 < b <= 10:
                ask = f"What is {a} times {b}?|What is {a} * {b}?|Multiply {a} by {b}."
                out.append((ask.split("|"), f"{a} * {b} = {a * b}."))
    return out
