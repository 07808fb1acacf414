//! Constructions that a reader has to read twice, and how often each may be left in the tree.

use regex::Regex;

use super::text::{Kind, parts_of_names, sentences, words};

/// Pages, and the C header.
const CLEAN: &[&str] = &[
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "docs/",
    "include/",
];

/// The same, and examples.
const CLEAN_WITH_EXAMPLES: &[&str] = &[
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "docs/",
    "examples/",
    "fuzz/",
    "include/",
];

/// A rule, and how many places that are not clean break it. The number may only fall.
pub struct Rule {
    /// What it is called in the output.
    pub name: &'static str,
    /// What to write instead.
    pub instead: &'static str,
    /// Files and folders, by how their paths begin, in which no place breaks it.
    pub clean: &'static [&'static str],
    /// How many other places break it.
    pub left: usize,
    pub what: What,
}

pub enum What {
    /// Matches of a pattern, without the matches that have a group: those are right.
    Pattern(&'static str),
    /// Sentences with too many words.
    Long,
    /// Private metaphors in names that Rust code defines.
    Names,
    /// Words of a dictionary: `spelling.rs`.
    Spelling,
}

/// Words of which no name is made.
const METAPHORS: [&str; 11] = [
    "elsewhere",
    "face",
    "found",
    "handed",
    "known",
    "letter",
    "letters",
    "likely",
    "owed",
    "paid",
    "seen",
];

/// What stands before a name where it is defined.
const DEFINES: &str = r"\b(?:fn|struct|enum|mod|trait|const|static|type) ([A-Za-z_][A-Za-z0-9_]*)";

const fn pattern(
    name: &'static str,
    left: usize,
    pattern: &'static str,
    instead: &'static str,
) -> Rule {
    Rule {
        name,
        instead,
        clean: CLEAN_WITH_EXAMPLES,
        left,
        what: What::Pattern(pattern),
    }
}

/// Words are spelt as they should be.
pub const SPELLING: Rule = Rule {
    name: "misspelt",
    instead: "a word of the field is added to the vocabulary in xtask/src/prose/spelling.rs",
    clean: &[],
    left: 0,
    what: What::Spelling,
};

/// Every rule about sentences and names.
#[rustfmt::skip]
pub const RULES: [Rule; 8] = [
    pattern("who", 125, r"\b[Ww]ho(?:ever)?\b", "name the actor: the poller, the requester, the user"),
    pattern("what is", 437, r"(?:\b([Ss]ay|[Ss]ays|[Ss]how|[Ss]hows|[Nn]ame|[Nn]ames|[Tt]ells) )?\b[Ww]hat (?:is|was|are|were)\b",
        "name the thing: the entry, the requests in flight"),
    pattern("that one", 15, r"\b[Tt]hat one(?:$|[.,;:)]| (?:is|was|has|had|does|did|can|may|itself|then|too|that|which|of)\b)",
        "repeat the noun"),
    pattern("those that", 104, r"\b[Tt]hose (?:that|which|who)\b", "repeat the noun"),
    pattern("metaphors", 48, r"\b(?:[Ss]eldom|[Ee]lsewhere|[Oo]wed?|[Oo]wes|[Pp]aid|[Pp]ays|[Hh]anded|[Ff]aces?|[Ll]etter)\b",
        "rarely, in another place, has to send, costs, passed, side, message"),
    pattern("participles as nouns", 0, r"\b(?:[Tt]he|[Aa]ll|[Ww]hat|[Oo]f|[Tt]hose) (?:seen|known|found|handed|paid|owed|likely)(?:$|[.,;:)]| (?:is|are|was|were|has|have|of|by)\b)",
        "name the thing that was found"),
    Rule { name: "names", clean: CLEAN, left: 87, what: What::Names, instead: "name the thing with a noun of the field" },
    Rule { name: "long sentences", clean: CLEAN, left: 774, what: What::Long,
        instead: "one thought a sentence: at most 25 words in comments, 30 in pages" },
];

impl Rule {
    /// The rule with its pattern compiled.
    pub fn compiled(&self) -> Compiled<'_> {
        let pattern = match self.what {
            What::Pattern(pattern) => Some(pattern),
            What::Names => Some(DEFINES),
            What::Long | What::Spelling => None,
        };
        let regex = pattern.map(|pattern| Regex::new(pattern).expect("a pattern of the table"));
        Compiled { rule: self, regex }
    }
}

/// A [`Rule`] that can be checked.
pub struct Compiled<'a> {
    pub rule: &'a Rule,
    regex: Option<Regex>,
}

impl Compiled<'_> {
    /// The places in a paragraph that break the rule.
    pub fn in_text(&self, kind: Kind, text: &str) -> Vec<String> {
        match (&self.rule.what, &self.regex) {
            (What::Pattern(_), Some(regex)) => {
                let matches = regex.captures_iter(text);
                let wrong = matches.filter(|it| it.iter().skip(1).all(|group| group.is_none()));
                wrong.map(|it| it[0].to_owned()).collect()
            }
            (What::Long, _) => {
                let most = if kind == Kind::Page { 30 } else { 25 };
                // "Errors:" is followed by a list.
                let sentences = sentences(text).filter(|it| !it.starts_with("Errors: "));
                let long = sentences.filter(|sentence| words(sentence) > most);
                long.map(str::to_owned).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The names that a line of Rust defines and that break the rule.
    pub fn in_code(&self, line: &str) -> Vec<String> {
        let (What::Names, Some(regex)) = (&self.rule.what, &self.regex) else {
            return Vec::new();
        };
        let names = regex.captures_iter(line).map(|it| it[1].to_owned());
        let is_metaphor = |name: &String| {
            let mut parts = parts_of_names(name);
            parts.any(|part| METAPHORS.contains(&part.to_lowercase().as_str()))
        };
        names.filter(is_metaphor).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str) -> Compiled<'static> {
        let rule = RULES.iter().find(|rule| rule.name == name);
        rule.expect("a rule").compiled()
    }

    fn breaks(name: &str, text: &str) -> bool {
        !rule(name).in_text(Kind::Source, text).is_empty()
    }

    #[test]
    fn each_construction_is_found_and_its_neighbour_is_not() {
        for (name, wrong, right) in [
            ("who", "Whoever asks waits.", "The whole queue."),
            (
                "what is",
                "It keeps what is left.",
                "The error says what is left.",
            ),
            (
                "that one",
                "A queue of that one.",
                "It follows that one poll is enough.",
            ),
            (
                "those that",
                "All those that wait.",
                "All threads that wait.",
            ),
            ("metaphors", "It is handed over.", "It is written by hand."),
            (
                "participles as nouns",
                "The found is kept.",
                "The known fault.",
            ),
            ("long sentences", &"a ".repeat(26), &"a ".repeat(25)),
        ] {
            assert!(breaks(name, wrong), "{name}: {wrong}");
            assert!(!breaks(name, right), "{name}: {right}");
        }
    }

    #[test]
    fn pages_have_longer_sentences() {
        let long = rule("long sentences");
        assert!(long.in_text(Kind::Page, &"a ".repeat(30)).is_empty());
        assert_eq!(long.in_text(Kind::Page, &"a ".repeat(31)).len(), 1);
    }

    #[test]
    fn names_are_read_by_their_words() {
        let names = |line| rule("names").in_code(line);
        assert_eq!(names("pub fn last_seen() {"), ["last_seen"]);
        assert_eq!(names("pub struct PaidLetters;"), ["PaidLetters"]);
        assert!(names("fn interface(surface: Known) {").is_empty());
    }
}
