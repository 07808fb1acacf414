//! The text and the JSON of a dump say the same.

use bellwire::recorder::Record;
use serde_json::Value;

/// Each fact of the JSON stands in the text, in the line of its entry.
pub fn says_the_same(record: &Record) {
    let text = record.to_string();
    let json = serde_json::to_string(record).expect("it can be written");
    let json: Value = serde_json::from_str(&json).expect("and read");
    let head = text.lines().next().expect("a line");
    for key in ["qp_num", "transport", "state", "dest_qp_num"] {
        fact(head, key, &json[key]);
    }
    for queue in ["send_queue", "recv_queue", "send_cq", "recv_cq"] {
        let Some(fields) = json[queue].as_object() else {
            assert!(json[queue].is_null());
            continue;
        };
        let name = match queue {
            "send_queue" => "send queue: ".to_owned(),
            "recv_queue" => "receive queue: ".to_owned(),
            _ => format!("completion queue {}:", fields["cqn"]),
        };
        let line = text.lines().find(|line| line.starts_with(&name));
        let line = line.unwrap_or_else(|| panic!("no line {name} in {text}"));
        for (key, value) in fields {
            fact(line, key, value);
        }
    }
    for list in ["sends", "receives", "completions", "notes"] {
        let entries = json[list].as_array().expect("a list");
        let mut lines = text.lines().skip_while(|line| !line.starts_with(list));
        let first = lines.next().expect("its heading");
        assert_eq!(first == format!("{list}: none"), entries.is_empty());
        let lines: Vec<_> = lines.take_while(|line| line.starts_with("  ")).collect();
        assert_eq!(lines.len(), entries.len(), "{list}: {text}");
        for (line, entry) in lines.iter().zip(entries) {
            for (key, value) in entry.as_object().expect("fields") {
                fact(line, key, value);
            }
        }
    }
}

/// Flags are words that stand there or not; addresses and keys are hexadecimal in the text.
fn fact(line: &str, key: &str, value: &Value) {
    let words: Vec<_> = line.split([' ', ',', ':', '+', '[', ']', '#']).collect();
    let has = |word: &str| words.contains(&word);
    let stands = match (key, value) {
        (_, Value::Null) => true,
        ("polled", Value::Bool(polled)) => line.contains(" not polled") != *polled,
        ("overrun", Value::Bool(overrun)) => has("OVERRUN") == *overrun,
        (flag, Value::Bool(set)) => has(flag) == *set,
        ("syndrome" | "vendor_err", Value::Number(number)) => {
            number.as_u64() == Some(0) || has(&format!("{:#04x}", number.as_u64().expect("whole")))
        }
        ("addr" | "key" | "imm" | "invalidates", Value::Number(number)) => {
            has(&format!("{:#x}", number.as_u64().expect("whole")))
        }
        ("at", Value::Number(at)) => {
            let at = at.as_u64().expect("microseconds");
            has(&format!("{}.{:06}", at / 1_000_000, at % 1_000_000))
        }
        (_, Value::Number(number)) => has(&number.to_string()),
        (_, Value::String(text)) => line.contains(text.as_str()),
        (_, Value::Array(all)) => {
            all.iter().for_each(|one| fact(line, key, one));
            true
        }
        (_, Value::Object(fields)) => {
            fields
                .iter()
                .for_each(|(key, value)| fact(line, key, value));
            true
        }
    };
    assert!(stands, "{key} {value} is not in {line:?}");
}
