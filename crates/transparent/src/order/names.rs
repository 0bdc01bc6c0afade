//! Small numbers for file names.

use std::collections::HashMap;
use std::sync::Arc;

/// The number of a file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u32);

/// Maps names to numbers and back.
#[derive(Debug, Default)]
pub struct NameTable {
    numbers: HashMap<Arc<[u8]>, NameId>,
    texts: Vec<Arc<[u8]>>,
}

impl NameTable {
    /// Returns the number of a name, and assigns one to a new name.
    pub fn number(&mut self, text: &[u8]) -> NameId {
        if let Some(&name) = self.numbers.get(text) {
            return name;
        }
        let name = NameId(self.texts.len() as u32);
        let text: Arc<[u8]> = text.into();
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, name);
        name
    }

    /// Returns the name of a number of this table.
    pub fn text(&self, name: NameId) -> &[u8] {
        &self.texts[name.0 as usize]
    }
}
