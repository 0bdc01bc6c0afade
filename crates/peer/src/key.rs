//! The key of a job: a process that has it belongs to the job.

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

const LENGTH: usize = 32;

/// 32 secret bytes, the same on every node of a job. As a message, they are for another process of
/// the same user alone.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobKey([u8; LENGTH]);

/// Why a text is not a key, or no key can be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the variants mean")]
pub enum KeyError {
    #[error(
        "a job key is 64 hexadecimal digits, and this has {0} characters: make one with \
         `openssl rand -hex 32`"
    )]
    Length(usize),
    #[error(
        "a job key is 64 hexadecimal digits, and its character {0} is not one: make one with \
         `openssl rand -hex 32`"
    )]
    Digit(usize),
    #[error("the operating system provides no random numbers, which a job key needs")]
    NoRandom,
}

impl JobKey {
    /// Draws a new key.
    pub fn random() -> Result<Self, KeyError> {
        random().map(Self)
    }

    /// Reads a key from 64 hexadecimal digits; white space around them is ignored.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        let count = text.chars().count();
        let mut key = [0; LENGTH];
        for (at, digit) in text.chars().enumerate() {
            let value = digit.to_digit(16).ok_or(KeyError::Digit(at + 1))?;
            let byte = key.get_mut(at / 2).ok_or(KeyError::Length(count))?;
            *byte = *byte << 4 | value as u8;
        }
        if count == 2 * LENGTH { Ok(Self(key)) } else { Err(KeyError::Length(count)) }
    }

    /// Returns the secret as [`JobKey::from_text`] reads it: for other processes of the job, never
    /// for a log.
    pub fn to_text(&self) -> String {
        let halves = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        halves.filter_map(|half| char::from_digit(half.into(), 16)).collect()
    }

    pub(crate) fn mac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

/// Reveals nothing.
impl std::fmt::Debug for JobKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobKey(secret)")
    }
}

/// Returns unpredictable bytes from the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut numbers = [0; N];
    SystemRandom::new().fill(&mut numbers).map_err(|_| KeyError::NoRandom)?;
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text_form_and_is_never_shown() {
        let key = JobKey::random().unwrap();
        let text = key.to_text();
        assert_eq!(text.len(), 64);
        assert!(JobKey::from_text(&format!(" {}\n", text.to_uppercase())).unwrap() == key);
        assert!(JobKey::random().unwrap() != key);
        assert_eq!(format!("{key:?}"), "JobKey(secret)");
    }

    #[test]
    fn a_wrong_key_is_refused_in_a_sentence_that_does_not_repeat_it() {
        let digits = "ab".repeat(32);
        assert_eq!(JobKey::from_text(""), Err(KeyError::Length(0)));
        assert_eq!(JobKey::from_text(&digits[..63]), Err(KeyError::Length(63)));
        assert_eq!(JobKey::from_text(&format!("{digits}0")), Err(KeyError::Length(65)));
        assert_eq!(JobKey::from_text(&digits.replacen('b', "é", 1)), Err(KeyError::Digit(2)));
        assert!(!JobKey::from_text("hunter2").unwrap_err().to_string().contains("hunter2"));
    }
}
