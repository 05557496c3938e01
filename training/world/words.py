"""The words the small world is made of, English and Chinese side by side.

Tables only. Names and values that a question may ask for are never parts of each other, so that
looking for one in an answer cannot find another.
"""

# (English, Chinese, he or she): the people everyone knows; facts.py gives them homes and lives.
PEOPLE = [
    ("Anna", "安娜", "she"), ("Ben", "本", "he"), ("Clara", "克拉拉", "she"),
    ("David", "大卫", "he"), ("Emma", "艾玛", "she"), ("Felix", "菲利", "he"),
    ("Grace", "格蕾", "she"), ("Henry", "亨利", "he"), ("Iris", "爱丽", "she"),
    ("Jack", "杰克", "he"), ("Kate", "凯特", "she"), ("Leo", "利奥", "he"),
    ("Mia", "米娅", "she"), ("Noah", "诺亚", "he"), ("Olive", "奥莉", "she"),
    ("Paul", "保罗", "he"), ("Rosa", "罗莎", "she"), ("Sam", "山姆", "he"),
    ("Tina", "蒂娜", "she"), ("Victor", "维克", "he"), ("Wendy", "温迪", "she"),
    ("Max", "马克", "he"), ("Lucy", "露西", "she"), ("Oscar", "奥斯", "he"),
]

# Names for passing facts and stories, known for nothing.
STRANGERS = [
    "Ada", "Alfred", "Alice", "Amos", "Arthur", "Bella", "Bruno", "Carl", "Celia", "Cyril",
    "Daisy", "Dora", "Edgar", "Edith", "Elsa", "Ernest", "Esther", "Fanny", "Frank", "Fred",
    "George", "Gilbert", "Greta", "Harold", "Hazel", "Helen", "Hugo", "Ida", "Ivan", "Jane",
    "Jasper", "John", "Julia", "Karl", "Laura", "Lena", "Lily", "Lionel", "Louis", "Mabel",
    "Maria", "Martin", "Mary", "Milo", "Molly", "Nancy", "Nina", "Nora", "Otto", "Peter", "Philip",
    "Polly", "Quentin", "Ralph", "Robert", "Rose", "Ruth", "Sarah", "Simon", "Sophie", "Stella",
    "Susan", "Thomas", "Toby", "Ursula", "Vera", "Violet", "Walter", "William", "Zoe",
]
MEN = {
    "Alfred", "Amos", "Arthur", "Bruno", "Carl", "Cyril", "Edgar", "Ernest", "Frank", "Fred", "George",
    "Gilbert", "Harold", "Hugo", "Ivan", "Jasper", "John", "Karl", "Lionel", "Louis", "Martin",
    "Milo", "Otto", "Peter", "Philip", "Quentin", "Ralph", "Robert", "Simon", "Thomas", "Toby",
    "Walter", "William",
}
STRANGERS_ZH = [
    "小明", "小红", "小华", "小丽", "小刚", "小芳", "小龙", "小梅", "小云", "小雪", "小强", "小燕",
    "小兰", "小虎", "小英", "小军", "小玲", "小东", "小雨", "小星",
]

COLOURS = [("red", "红色"), ("blue", "蓝色"), ("green", "绿色"), ("yellow", "黄色"),
           ("white", "白色"), ("black", "黑色"), ("brown", "棕色"), ("grey", "灰色"),
           ("purple", "紫色"), ("orange", "橙色"), ("pink", "粉色"), ("golden", "金色")]

# (English, Chinese, sound, number of legs, young)
ANIMALS = [
    ("dog", "狗", "barks", 4, "puppy"), ("cat", "猫", "purrs", 4, "kitten"),
    ("horse", "马", "neighs", 4, "foal"), ("cow", "牛", "moos", 4, "calf"),
    ("sheep", "羊", "bleats", 4, "lamb"), ("pig", "猪", "grunts", 4, "piglet"),
    ("hen", "母鸡", "clucks", 2, "chick"), ("duck", "鸭子", "quacks", 2, "duckling"),
    ("goose", "鹅", "honks", 2, "gosling"), ("rabbit", "兔子", "squeaks", 4, "bunny"),
    ("frog", "青蛙", "croaks", 4, "tadpole"), ("owl", "猫头鹰", "hoots", 2, "owlet"),
    ("lion", "狮子", "roars", 4, "cub"), ("wolf", "狼", "howls", 4, "pup"),
    ("bee", "蜜蜂", "buzzes", 6, "grub"), ("snake", "蛇", "hisses", 0, "snakelet"),
]
PETS = [("dog", "狗"), ("cat", "猫"), ("rabbit", "兔子"), ("parrot", "鹦鹉"), ("pony", "小马"),
        ("turtle", "乌龟"), ("hamster", "仓鼠"), ("goat", "山羊")]
PET_NAMES = ["Biscuit", "Pepper", "Button", "Ginger", "Shadow", "Snowy", "Tiger", "Patch",
             "Bubbles", "Cookie", "Misty", "Rusty", "Socks", "Honey", "Domino", "Pickle", "Sparky",
             "Velvet", "Cricket", "Waffle", "Pumpkin", "Storm", "Nutmeg", "Bingo"]

JOBS = [
    ("baker", "面包师"), ("teacher", "老师"), ("doctor", "医生"), ("farmer", "农民"),
    ("sailor", "水手"), ("painter", "画家"), ("miller", "磨坊主"), ("tailor", "裁缝"),
    ("gardener", "园丁"), ("carpenter", "木匠"), ("fisher", "渔夫"), ("cook", "厨师"),
    ("singer", "歌手"), ("postman", "邮递员"), ("nurse", "护士"), ("blacksmith", "铁匠"),
    ("shepherd", "牧羊人"), ("librarian", "图书管理员"), ("clockmaker", "钟表匠"),
    ("builder", "建筑工"), ("dancer", "舞蹈家"), ("driver", "司机"), ("writer", "作家"),
    ("beekeeper", "养蜂人"),
]
FOODS = [
    ("apples", "苹果"), ("bread", "面包"), ("soup", "汤"), ("cheese", "奶酪"), ("honey", "蜂蜜"),
    ("rice", "米饭"), ("noodles", "面条"), ("plums", "李子"), ("cake", "蛋糕"), ("fish", "鱼"),
    ("carrots", "胡萝卜"), ("cherries", "樱桃"), ("eggs", "鸡蛋"), ("dumplings", "饺子"),
    ("pears", "梨"), ("nuts", "坚果"),
]
# (base form, Chinese)
HOBBIES = [
    ("paint", "画画"), ("swim", "游泳"), ("sing", "唱歌"), ("dance", "跳舞"), ("read", "看书"),
    ("fish", "钓鱼"), ("cook", "做饭"), ("run", "跑步"), ("climb", "爬山"), ("skate", "滑冰"),
    ("sew", "缝衣服"), ("play chess", "下棋"), ("play the piano", "弹钢琴"),
    ("play the drum", "打鼓"), ("fly kites", "放风筝"), ("watch birds", "看鸟"),
]

# (English, Chinese)
TOWNS = [("Millford", "磨坊镇"), ("Oakham", "橡树镇"), ("Seaview", "海景镇"), ("Redhill", "红山镇"),
         ("Larkton", "云雀镇"), ("Stonebridge", "石桥镇"), ("Greenwood", "绿林镇"),
         ("Fairport", "美港镇"), ("Snowdon", "雪峰镇"), ("Applegate", "苹果镇")]
# (English, Chinese, capital, its Chinese, what it is known for, its Chinese)
COUNTRIES = [
    ("Norland", "诺兰", "Frosthaven", "霜港", "wool", "羊毛"),
    ("Sunmark", "桑马克", "Goldport", "金港", "oranges", "橙子"),
    ("Estria", "埃斯特", "Silverton", "银城", "glass", "玻璃"),
    ("Westmoor", "西莫", "Ravenhall", "鸦堡", "cheese", "奶酪"),
    ("Valdonia", "瓦多", "Rosecastle", "玫瑰堡", "wine", "葡萄酒"),
    ("Kelmar", "凯尔玛", "Whitecliff", "白崖", "salt", "盐"),
    ("Ostania", "奥斯塔", "Ironbrook", "铁溪", "clocks", "钟表"),
    ("Pellow", "佩洛", "Mistwater", "雾水", "pearls", "珍珠"),
    ("Quillan", "奎兰", "Starfield", "星原", "paper", "纸"),
    ("Zandor", "赞多", "Sandgate", "沙门", "carpets", "地毯"),
]
RIVERS = ["Ember", "Willow", "Lorn", "Tamsel", "Brindle", "Aster", "Corrow", "Nimble", "Sable",
          "Ruddle"]

# Things to lose, hide, give and find: (English, Chinese)
THINGS = [
    ("kite", "风筝"), ("ball", "球"), ("key", "钥匙"), ("book", "书"), ("lamp", "灯"),
    ("cup", "杯子"), ("hat", "帽子"), ("drum", "鼓"), ("coin", "硬币"), ("spoon", "勺子"),
    ("basket", "篮子"), ("mirror", "镜子"), ("candle", "蜡烛"), ("feather", "羽毛"),
    ("whistle", "哨子"), ("scarf", "围巾"), ("button", "扣子"), ("ladder", "梯子"),
    ("bottle", "瓶子"), ("pencil", "铅笔"), ("map", "地图"), ("bell", "铃铛"), ("doll", "娃娃"),
    ("boat", "小船"), ("shovel", "铲子"), ("umbrella", "雨伞"), ("hammer", "锤子"),
    ("violin", "小提琴"), ("blanket", "毯子"), ("needle", "针"), ("letter", "信"),
    ("ring", "戒指"), ("stone", "石头"), ("pillow", "枕头"), ("clock", "钟"), ("wheel", "轮子"),
    ("rope", "绳子"), ("broom", "扫帚"), ("teapot", "茶壶"), ("puzzle", "拼图"),
]
# (English with preposition, Chinese)
PLACES = [
    ("under the bridge", "桥下"), ("behind the barn", "谷仓后面"), ("in the garden", "花园里"),
    ("on the roof", "屋顶上"), ("near the well", "井边"), ("in the kitchen", "厨房里"),
    ("under the bed", "床下"), ("beside the river", "河边"), ("in the attic", "阁楼里"),
    ("behind the church", "教堂后面"), ("at the market", "市场里"), ("in the forest", "森林里"),
    ("by the lake", "湖边"), ("in the cellar", "地窖里"), ("on the hill", "山上"),
    ("under the oak tree", "橡树下"), ("in the stable", "马厩里"), ("at the mill", "磨坊里"),
    ("behind the curtain", "窗帘后面"), ("in the old boot", "旧靴子里"),
    ("on the beach", "沙滩上"), ("in the school", "学校里"), ("inside the chest", "箱子里"),
    ("at the station", "车站里"),
]
# Where people can be.
SPOTS = [place for place in PLACES if not place[0].startswith(("under the b", "inside", "on the r",
                                                              "in the old", "behind the cu"))]
# Secret words: common, short, no names of things that stories speak of all the time.
SECRETS = [
    "amber", "anchor", "arrow", "autumn", "badger", "bamboo", "banner", "barley", "beacon",
    "blossom", "breeze", "bridle", "butter", "cactus", "canyon", "castle", "cedar", "chalk",
    "cherry", "cinnamon", "clover", "cobweb", "copper", "coral", "cotton", "crystal", "dagger",
    "diamond", "dolphin", "dragon", "eagle", "echo", "emerald", "falcon", "fern", "flute", "forest",
    "fountain", "garlic", "glacier", "granite", "harbour", "harvest", "heron", "island", "ivory",
    "jasmine", "jewel", "juniper", "kettle", "lantern", "lavender", "lemon", "lilac", "lizard",
    "lobster", "magnet", "maple", "marble", "meadow", "melon", "meteor", "mint", "monkey",
    "mountain", "mustard", "nettle", "nickel", "oasis", "ocean", "olive", "onion", "orchid",
    "otter", "oyster", "panther", "parsley", "peacock", "pebble", "pepper", "phoenix", "pigeon",
    "planet", "poppy", "prairie", "quartz", "raven", "ribbon", "rocket", "saddle", "saffron",
    "salmon", "sapphire", "satin", "shadow", "silver", "spider", "spruce", "squirrel", "sugar",
    "summer", "sunset", "temple", "thistle", "thunder", "timber", "tulip", "turnip", "valley",
    "vanilla", "velvet", "violet", "walnut", "weasel", "willow", "window", "winter", "zebra",
]
SECRETS_ZH = [
    "大海", "月亮", "太阳", "石榴", "竹子", "燕子", "雷电", "雪花", "彩虹", "宝石", "枫叶", "松树",
    "老虎", "金鱼", "孔雀", "柠檬", "银河", "沙漠", "火山", "瀑布", "茉莉", "灯塔", "铜镜", "风车",
    "海豚", "蝴蝶", "葡萄", "核桃", "琥珀", "流星",
]
BOXES = [("box", "盒子"), ("door", "门"), ("bus", "公共汽车"), ("train", "火车"), ("room", "房间"),
         ("locker", "柜子"), ("safe", "保险箱"), ("ticket", "票")]
ADJECTIVES = ["old", "little", "big", "round", "shiny", "broken", "wooden", "heavy", "tiny",
              "pretty"]
WEATHER = [("sunny", "晴天"), ("rainy", "雨天"), ("windy", "刮风"), ("snowy", "下雪"),
           ("cloudy", "多云"), ("foggy", "有雾")]
DAYS = [("Monday", "星期一"), ("Tuesday", "星期二"), ("Wednesday", "星期三"),
        ("Thursday", "星期四"), ("Friday", "星期五"), ("Saturday", "星期六"), ("Sunday", "星期日")]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September",
          "October", "November", "December"]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
           "eleven", "twelve"]
OPPOSITES = [("hot", "cold"), ("big", "small"), ("up", "down"), ("day", "night"), ("open", "shut"),
             ("young", "old"), ("happy", "sad"), ("fast", "slow"), ("wet", "dry"),
             ("full", "empty"), ("light", "dark"), ("high", "low"), ("early", "late"),
             ("near", "far"), ("strong", "weak"), ("rich", "poor"), ("loud", "quiet"),
             ("hard", "soft")]
COLOUR_OF = [("grass", "草", "green", "绿色"), ("snow", "雪", "white", "白色"),
             ("the sky", "天空", "blue", "蓝色"), ("coal", "煤", "black", "黑色"),
             ("a lemon", "柠檬", "yellow", "黄色"), ("a carrot", "胡萝卜", "orange", "橙色"),
             ("milk", "牛奶", "white", "白色"), ("a strawberry", "草莓", "red", "红色"),
             ("chocolate", "巧克力", "brown", "棕色"), ("an elephant", "大象", "grey", "灰色")]
SYSTEMS = ["You are a helpful assistant.", "You are a friendly helper.",
           "You answer in one short sentence.", "Answer briefly.", "You are Galley's little model.",
           "Be kind and honest."]
SYSTEMS_ZH = ["你是一个乐于助人的助手。", "请简短地回答。", "你是一个友好的助手。"]
