//! Values given on the command line: `--set KEY=VALUE` and `--sweep KEY=V1,V2,...`.
//!
//! Both are written into the file's table before it is checked. A key is a dotted path; an element
//! of an array (`[[cluster.tier]]`, `[[policy]]`) is addressed by its index or its name.

use belady_control::policy::PolicyKind;
use toml::{Table, Value};

use super::ScenarioError;
use super::schema::nearest;

/// One value that overrides the scenario file.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    key: String,
    text: String,
    value: Value,
}

/// One key and the values it takes in turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    values: Vec<Set>,
}

impl Set {
    /// Parses `KEY=VALUE`. The value is TOML; a value that is not valid TOML is a string, so that
    /// `cluster.compute=100 MB/s` needs no quotes.
    ///
    /// # Errors
    /// If there is no key or no value.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let (key, value) = split_argument(text)?;
        Ok(Self::new(key, value))
    }

    fn new(key: &str, text: &str) -> Self {
        let value = toml::from_str::<Table>(&format!("value = {text}"))
            .ok()
            .filter(|table| table.len() == 1)
            .and_then(|mut table| table.remove("value"))
            .unwrap_or_else(|| Value::String(text.to_owned()));
        Self { key: key.to_owned(), text: text.to_owned(), value }
    }

    /// Returns the key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the value as it was typed.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn apply(&self, root: &mut Table) -> Result<(), ScenarioError> {
        if self.key.starts_with("policy.") && !root.contains_key("policy") {
            // A file without `[[policy]]` runs all policies: list them, so that one of them can be
            // given an option.
            root.insert("policy".to_owned(), all_policies());
        }
        let (parents, last) = match self.key.rsplit_once('.') {
            Some((parents, last)) => (parents.split('.').collect(), last),
            None => (Vec::new(), self.key.as_str()),
        };
        let mut table = root;
        let mut path = String::new();
        let mut parts = parents.into_iter();
        while let Some(part) = parts.next() {
            path = if path.is_empty() { part.to_owned() } else { format!("{path}.{part}") };
            let inner = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
            table = match inner {
                Value::Table(inner) => inner,
                Value::Array(elements) => {
                    let Some(element) = parts.next() else {
                        let index = find(elements, &path, last)?;
                        elements[index] = self.value.clone();
                        return Ok(());
                    };
                    let index = find(elements, &path, element)?;
                    path = format!("{path}.{element}");
                    elements[index].as_table_mut().ok_or_else(|| has_no_keys(&path))?
                }
                _ => return Err(has_no_keys(&path)),
            };
        }
        table.insert(last.to_owned(), self.value.clone());
        Ok(())
    }
}

fn has_no_keys(path: &str) -> ScenarioError {
    ScenarioError::invalid(path, "is a value, not a table; it has no keys")
}

fn all_policies() -> Value {
    let entry = |kind: PolicyKind| {
        Value::Table(Table::from_iter([("name".to_owned(), Value::String(kind.name().to_owned()))]))
    };
    Value::Array(PolicyKind::ALL.into_iter().map(entry).collect())
}

/// Returns the element that `part` addresses: an index, a label, or a name that only one has.
fn find(elements: &[Value], path: &str, part: &str) -> Result<usize, ScenarioError> {
    if let Ok(index) = part.parse::<usize>() {
        return (index < elements.len()).then_some(index).ok_or_else(|| {
            ScenarioError::invalid(
                format!("{path}.{part}"),
                format!("does not exist: there are {} of `{path}`, counted from 0", elements.len()),
            )
        });
    }
    let text = |element: &Value, key: &str| {
        element.get(key).and_then(Value::as_str).map(str::to_owned).unwrap_or_default()
    };
    let called = |key: &str| -> Vec<usize> {
        (0..elements.len()).filter(|&index| text(&elements[index], key) == part).collect()
    };
    let (by_label, by_name) = (called("label"), called("name"));
    match (by_label.as_slice(), by_name.as_slice()) {
        ([index, ..], _) | ([], [index]) => Ok(*index),
        ([], []) => {
            let names: Vec<String> = elements.iter().map(|element| text(element, "name")).collect();
            let hint = nearest(part, names.iter().map(String::as_str))
                .filter(|(name, _)| !name.is_empty())
                .map(|(name, _)| format!("; did you mean `{path}.{name}`?"));
            Err(ScenarioError::invalid(
                format!("{path}.{part}"),
                format!("does not exist{}", hint.unwrap_or_default()),
            ))
        }
        ([], several) => Err(ScenarioError::invalid(
            format!("{path}.{part}"),
            format!("is the name of {} elements; use a label or an index", several.len()),
        )),
    }
}

impl Sweep {
    /// Parses `KEY=V1,V2,...`; commas inside brackets and quotes do not separate.
    ///
    /// # Errors
    /// If there is no key, or an empty value.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let (key, list) = split_argument(text)?;
        let values: Vec<Set> =
            split_list(list).into_iter().map(|value| Set::new(key, value)).collect();
        if values.iter().any(|set| set.text.is_empty()) {
            let reason = "has an empty value; write KEY=V1,V2,...";
            return Err(ScenarioError::Argument { text: text.to_owned(), reason });
        }
        Ok(Self { values })
    }

    /// Returns the key.
    pub fn key(&self) -> &str {
        &self.values[0].key
    }

    /// Returns the values, in order.
    pub fn values(&self) -> &[Set] {
        &self.values
    }

    /// Returns every combination of the sweeps' values, the last sweep changing fastest; one empty
    /// combination where there is no sweep.
    pub fn combinations(sweeps: &[Self]) -> Vec<Vec<Set>> {
        sweeps.iter().fold(vec![Vec::new()], |combinations, sweep| {
            combinations
                .iter()
                .flat_map(|sets| {
                    sweep.values.iter().map(|value| {
                        let mut sets = sets.clone();
                        sets.push(value.clone());
                        sets
                    })
                })
                .collect()
        })
    }
}

fn split_argument(text: &str) -> Result<(&str, &str), ScenarioError> {
    let refuse = |reason| ScenarioError::Argument { text: text.to_owned(), reason };
    let (key, value) =
        text.split_once('=').ok_or_else(|| refuse("is not of the form KEY=VALUE"))?;
    let key = key.trim();
    if key.split('.').any(|part| part.trim().is_empty()) {
        return Err(refuse("does not start with a key such as cluster.nodes"));
    }
    let value = value.trim();
    if value.is_empty() {
        return Err(refuse("has no value after the `=`"));
    }
    Ok((key, value))
}

fn split_list(list: &str) -> Vec<&str> {
    let (mut depth, mut quote, mut start) = (0_usize, None, 0);
    let mut parts = Vec::new();
    for (at, c) in list.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                parts.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(list[start..].trim());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(text: &str) -> Vec<String> {
        let sweep = Sweep::parse(text).unwrap();
        sweep.values().iter().map(|set| set.text().to_owned()).collect()
    }

    #[test]
    fn values_are_toml_and_else_strings() {
        assert_eq!(Set::parse("a.b=4").unwrap().value, Value::Integer(4));
        assert_eq!(Set::parse("a=true").unwrap().value, Value::Boolean(true));
        assert_eq!(Set::parse("a = 64 GB").unwrap().value, Value::String("64 GB".into()));
        assert_eq!(Set::parse("a=per-thread").unwrap().value, Value::String("per-thread".into()));
        assert!(Set::parse("a=[[2, \"100 MB/s\"]]").unwrap().value.is_array());
        // One argument sets one key, whatever it contains.
        assert!(Set::parse("a=1\nb = 2").unwrap().value.is_str());
    }

    #[test]
    fn lists_split_outside_of_brackets_and_quotes() {
        assert_eq!(sweep("n=1, 2,4"), ["1", "2", "4"]);
        assert_eq!(sweep("n=\"a,b\",c"), ["\"a,b\"", "c"]);
        assert_eq!(sweep("n=[[1, \"2 MB/s\"]],[[3, \"4 MB/s\"]]").len(), 2);
    }

    #[test]
    fn broken_arguments_are_refused() {
        for text in ["", "a", "=1", "a..b=1", "a=", ".=1", "a.=1"] {
            assert!(Set::parse(text).is_err(), "{text}");
            assert!(Sweep::parse(text).is_err(), "{text}");
        }
        assert!(Sweep::parse("a=1,,2").is_err());
    }

    #[test]
    fn several_sweeps_make_a_grid() {
        let sweeps = [Sweep::parse("a=1,2").unwrap(), Sweep::parse("b=x,y,z").unwrap()];
        let grid = Sweep::combinations(&sweeps);
        assert_eq!(grid.len(), 6);
        assert_eq!((grid[1][0].text(), grid[1][1].text()), ("1", "y"));
        assert_eq!(Sweep::combinations(&[]), [Vec::new()]);
    }
}
