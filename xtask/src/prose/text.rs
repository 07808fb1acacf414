//! What people read of a file: its comments, or the paragraphs of a page. Code is left out, in lines and in backticks.

use std::mem;

/// Sentences that stand together: a paragraph, an item of a list, a cell of a table.
#[derive(Debug, PartialEq, Eq)]
pub struct Paragraph {
    /// The line in which it begins, from 1.
    pub line: usize,
    /// Its text in one line. Code in it is "`x`".
    pub text: String,
}

/// How a file shows which part of it is text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Markdown.
    Page,
    /// Rust, C or C++: comments.
    Source,
}

impl Kind {
    /// By the file's name; `None` if nothing in it is read.
    pub fn of(path: &str) -> Option<Self> {
        match path.rsplit_once('.')?.1 {
            "md" => Some(Self::Page),
            "rs" | "c" | "h" | "cpp" | "hpp" => Some(Self::Source),
            _ => None,
        }
    }
}

/// The paragraphs of a file.
pub fn paragraphs(kind: Kind, file: &str) -> Vec<Paragraph> {
    let mut reader = Reader::default();
    let mut in_block = false;
    for (line, text) in (1..).zip(file.lines()) {
        match kind {
            Kind::Page => reader.line(line, text),
            Kind::Source => match comment(text, &mut in_block) {
                Some((text, Whole::Yes)) => reader.line(line, text),
                Some((text, Whole::BehindCode)) => {
                    reader.end();
                    reader.line(line, text);
                    reader.end();
                }
                None => {
                    reader.end();
                    reader.fenced = false;
                }
            },
        }
    }
    reader.end();
    reader.done
}

/// Whether a line has nothing but a comment.
enum Whole {
    Yes,
    BehindCode,
}

/// The text of a line's comment.
fn comment<'a>(line: &'a str, in_block: &mut bool) -> Option<(&'a str, Whole)> {
    let trimmed = line.trim_start();
    if *in_block || trimmed.starts_with("/*") {
        *in_block = !line.contains("*/");
        let text = trimmed.trim_start_matches('/').trim_start_matches('*');
        return Some((text.split("*/").next().unwrap_or_default(), Whole::Yes));
    }
    if let Some(text) = trimmed.strip_prefix("//") {
        return Some((text.trim_start_matches(['/', '!']), Whole::Yes));
    }
    // Behind code; an address of a site in a string has no space in front.
    let (code, text) = line.split_once(" // ")?;
    (code.matches('"').count() % 2 == 0).then_some((text, Whole::BehindCode))
}

#[derive(Default)]
struct Reader {
    done: Vec<Paragraph>,
    open: Option<Paragraph>,
    fenced: bool,
}

impl Reader {
    fn line(&mut self, line: usize, text: &str) {
        // Deeper than an item of a list, an example; or columns.
        let is_code = text.starts_with("      ") || text.trim().contains("   ");
        let text = text.trim();
        if text.starts_with("```") {
            self.fenced = !self.fenced;
            self.end();
        } else if self.fenced || text.is_empty() || is_code {
            self.end();
        } else if let Some(heading) = text.strip_prefix('#') {
            self.end();
            self.add(line, heading.trim_start_matches('#'));
            self.end();
        } else if text.starts_with('|') {
            self.end();
            for cell in text.split('|') {
                self.add(line, cell);
                self.end();
            }
        } else if let Some(item) = item(text) {
            self.end();
            self.add(line, item);
        } else {
            self.add(line, text);
        }
    }

    fn add(&mut self, line: usize, text: &str) {
        let open = self.open.get_or_insert(Paragraph {
            line,
            text: String::new(),
        });
        open.text.push_str(text.trim());
        open.text.push(' ');
    }

    fn end(&mut self) {
        if let Some(mut paragraph) = self.open.take() {
            paragraph.text = without_code(paragraph.text.trim());
            if !is_list_of_links(&paragraph.text) {
                self.done.push(paragraph);
            }
        }
    }
}

/// Whether a text has no words but those of links.
fn is_list_of_links(text: &str) -> bool {
    let parts = text.split(['[', ']']).step_by(2);
    !parts
        .into_iter()
        .any(|part| part.contains(char::is_alphanumeric))
}

/// The text of a list's item.
fn item(text: &str) -> Option<&str> {
    let bullet = text.strip_prefix("- ").or_else(|| text.strip_prefix("* "));
    bullet.or_else(|| {
        let (number, rest) = text.split_once(". ")?;
        (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(rest)
    })
}

/// The text without code in backticks, and without the addresses of links.
fn without_code(text: &str) -> String {
    let mut plain = String::new();
    for (number, part) in text.split('`').enumerate() {
        plain.push_str(if number % 2 == 0 { part } else { "`x`" });
    }
    let mut rest = mem::take(&mut plain);
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        plain.push(']');
        rest = after
            .split_once(')')
            .map_or("", |(_, rest)| rest)
            .to_owned();
    }
    plain.push_str(&rest);
    plain
}

/// The sentences of a text.
pub fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let ends = rest.match_indices(['.', '!', '?']).find_map(|(at, _)| {
            let behind = rest[at + 1..].trim_start_matches(['*', '_', '"', ')']);
            let next = behind.strip_prefix(' ')?.split(' ').next()?;
            let begins = next.starts_with(|c: char| c.is_uppercase() || "`[(*_\"".contains(c))
                // A function, a file or a number.
                || next.contains(['(', '_', '/']) || next.starts_with(|c: char| c.is_numeric());
            begins.then_some(rest.len() - behind.len())
        });
        let end = ends.unwrap_or(rest.len());
        let sentence = rest[..end].trim();
        rest = rest[end..].trim_start();
        Some(sentence)
    })
}

/// How many words a sentence has.
pub fn words(sentence: &str) -> usize {
    let is_word = |word: &&str| word.contains(char::is_alphanumeric);
    sentence.split_whitespace().filter(is_word).count()
}

/// The words of a text, and of the names in it: `RecvQueue` and `recv_queue` are two words. Words with digits in them
/// are left out.
pub fn parts_of_names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    let words = words.filter(|word| !word.contains(|c: char| c.is_numeric()));
    words.flat_map(|word| {
        let mut rest = word;
        std::iter::from_fn(move || {
            let mut before = false;
            let end = rest.char_indices().find(|&(_, c)| {
                let begins = before && c.is_uppercase();
                before = c.is_lowercase();
                begins
            });
            let end = end.map_or(rest.len(), |(at, _)| at);
            let part;
            (part, rest) = rest.split_at(end);
            (!part.is_empty()).then_some(part)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: Kind, file: &str) -> Vec<(usize, String)> {
        let paragraphs = paragraphs(kind, file).into_iter();
        paragraphs.map(|it| (it.line, it.text)).collect()
    }

    #[test]
    fn code_is_not_text() {
        let page = "# A `b`\n\nOne\ntwo.\nwho   who\n```sh\nwho\n```\n- three [x](who.md) four\n| a | `who` |\n";
        let all = ["A `x`", "One two.", "three [x] four", "a", "`x`"];
        let lines = [1, 3, 9, 10, 10];
        let expected: Vec<_> = lines.into_iter().zip(all.map(str::to_owned)).collect();
        assert_eq!(of(Kind::Page, page), expected);
    }

    #[test]
    fn comments_are_text() {
        let source = "//! One\n//! two.\nlet who = \"// who\"; // Three.\n/* Four\n * five. */\nwho();\n\
                      /// - six\n///   seven\n/// ```\n/// who\n/// ```\nfn who() {}\n";
        let all = ["One two.", "Three.", "Four five.", "six seven"];
        let lines = [1, 3, 4, 7];
        let expected: Vec<_> = lines.into_iter().zip(all.map(str::to_owned)).collect();
        assert_eq!(of(Kind::Source, source), expected);
    }

    #[test]
    fn names_have_words() {
        let parts: Vec<_> = parts_of_names("RecvQueue::post_all, the QPs utf8").collect();
        assert_eq!(parts, ["Recv", "Queue", "post", "all", "the", "QPs"]);
    }

    #[test]
    fn sentences_end_before_a_capital() {
        let text = "It is 4.096 µs, e.g. so. bw_one() is. 0 is. `x` is next! (A third? **Yes.** \"A\" is.) End";
        let all: Vec<_> = sentences(text).collect();
        let expected = [
            "It is 4.096 µs, e.g. so.",
            "bw_one() is.",
            "0 is.",
            "`x` is next!",
            "(A third?",
            "**Yes.**",
            "\"A\" is.)",
            "End",
        ];
        assert_eq!(all, expected);
        assert_eq!(words("one - two `x` (three)"), 4);
    }
}
