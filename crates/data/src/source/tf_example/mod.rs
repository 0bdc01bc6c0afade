//! `tf.train.Example`: what most TFRecord files hold in their records.
//!
//! ```text
//! Example { Features features = 1 }        Features { map<string, Feature> feature = 1 }
//! Feature { BytesList = 1 | FloatList = 2 | Int64List = 3 }    each: repeated value = 1
//! ```
//!
//! Hand-written because these five messages do not justify a protocol-buffer crate, and because
//! only numbers are copied and only requested features are parsed. By the rules of protocol
//! buffers, unknown fields are skipped, numbers may be packed or not, and of repeated entries the
//! last one counts.

use std::fmt;

/// One feature of an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature<'a> {
    /// Its name.
    pub name: &'a str,
    body: &'a [u8],
}

/// The values of a feature.
#[derive(Clone, Debug, PartialEq)]
pub enum Values<'a> {
    /// A `BytesList`.
    Bytes(Vec<&'a [u8]>),
    /// A `FloatList`.
    Floats(Vec<f32>),
    /// An `Int64List`.
    Ints(Vec<i64>),
}

/// Why bytes are not a `tf.train.Example`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a tf.train.Example: {0}")]
pub struct NoExample(ExampleFlaw);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExampleFlaw {
    BreaksOff,
    LongNumber,
    Kind(u8),
    Type,
    Name,
}

impl fmt::Display for ExampleFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BreaksOff => f.write_str("it ends within a field"),
            Self::LongNumber => f.write_str("it has a number of more than 64 bits"),
            Self::Kind(kind) => write!(f, "it has a field of the unknown wire type {kind}"),
            Self::Type => f.write_str("one of its fields has another type"),
            Self::Name => f.write_str("the name of a feature is not UTF-8"),
        }
    }
}

/// Returns the features of an example in their order; of two with one name the later one counts.
///
/// # Errors
///
/// If the bytes are not a `tf.train.Example`.
pub fn features(example: &[u8]) -> Result<Vec<Feature<'_>>, NoExample> {
    let mut found = Vec::new();
    for features in ProtoFields(example).messages(1) {
        for entry in ProtoFields(features?).messages(1) {
            found.push(Feature::of(entry?)?);
        }
    }
    Ok(found)
}

/// Returns the feature of this name.
pub fn find<'a>(features: &[Feature<'a>], name: &str) -> Option<Feature<'a>> {
    features.iter().rev().find(|feature| feature.name == name).copied()
}

impl<'a> Feature<'a> {
    /// Parses an entry of the map.
    fn of(entry: &'a [u8]) -> Result<Self, NoExample> {
        let mut feature = Self { name: "", body: &[] };
        for field in ProtoFields(entry) {
            match field? {
                (1, ProtoField::Bytes(name)) => {
                    feature.name =
                        str::from_utf8(name).map_err(|_| NoExample(ExampleFlaw::Name))?;
                }
                (2, ProtoField::Bytes(body)) => feature.body = body,
                (1 | 2, _) => return Err(NoExample(ExampleFlaw::Type)),
                _ => {}
            }
        }
        Ok(feature)
    }

    /// Parses its values; a feature without a list holds no bytes.
    ///
    /// # Errors
    ///
    /// If the bytes are not a `Feature`.
    pub fn values(&self) -> Result<Values<'a>, NoExample> {
        let mut values = Values::Bytes(Vec::new());
        for field in ProtoFields(self.body) {
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
            let ProtoField::Bytes(body) = field else { return Err(NoExample(ExampleFlaw::Type)) };
            list.extend(body)?;
            values = list;
        }
        Ok(values)
    }
}

impl<'a> Values<'a> {
    /// Adds the values of a list.
    fn extend(&mut self, list: &'a [u8]) -> Result<(), NoExample> {
        for field in ProtoFields(list) {
            match (field?, &mut *self) {
                ((1, ProtoField::Bytes(value)), Self::Bytes(values)) => values.push(value),
                ((1, ProtoField::Word(value)), Self::Floats(values)) => {
                    values.push(f32::from_le_bytes(value));
                }
                ((1, ProtoField::Number(value)), Self::Ints(values)) => {
                    values.push(value.cast_signed());
                }
                ((1, ProtoField::Bytes(packed)), Self::Floats(values)) => {
                    let (words, []) = packed.as_chunks() else {
                        return Err(NoExample(ExampleFlaw::BreaksOff));
                    };
                    values.extend(words.iter().map(|&word| f32::from_le_bytes(word)));
                }
                ((1, ProtoField::Bytes(mut packed)), Self::Ints(values)) => {
                    while !packed.is_empty() {
                        values.push(number(&mut packed)?.cast_signed());
                    }
                }
                ((1, _), _) => return Err(NoExample(ExampleFlaw::Type)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A field of a message.
enum ProtoField<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Word([u8; 4]),
    Long,
}

/// The fields of a message, with their numbers.
struct ProtoFields<'a>(&'a [u8]);

impl<'a> ProtoFields<'a> {
    /// Returns the messages in the fields with this number.
    fn messages(self, wanted: u64) -> impl Iterator<Item = Result<&'a [u8], NoExample>> {
        self.filter_map(move |field| match field {
            Ok((number, _)) if number != wanted => None,
            Ok((_, ProtoField::Bytes(message))) => Some(Ok(message)),
            Ok(_) => Some(Err(NoExample(ExampleFlaw::Type))),
            Err(error) => Some(Err(error)),
        })
    }

    fn field(&mut self) -> Result<(u64, ProtoField<'a>), NoExample> {
        let tag = number(&mut self.0)?;
        let field = match (tag & 7) as u8 {
            0 => ProtoField::Number(number(&mut self.0)?),
            1 => {
                self.take(8)?;
                ProtoField::Long
            }
            2 => {
                let length = number(&mut self.0)?;
                ProtoField::Bytes(self.take(length)?)
            }
            5 => ProtoField::Word(
                self.take(4)?.try_into().map_err(|_| NoExample(ExampleFlaw::BreaksOff))?,
            ),
            kind => return Err(NoExample(ExampleFlaw::Kind(kind))),
        };
        Ok((tag >> 3, field))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], NoExample> {
        let length = usize::try_from(length).ok().filter(|&length| length <= self.0.len());
        let (taken, rest) = self.0.split_at(length.ok_or(NoExample(ExampleFlaw::BreaksOff))?);
        self.0 = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for ProtoFields<'a> {
    type Item = Result<(u64, ProtoField<'a>), NoExample>;

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

/// Parses a varint: groups of seven bits, the lowest first.
fn number(bytes: &mut &[u8]) -> Result<u64, NoExample> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(NoExample(ExampleFlaw::BreaksOff))?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        // The tenth group has one bit.
        if shift == 63 && bits > 1 {
            break;
        }
        value |= bits << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(NoExample(ExampleFlaw::LongNumber))
}

#[cfg(test)]
mod tests;
