//! What rank 0 says of a dataset before its listing follows.

use belady_data::source::SharedListing;

/// The length of every header: a receiver has to know in advance how many bytes arrive.
pub const LENGTH: usize = 4 << 10;

/// The contents of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListingHeader {
    Listed { length: usize, listed: SharedListing },
    Failed(String),
}

impl ListingHeader {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = match self {
            Self::Failed(sentence) => format!("failed\n{sentence}"),
            Self::Listed {
                length,
                listed: SharedListing { format, is_file, is_local, snapshot },
            } => {
                let snapshot = snapshot.as_deref().unwrap_or("-");
                format!("listed\n{length}\n{format}\n{is_file}\n{is_local}\n{snapshot}\n")
            }
        }
        .into_bytes();
        bytes.resize(LENGTH, 0);
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_end_matches(['\0', char::REPLACEMENT_CHARACTER]);
        if let Some(sentence) = text.strip_prefix("failed\n") {
            return Some(Self::Failed(sentence.to_owned()));
        }
        let mut lines = text.strip_prefix("listed\n")?.lines();
        let length = lines.next()?.parse().ok()?;
        let format = lines.next()?.parse().ok()?;
        let (is_file, is_local) = (lines.next()?.parse().ok()?, lines.next()?.parse().ok()?);
        let snapshot = Some(lines.next()?.to_owned()).filter(|name| name != "-");
        Some(Self::Listed { length, listed: SharedListing { format, is_file, is_local, snapshot } })
    }
}
