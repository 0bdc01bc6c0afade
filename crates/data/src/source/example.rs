//! `tf.train.Example`: what most TFRecord files hold in their records.
//!
//! ```text
//! Example { Features features = 1 }        Features { map<string, Feature> feature = 1 }
//! Feature { BytesList = 1 | FloatList = 2 | Int64List = 3 }    each: repeated value = 1
//! ```
//!
//! These five messages are all there is, so they are read here, by the rules of protocol buffers:
//! what is not known is skipped, numbers may be packed or not, and of what comes twice the last
//! one counts. Nothing is copied but numbers; a feature that nobody asks for is not looked into.

use std::fmt;

/// One feature of an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature<'a> {
    pub name: &'a str,
    body: &'a [u8],
}

/// What a feature holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Values<'a> {
    Bytes(Vec<&'a [u8]>),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
}

/// Why bytes are no `tf.train.Example`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no tf.train.Example: {0}")]
pub struct NoExample(Reason);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    BreaksOff,
    LongNumber,
    Kind(u8),
    Type,
    Name,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BreaksOff => f.write_str("it breaks off in the middle of a field"),
            Self::LongNumber => f.write_str("it has a number of more than 64 bits"),
            Self::Kind(kind) => write!(f, "it has a field of the unknown kind {kind}"),
            Self::Type => f.write_str("one of its fields has another type there"),
            Self::Name => f.write_str("the name of a feature is not UTF-8"),
        }
    }
}

/// The features of an example, as they come; of two with one name the later one counts.
pub fn features(example: &[u8]) -> Result<Vec<Feature<'_>>, NoExample> {
    let mut found = Vec::new();
    for features in Fields(example).messages(1) {
        for entry in Fields(features?).messages(1) {
            found.push(Feature::of(entry?)?);
        }
    }
    Ok(found)
}

/// The feature of this name.
pub fn find<'a>(features: &[Feature<'a>], name: &str) -> Option<Feature<'a>> {
    features.iter().rev().find(|feature| feature.name == name).copied()
}

impl<'a> Feature<'a> {
    /// An entry of the map.
    fn of(entry: &'a [u8]) -> Result<Self, NoExample> {
        let mut feature = Self { name: "", body: &[] };
        for field in Fields(entry) {
            match field? {
                (1, Field::Bytes(name)) => {
                    feature.name = str::from_utf8(name).map_err(|_| NoExample(Reason::Name))?;
                }
                (2, Field::Bytes(body)) => feature.body = body,
                (1 | 2, _) => return Err(NoExample(Reason::Type)),
                _ => {}
            }
        }
        Ok(feature)
    }

    /// What it holds; a feature without a list holds no bytes.
    pub fn values(&self) -> Result<Values<'a>, NoExample> {
        let mut values = Values::Bytes(Vec::new());
        for field in Fields(self.body) {
            let (number, field) = field?;
            let mut list = match (number, values) {
                (1, Values::Bytes(list)) => Values::Bytes(list),
                (2, Values::Floats(list)) => Values::Floats(list),
                (3, Values::Ints(list)) => Values::Ints(list),
                (1, _) => Values::Bytes(Vec::new()),
                (2, _) => Values::Floats(Vec::new()),
                (3, _) => Values::Ints(Vec::new()),
                (_, list) => {
                    values = list;
                    continue;
                }
            };
            let Field::Bytes(body) = field else { return Err(NoExample(Reason::Type)) };
            list.extend(body)?;
            values = list;
        }
        Ok(values)
    }
}

impl<'a> Values<'a> {
    /// Adds the values of a list.
    fn extend(&mut self, list: &'a [u8]) -> Result<(), NoExample> {
        for field in Fields(list) {
            match (field?, &mut *self) {
                ((1, Field::Bytes(value)), Self::Bytes(values)) => values.push(value),
                ((1, Field::Word(value)), Self::Floats(values)) => {
                    values.push(f32::from_le_bytes(value));
                }
                ((1, Field::Number(value)), Self::Ints(values)) => {
                    values.push(value.cast_signed());
                }
                ((1, Field::Bytes(packed)), Self::Floats(values)) => {
                    let (words, []) = packed.as_chunks() else {
                        return Err(NoExample(Reason::BreaksOff));
                    };
                    values.extend(words.iter().map(|&word| f32::from_le_bytes(word)));
                }
                ((1, Field::Bytes(mut packed)), Self::Ints(values)) => {
                    while !packed.is_empty() {
                        values.push(number(&mut packed)?.cast_signed());
                    }
                }
                ((1, _), _) => return Err(NoExample(Reason::Type)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A field of a message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Word([u8; 4]),
    Long,
}

/// The fields of a message, with their numbers.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The messages in the field of this number.
    fn messages(self, wanted: u64) -> impl Iterator<Item = Result<&'a [u8], NoExample>> {
        self.filter_map(move |field| match field {
            Ok((number, _)) if number != wanted => None,
            Ok((_, Field::Bytes(message))) => Some(Ok(message)),
            Ok(_) => Some(Err(NoExample(Reason::Type))),
            Err(error) => Some(Err(error)),
        })
    }

    fn field(&mut self) -> Result<(u64, Field<'a>), NoExample> {
        let tag = number(&mut self.0)?;
        let field = match (tag & 7) as u8 {
            0 => Field::Number(number(&mut self.0)?),
            1 => {
                self.take(8)?;
                Field::Long
            }
            2 => {
                let length = number(&mut self.0)?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Word(self.take(4)?.try_into().map_err(|_| NoExample(Reason::BreaksOff))?),
            kind => return Err(NoExample(Reason::Kind(kind))),
        };
        Ok((tag >> 3, field))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], NoExample> {
        let length = usize::try_from(length).ok().filter(|&length| length <= self.0.len());
        let (taken, rest) = self.0.split_at(length.ok_or(NoExample(Reason::BreaksOff))?);
        self.0 = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Field<'a>), NoExample>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// A number in pieces of seven bits, the lowest first.
fn number(bytes: &mut &[u8]) -> Result<u64, NoExample> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(NoExample(Reason::BreaksOff))?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        // Of the tenth piece one bit is left.
        if shift == 63 && bits > 1 {
            break;
        }
        value |= bits << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(NoExample(Reason::LongNumber))
}

#[cfg(test)]
mod tests;
