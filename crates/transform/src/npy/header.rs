//! The dictionary in the header of a `.npy` file.

use crate::array::Dtype;

/// The limit of NumPy.
const MOST_EXTENTS: usize = 64;

/// The contents of the header.
#[derive(Debug, PartialEq, Eq)]
pub struct NpyHeader {
    pub dtype: Dtype,
    pub swapped: bool,
    pub fortran: bool,
    pub shape: Vec<usize>,
}

/// Parses the dictionary. An error is the second half of a sentence.
pub fn parse(text: &[u8]) -> Result<NpyHeader, String> {
    let text = str::from_utf8(text).map_err(|_| "it is not text".to_string())?;
    let mut rest = DictParser(text);
    let (mut kind, mut fortran, mut shape) = (None, None, None);
    rest.expect('{')?;
    while !rest.take('}') {
        let key = rest.quoted()?;
        rest.expect(':')?;
        let new = match key {
            "descr" => kind.replace(rest.kind()?).is_none(),
            "fortran_order" => fortran.replace(rest.truth()?).is_none(),
            "shape" => shape.replace(rest.tuple()?).is_none(),
            _ => return Err(format!("{key:?} is not a key of a .npy header")),
        };
        if !new {
            return Err(format!("the key {key:?} appears twice"));
        }
        if !rest.take(',') {
            rest.expect('}')?;
            break;
        }
    }
    if !rest.0.trim().is_empty() {
        return Err("something follows the dictionary".into());
    }
    let (dtype, swapped) = kind.ok_or("'descr' is missing")?;
    let fortran = fortran.ok_or("'fortran_order' is missing")?;
    let shape = shape.ok_or("'shape' is missing")?;
    Ok(NpyHeader { dtype, swapped, fortran, shape })
}

/// The rest of the dictionary.
struct DictParser<'a>(&'a str);

impl<'a> DictParser<'a> {
    fn take(&mut self, token: char) -> bool {
        self.0 = self.0.trim_start();
        match self.0.strip_prefix(token) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: char) -> Result<(), String> {
        if self.take(token) {
            return Ok(());
        }
        let found: String = self.0.chars().take(12).collect();
        Err(format!("{token:?} is expected before {found:?}"))
    }

    fn quoted(&mut self) -> Result<&'a str, String> {
        let quote = if self.take('"') { '"' } else { '\'' };
        if quote == '\'' {
            self.expect('\'')?;
        }
        let (text, rest) = self.0.split_once(quote).ok_or("a quote is not closed")?;
        self.0 = rest;
        Ok(text)
    }

    fn truth(&mut self) -> Result<bool, String> {
        self.0 = self.0.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.0.strip_prefix(word) {
                self.0 = rest;
                return Ok(value);
            }
        }
        Err("'fortran_order' is neither True nor False".into())
    }

    fn kind(&mut self) -> Result<(Dtype, bool), String> {
        self.0 = self.0.trim_start();
        if self.0.starts_with('[') {
            return Err("it has named fields; save plain numbers".into());
        }
        kind(self.quoted()?)
    }

    fn tuple(&mut self) -> Result<Vec<usize>, String> {
        let mut shape = Vec::new();
        self.expect('(')?;
        while !self.take(')') {
            shape.push(self.extent()?);
            if shape.len() > MOST_EXTENTS {
                return Err(format!("it has more than {MOST_EXTENTS} extents"));
            }
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(shape)
    }

    fn extent(&mut self) -> Result<usize, String> {
        self.0 = self.0.trim_start();
        let digits = self.0.len() - self.0.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = self.0.split_at(digits);
        // Python 2 wrote long numbers as 10L.
        self.0 = rest.strip_prefix('L').unwrap_or(rest);
        number.parse().map_err(|_| format!("{number:?} is not an extent"))
    }
}

/// Parses a type such as `<f4`. Returns whether to swap its bytes.
fn kind(descr: &str) -> Result<(Dtype, bool), String> {
    let swapped = match descr.chars().next() {
        Some('<') => cfg!(target_endian = "big"),
        Some('>') => cfg!(target_endian = "little"),
        Some('|' | '=') => false,
        _ => return Err(format!("dtype {descr:?} is unknown")),
    };
    let dtype = match &descr[1..] {
        // Booleans are the bytes 0 and 1.
        "u1" | "b1" => Dtype::Uint8,
        "i1" => Dtype::Int8,
        "i2" => Dtype::Int16,
        "u2" => Dtype::Uint16,
        "i4" => Dtype::Int32,
        "u4" => Dtype::Uint32,
        "i8" => Dtype::Int64,
        "u8" => Dtype::Uint64,
        "f2" => Dtype::Float16,
        "f4" => Dtype::Float32,
        "f8" => Dtype::Float64,
        "O" => {
            return Err("it holds Python objects, which are never unpickled; save numbers".into());
        }
        _ => return Err(format!("dtype {descr:?} is not one of bool, int, uint and float")),
    };
    Ok((dtype, swapped))
}
