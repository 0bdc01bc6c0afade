//! Which keys exist. The list is read from the structs of `raw`, so that a key added there is known
//! here; policies know their options. An unknown key is answered with the most similar known one.

use std::borrow::Cow;
use std::fmt;

use belady_control::policy::PolicyKind;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::forward_to_deserialize_any;
use toml::{Table, Value};

use super::ScenarioError;
use super::raw::{
    RawCluster, RawDataset, RawPart, RawScenario, RawSource, RawThroughput, RawTier, RawTraining,
    RawWeights,
};

/// A table of the file and the keys it may have.
struct Section {
    path: &'static str,
    keys: Cow<'static, [&'static str]>,
}

fn sections() -> [Section; 10] {
    let section = |path, keys| Section { path, keys: Cow::Borrowed(keys) };
    [
        section("", keys_of::<RawScenario>()),
        section("dataset", keys_of::<RawDataset>()),
        section("training", keys_of::<RawTraining>()),
        section("training.weights", keys_of::<RawWeights>()),
        section("training.part", keys_of::<RawPart>()),
        section("cluster", keys_of::<RawCluster>()),
        section("cluster.preprocess", keys_of::<RawThroughput>()),
        section("cluster.source", keys_of::<RawSource>()),
        section("cluster.tier", keys_of::<RawTier>()),
        Section { path: "policy", keys: policy_keys() },
    ]
}

/// Returns the keys of `RawPolicy` and the options of all policies.
fn policy_keys() -> Cow<'static, [&'static str]> {
    let options = PolicyKind::all_option_names();
    ["name", "label"].into_iter().chain(options).collect()
}

pub fn refuse_unknown_keys(root: &Table) -> Result<(), ScenarioError> {
    for section in &sections() {
        let mut tables = vec![(String::new(), root)];
        for part in section.path.split('.').filter(|part| !part.is_empty()) {
            tables = tables.into_iter().flat_map(|(at, table)| inside(&at, table, part)).collect();
        }
        for (at, table) in tables {
            if let Some(key) = table.keys().find(|key| !section.keys.contains(&key.as_str())) {
                return Err(ScenarioError::UnknownKey {
                    key: join(&at, key),
                    nearest: nearest_key(section, &at, key),
                });
            }
        }
    }
    Ok(())
}

/// The table or tables under `part`, each with its path. An element of an array is
/// called by its name where it has one, as in `--set`.
fn inside<'a>(at: &str, table: &'a Table, part: &str) -> Vec<(String, &'a Table)> {
    let path = join(at, part);
    match table.get(part) {
        Some(Value::Table(inner)) => vec![(path, inner)],
        Some(Value::Array(elements)) => elements
            .iter()
            .enumerate()
            .filter_map(|(index, element)| {
                let inner = element.as_table()?;
                let name = inner.get("label").or(inner.get("name")).and_then(Value::as_str);
                Some((join(&path, name.unwrap_or(&index.to_string())), inner))
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// A sibling that looks alike; else the same key where it belongs (`dataset.epochs`
/// for `training.epochs`); else the sibling that looks least unlike.
fn nearest_key(section: &Section, at: &str, key: &str) -> String {
    let sibling = nearest(key, section.keys.iter().copied());
    let Some((sibling, likeness)) = sibling else { return at.to_owned() };
    if likeness < 0.75
        && let Some(home) = sections().iter().find(|section| section.keys.contains(&key))
    {
        return join(home.path, key);
    }
    join(at, sibling)
}

/// The most similar of the candidates, and how similar from 0 to 1.
pub fn nearest<'a>(
    text: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<(&'a str, f64)> {
    let text = text.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (candidate, strsim::normalized_damerau_levenshtein(&text, candidate)))
        .max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Returns the field names of a struct that derives `Deserialize`: the derived code passes them to
/// any deserializer, and this one stores them and fails.
fn keys_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut keys: &'static [&'static str] = &[];
    let _ = T::deserialize(FieldNames(&mut keys));
    keys
}

struct FieldNames<'a>(&'a mut &'static [&'static str]);

#[derive(Debug)]
struct NamesOnly;

impl fmt::Display for NamesOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("only the field names were asked for")
    }
}

impl std::error::Error for NamesOnly {}

impl de::Error for NamesOnly {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = NamesOnly;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, NamesOnly> {
        *self.0 = fields;
        Err(NamesOnly)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, NamesOnly> {
        Err(NamesOnly)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_from_the_structs() {
        assert_eq!(keys_of::<RawSource>(), ["link", "sharing", "readers", "throughput"]);
        assert!(sections().iter().all(|section| !section.keys.is_empty()));
    }
}
