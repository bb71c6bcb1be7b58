//! Vocabulary of the grammar. Plurals and verb forms are regular.

/// The words of a topic.
pub struct Topic {
    /// Singular, plural.
    pub nouns: [(&'static str, &'static str); 6],
    /// Singular, plural.
    pub verbs: [(&'static str, &'static str); 5],
    pub adjectives: [&'static str; 4],
    pub places: [&'static str; 2],
}

impl Topic {
    pub fn noun(&self, index: usize, is_singular: bool) -> &'static str {
        if is_singular { self.nouns[index].0 } else { self.nouns[index].1 }
    }

    pub fn verb(&self, index: usize, is_singular: bool) -> &'static str {
        if is_singular { self.verbs[index].0 } else { self.verbs[index].1 }
    }
}

/// Protagonists and their pronouns.
pub const NAMES: [(&str, &str); 16] = [
    ("anna", "she"),
    ("ben", "he"),
    ("clara", "she"),
    ("david", "he"),
    ("emma", "she"),
    ("felix", "he"),
    ("greta", "she"),
    ("henry", "he"),
    ("ida", "she"),
    ("jacob", "he"),
    ("kate", "she"),
    ("leo", "he"),
    ("mary", "she"),
    ("noah", "he"),
    ("olga", "she"),
    ("peter", "he"),
];

/// Topics, with few words in common.
pub const TOPICS: [Topic; 12] = [
    Topic {
        nouns: [
            ("boat", "boats"),
            ("net", "nets"),
            ("sailor", "sailors"),
            ("captain", "captains"),
            ("anchor", "anchors"),
            ("sail", "sails"),
        ],
        verbs: [("hauls", "haul"), ("mends", "mend"), ("follows", "follow"), ("loads", "load"), ("steers", "steer")],
        adjectives: ["wet", "heavy", "grey", "old"],
        places: ["harbour", "bay"],
    },
    Topic {
        nouns: [
            ("cow", "cows"),
            ("plough", "ploughs"),
            ("farmer", "farmers"),
            ("seed", "seeds"),
            ("fence", "fences"),
            ("lamb", "lambs"),
        ],
        verbs: [("feeds", "feed"), ("plants", "plant"), ("milks", "milk"), ("guards", "guard"), ("herds", "herd")],
        adjectives: ["green", "muddy", "young", "brown"],
        places: ["field", "barn"],
    },
    Topic {
        nouns: [
            ("pan", "pans"),
            ("cook", "cooks"),
            ("spoon", "spoons"),
            ("onion", "onions"),
            ("pie", "pies"),
            ("guest", "guests"),
        ],
        verbs: [("stirs", "stir"), ("bakes", "bake"), ("serves", "serve"), ("tastes", "taste"), ("fills", "fill")],
        adjectives: ["hot", "sweet", "round", "fresh"],
        places: ["kitchen", "cellar"],
    },
    Topic {
        nouns: [
            ("king", "kings"),
            ("sword", "swords"),
            ("knight", "knights"),
            ("shield", "shields"),
            ("horse", "horses"),
            ("crown", "crowns"),
        ],
        verbs: [
            ("defends", "defend"),
            ("honours", "honour"),
            ("wields", "wield"),
            ("rides", "ride"),
            ("attacks", "attack"),
        ],
        adjectives: ["brave", "golden", "noble", "royal"],
        places: ["castle", "tower"],
    },
    Topic {
        nouns: [
            ("doctor", "doctors"),
            ("nurse", "nurses"),
            ("patient", "patients"),
            ("pill", "pills"),
            ("bandage", "bandages"),
            ("needle", "needles"),
        ],
        verbs: [("treats", "treat"), ("heals", "heal"), ("examines", "examine"), ("helps", "help"), ("tests", "test")],
        adjectives: ["sick", "clean", "careful", "white"],
        places: ["clinic", "ward"],
    },
    Topic {
        nouns: [
            ("teacher", "teachers"),
            ("pupil", "pupils"),
            ("book", "books"),
            ("pencil", "pencils"),
            ("lesson", "lessons"),
            ("map", "maps"),
        ],
        verbs: [
            ("reads", "read"),
            ("explains", "explain"),
            ("learns", "learn"),
            ("draws", "draw"),
            ("repeats", "repeat"),
        ],
        adjectives: ["clever", "difficult", "short", "quiet"],
        places: ["school", "library"],
    },
    Topic {
        nouns: [
            ("engine", "engines"),
            ("wheel", "wheels"),
            ("driver", "drivers"),
            ("ticket", "tickets"),
            ("wagon", "wagons"),
            ("signal", "signals"),
        ],
        verbs: [
            ("starts", "start"),
            ("repairs", "repair"),
            ("collects", "collect"),
            ("couples", "couple"),
            ("inspects", "inspect"),
        ],
        adjectives: ["loud", "iron", "fast", "red"],
        places: ["station", "tunnel"],
    },
    Topic {
        nouns: [
            ("painter", "painters"),
            ("canvas", "canvass"),
            ("easel", "easels"),
            ("colour", "colours"),
            ("frame", "frames"),
            ("model", "models"),
        ],
        verbs: [
            ("paints", "paint"),
            ("admires", "admire"),
            ("sells", "sell"),
            ("hangs", "hang"),
            ("sketchs", "sketch"),
        ],
        adjectives: ["bright", "famous", "thin", "blue"],
        places: ["gallery", "studio"],
    },
    Topic {
        nouns: [
            ("bear", "bears"),
            ("hunter", "hunters"),
            ("stag", "stags"),
            ("tree", "trees"),
            ("trap", "traps"),
            ("trail", "trails"),
        ],
        verbs: [
            ("chases", "chase"),
            ("tracks", "track"),
            ("climbs", "climb"),
            ("avoids", "avoid"),
            ("smells", "smell"),
        ],
        adjectives: ["wild", "silent", "dark", "tall"],
        places: ["forest", "valley"],
    },
    Topic {
        nouns: [
            ("singer", "singers"),
            ("violin", "violins"),
            ("drum", "drums"),
            ("song", "songs"),
            ("dancer", "dancers"),
            ("piano", "pianos"),
        ],
        verbs: [
            ("plays", "play"),
            ("hears", "hear"),
            ("practises", "practise"),
            ("leads", "lead"),
            ("praises", "praise"),
        ],
        adjectives: ["gentle", "merry", "high", "slow"],
        places: ["theatre", "hall"],
    },
    Topic {
        nouns: [
            ("planet", "planets"),
            ("rocket", "rockets"),
            ("pilot", "pilots"),
            ("star", "stars"),
            ("robot", "robots"),
            ("moon", "moons"),
        ],
        verbs: [
            ("launchs", "launch"),
            ("orbits", "orbit"),
            ("observes", "observe"),
            ("visits", "visit"),
            ("measures", "measure"),
        ],
        adjectives: ["distant", "strange", "silver", "round"],
        places: ["station", "observatory"],
    },
    Topic {
        nouns: [
            ("judge", "judges"),
            ("robber", "robbers"),
            ("lawyer", "lawyers"),
            ("letter", "letters"),
            ("clerk", "clerks"),
            ("guard", "guards"),
        ],
        verbs: [
            ("accuses", "accuse"),
            ("questions", "question"),
            ("arrests", "arrest"),
            ("believes", "believe"),
            ("warns", "warn"),
        ],
        adjectives: ["honest", "guilty", "secret", "strict"],
        places: ["court", "prison"],
    },
];
