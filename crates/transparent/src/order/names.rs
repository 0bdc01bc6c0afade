//! Names of files as small numbers.

use std::collections::HashMap;
use std::sync::Arc;

/// A file's name below the dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub u32);

#[derive(Debug, Default)]
pub struct Names {
    numbers: HashMap<Arc<[u8]>, Name>,
    texts: Vec<Arc<[u8]>>,
}

impl Names {
    pub fn number(&mut self, text: &[u8]) -> Name {
        if let Some(&name) = self.numbers.get(text) {
            return name;
        }
        let name = Name(self.texts.len() as u32);
        let text: Arc<[u8]> = text.into();
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, name);
        name
    }

    /// Of a name that came from here.
    pub fn text(&self, name: Name) -> &[u8] {
        &self.texts[name.0 as usize]
    }
}
