//! Spelling, by the dictionary of `typos`: words that are often misspelt, and how they are spelt.

use unicase::UniCase;

use super::text::parts_of_names;

/// Words of the field, and parts of names, that the dictionary takes for misspelt ones.
const VOCABULARY: [&str; 4] = ["controllen", "iinclude", "ths", "wronly"];

/// The misspelt words of a line, each with how it is spelt.
pub fn misspelt(line: &str) -> impl Iterator<Item = String> {
    line.split(r"\n")
        .flat_map(parts_of_names)
        .filter_map(|word| {
            let right = typos_dict::WORD.find(&UniCase::new(word))?;
            let is_ours = VOCABULARY.contains(&word.to_lowercase().as_str());
            (!is_ours).then(|| format!("{word}: {}", right.join(", ")))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_words_are_found_in_names_too() {
        let all = |line| misspelt(line).collect::<Vec<_>>();
        assert_eq!(
            all("Teh queue recieved it"),
            ["Teh: the", "recieved: received"]
        );
        assert_eq!(all("fn recieve_all(RecieveQueue)").len(), 2);
        assert!(all("msg_controllen of 0xteh").is_empty());
    }
}
