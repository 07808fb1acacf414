//! Recorded vectors: JSON objects, one a line, in the folders `mlx5*` of `tests/data` (see the README there).
//!
//! Fields are named by paths with dots (`"wc.byte_len"`, `"wcs.0.status"`). A field that is missing or of another
//! type is an error that names file, line and field; only [`Row::opt`] takes a null.
//!
//! Checks of rows hold for any recording. How many rows of each kind a recording has, and how often a check
//! meets each case, is in its file [`TALLY`].

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The environment variable that names the folder of another recording, to be read alone.
pub const FOLDER_VARIABLE: &str = "BELLWIRE_MLX5_VECTORS";

/// The file of a recording with what its rows amount to: for each test the number of each case. A recording
/// without this file may have any number.
pub const TALLY: &str = "tally.json";

/// Why a vector could not be read.
#[derive(Debug)]
pub struct VectorError(String);

impl fmt::Display for VectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for VectorError {}

/// What readers of a field return.
pub type Result<T> = std::result::Result<T, VectorError>;

/// A folder of vectors.
#[derive(Clone, Debug)]
pub struct Recording {
    folder: PathBuf,
}

/// The recording that [`FOLDER_VARIABLE`] names, or each folder `mlx5*` of `tests/data`.
///
/// # Errors
/// `tests/data` cannot be read.
pub fn recordings() -> Result<Vec<Recording>> {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return Ok(vec![Recording::new(folder)]);
    }
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let error = |error: std::io::Error| VectorError(format!("{}: {error}", data.display()));
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(&data).map_err(error)? {
        let folder = entry.map_err(error)?.path();
        let name = folder.file_name().and_then(|name| name.to_str());
        if folder.is_dir() && name.is_some_and(|name| name.starts_with("mlx5")) {
            folders.push(folder);
        }
    }
    folders.sort();
    Ok(folders.into_iter().map(Recording::new).collect())
}

impl Recording {
    /// The recording in `folder`.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// The folder that has the recording. Messages of failed tests name it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// All rows of the file `name`, in order. Empty lines are left out.
    ///
    /// # Errors
    /// The file cannot be read or has no rows, or a line is not a JSON object.
    pub fn load(&self, name: &str) -> Result<Vec<Row>> {
        let path = self.folder.join(name);
        let text = std::fs::read_to_string(&path).map_err(|error| {
            let path = path.display();
            VectorError(format!(
                "{path}: {error}; set {FOLDER_VARIABLE} to the folder that holds {name}"
            ))
        })?;
        let rows: Vec<Row> = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(index, line)| Row::parse(&format!("{}:{}", path.display(), index + 1), line))
            .collect::<Result<_>>()?;
        if rows.is_empty() {
            return Err(VectorError(format!("{}: no rows", path.display())));
        }
        Ok(rows)
    }

    /// Compares the cases that the test `test` counted with those in the recording's [`TALLY`]. Prints them where
    /// there is no such file.
    ///
    /// # Errors
    /// The file cannot be read, or has other counts: the message has the right ones in the form of the file.
    pub fn check_tally(&self, test: &str, counted: &BTreeMap<String, usize>) -> Result<()> {
        let path = self.folder.join(TALLY);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("{}: {test}: {counted:?}", self.folder.display());
                return Ok(());
            }
            Err(error) => return Err(VectorError(format!("{}: {error}", path.display()))),
        };
        let tally = Row::parse(&path.display().to_string(), &text)?;
        let expected = tally.value().get(test);
        let counted = Value::from_iter(counted.iter().map(|(case, n)| (case.clone(), *n)));
        if expected == Some(&counted) {
            return Ok(());
        }
        let expected = expected.unwrap_or(&Value::Null);
        Err(VectorError(format!(
            "{}: {test:?} counted\n{counted:#}\nand not\n{expected:#}",
            path.display()
        )))
    }
}

/// One recorded object, or an object within one.
#[derive(Clone, Debug)]
pub struct Row {
    place: Arc<str>,
    value: Value,
}

impl Row {
    /// The object in `line`; `place` stands in messages.
    ///
    /// # Errors
    /// `line` is not a JSON object.
    pub fn parse(place: &str, line: &str) -> Result<Self> {
        match serde_json::from_str(line) {
            Ok(value @ Value::Object(_)) => Ok(Self {
                place: place.into(),
                value,
            }),
            Ok(_) => Err(VectorError(format!("{place}: not a JSON object"))),
            Err(error) => Err(VectorError(format!("{place}: {error}"))),
        }
    }

    /// File and line, and for an object within a row its path, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The whole object.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// A row that says something else at `path`.
    ///
    /// # Errors
    /// The field is missing.
    pub fn with(&self, path: &str, value: Value) -> Result<Self> {
        let mut row = self.clone();
        match row.value.pointer_mut(&pointer(path)) {
            Some(field) => *field = value,
            None => return Err(self.wrong(path, "missing")),
        }
        Ok(row)
    }

    /// Whether the field is there, be it null.
    pub fn has(&self, path: &str) -> bool {
        self.find(path).is_some()
    }

    /// An integer.
    ///
    /// # Errors
    /// The field is missing, not an integer, or does not fit `T`.
    pub fn int<T: TryFrom<i128>>(&self, path: &str) -> Result<T> {
        self.to_int(path, self.get(path)?)
    }

    /// An integer, or `None` for null.
    ///
    /// # Errors
    /// As [`int`](Self::int).
    pub fn opt<T: TryFrom<i128>>(&self, path: &str) -> Result<Option<T>> {
        match self.get(path)? {
            Value::Null => Ok(None),
            value => self.to_int(path, value).map(Some),
        }
    }

    /// A list of integers.
    ///
    /// # Errors
    /// The field is missing, or not such a list.
    pub fn ints<T: TryFrom<i128>>(&self, path: &str) -> Result<Vec<T>> {
        let list = self.list(path)?.iter();
        list.map(|value| self.to_int(path, value)).collect()
    }

    /// A string.
    ///
    /// # Errors
    /// The field is missing, or not a string.
    pub fn str(&self, path: &str) -> Result<&str> {
        self.to_str(path, self.get(path)?)
    }

    /// The bytes of a hex string, in memory order.
    ///
    /// # Errors
    /// The field is missing, or not such a string.
    pub fn hex(&self, path: &str) -> Result<Vec<u8>> {
        self.to_bytes(path, self.get(path)?)
    }

    /// The bytes of a hex string of `2 * N` digits.
    ///
    /// # Errors
    /// As [`hex`](Self::hex), or the length differs.
    pub fn bytes<const N: usize>(&self, path: &str) -> Result<[u8; N]> {
        let bytes = self.hex(path)?;
        let len = bytes.len();
        bytes
            .try_into()
            .map_err(|_| self.wrong(path, &format!("{len} bytes, expected {N}")))
    }

    /// A list of hex strings.
    ///
    /// # Errors
    /// The field is missing, or not such a list.
    pub fn hexes(&self, path: &str) -> Result<Vec<Vec<u8>>> {
        let list = self.list(path)?.iter();
        list.map(|value| self.to_bytes(path, value)).collect()
    }

    /// The object in a field.
    ///
    /// # Errors
    /// The field is missing, or not an object.
    pub fn row(&self, path: &str) -> Result<Row> {
        self.to_row(path, self.get(path)?)
    }

    /// A list of objects.
    ///
    /// # Errors
    /// The field is missing, or not such a list.
    pub fn rows(&self, path: &str) -> Result<Vec<Row>> {
        let list = self.list(path)?.iter().enumerate();
        list.map(|(index, value)| self.to_row(&format!("{path}.{index}"), value))
            .collect()
    }

    fn find(&self, path: &str) -> Option<&Value> {
        self.value.pointer(&pointer(path))
    }

    fn get(&self, path: &str) -> Result<&Value> {
        self.find(path).ok_or_else(|| self.wrong(path, "missing"))
    }

    fn list(&self, path: &str) -> Result<&Vec<Value>> {
        let value = self.get(path)?;
        value
            .as_array()
            .ok_or_else(|| self.wrong(path, &format!("expected a list, found {value}")))
    }

    fn to_int<T: TryFrom<i128>>(&self, path: &str, value: &Value) -> Result<T> {
        let int = value.as_u64().map(i128::from);
        int.or_else(|| value.as_i64().map(i128::from))
            .and_then(|int| T::try_from(int).ok())
            .ok_or_else(|| {
                let kind = std::any::type_name::<T>();
                self.wrong(path, &format!("expected a number ({kind}), found {value}"))
            })
    }

    fn to_str<'a>(&self, path: &str, value: &'a Value) -> Result<&'a str> {
        value
            .as_str()
            .ok_or_else(|| self.wrong(path, &format!("expected a string, found {value}")))
    }

    fn to_bytes(&self, path: &str, value: &Value) -> Result<Vec<u8>> {
        let text = self.to_str(path, value)?;
        from_hex(text).ok_or_else(|| self.wrong(path, &format!("expected hex, found {text:?}")))
    }

    fn to_row(&self, path: &str, value: &Value) -> Result<Row> {
        if !value.is_object() {
            return Err(self.wrong(path, &format!("expected an object, found {value}")));
        }
        Ok(Row {
            place: format!("{} {path}", self.place).into(),
            value: value.clone(),
        })
    }

    fn wrong(&self, path: &str, what: &str) -> VectorError {
        VectorError(format!("{}: field {path:?}: {what}", self.place))
    }
}

fn pointer(path: &str) -> String {
    format!("/{}", path.replace('.', "/"))
}

/// The bytes that a string of hex digits stands for; `None` if it is not one.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let (pairs, odd) = text.as_bytes().as_chunks::<2>();
    if !odd.is_empty() {
        return None;
    }
    let byte = |[high, low]: &[u8; 2]| Some((digit(high)? << 4 | digit(low)?) as u8);
    pairs.iter().map(byte).collect()
}

/// The hex digits of `bytes`, in memory order.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(line: &str) -> Row {
        Row::parse("file:7", line).expect("a row")
    }

    #[test]
    fn fields_are_read_by_path() {
        let row = row(
            r#"{"a":{"b":18446744073709551615,"n":null,"m":-2},"h":"00fF","l":["","01"],"i":[1,2],"o":[{"x":3}]}"#,
        );
        assert_eq!(row.int::<u64>("a.b").expect("fits"), u64::MAX);
        assert_eq!(row.int::<i32>("a.m").expect("fits"), -2);
        assert_eq!(row.opt::<u8>("a.n").expect("null"), None);
        assert_eq!(row.bytes::<2>("h").expect("two bytes"), [0, 0xff]);
        assert_eq!(row.hexes("l").expect("a list"), [vec![], vec![1]]);
        assert_eq!(row.ints::<u8>("i").expect("a list"), [1, 2]);
        let inner = &row.rows("o").expect("objects")[0];
        assert_eq!(inner.int::<u8>("x").expect("a number"), 3);
        assert_eq!(inner.place(), "file:7 o.0");
        assert!(row.has("a.n") && !row.has("a.z"));
        let other = row.with("a.b", 1.into()).expect("there");
        assert_eq!(other.int::<u8>("a.b").expect("set"), 1);
        assert_eq!(to_hex(&[0, 0xff]), "00ff");
    }

    #[test]
    fn errors_say_where_and_what() {
        let row = row(r#"{"a":{"b":300},"h":"0g","n":null}"#);
        let message = |error: VectorError| error.to_string();
        assert_eq!(
            message(row.int::<u8>("a.b").expect_err("too big")),
            "file:7: field \"a.b\": expected a number (u8), found 300"
        );
        assert_eq!(
            message(row.hex("h").expect_err("no hex")),
            "file:7: field \"h\": expected hex, found \"0g\""
        );
        assert_eq!(
            message(row.str("a.c").expect_err("missing")),
            "file:7: field \"a.c\": missing"
        );
        assert!(row.int::<u8>("n").is_err() && row.with("a.c", 1.into()).is_err());
        assert!(message(Row::parse("f:1", "[]").expect_err("a list")).starts_with("f:1: "));
        let missing = Recording::new("no-such-folder").load("no-such-file");
        let message = message(missing.expect_err("missing"));
        assert!(message.contains("no-such-file") && message.contains(FOLDER_VARIABLE));
    }

    #[test]
    fn a_tally_is_compared_where_there_is_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let recording = Recording::new(folder.path());
        let counted = BTreeMap::from([("case".to_owned(), 3)]);
        recording.check_tally("test", &counted).expect("no tally");
        let tally = |text: &str| std::fs::write(folder.path().join(TALLY), text).expect("written");
        tally(r#"{"test":{"case":3}}"#);
        recording.check_tally("test", &counted).expect("the same");
        for other in [
            r#"{"test":{"case":4}}"#,
            r#"{"test":{"case":3,"new":1}}"#,
            "{}",
            "[]",
        ] {
            tally(other);
            let error = recording.check_tally("test", &counted);
            assert!(error.is_err(), "{other}: not noticed");
        }
        std::fs::write(folder.path().join("file"), "\n").expect("written");
        assert!(recording.load("file").is_err(), "no rows");
        assert!(!recordings().expect("tests/data").is_empty());
    }
}
