//! Where the job's key comes from: it is given, or rank 0 draws it and hands it out where the meeting
//! is private by itself.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::environment::Variables;
use super::{Meet, MeetError, Place};
use crate::Key;
use crate::agree::drawn;

/// Longer files hold no key.
const LONGEST: u64 = 4096;

/// The key in a file that nobody else may read.
pub fn read_file(path: &Path) -> Result<Key, MeetError> {
    let shown = path.display();
    let cannot = |error: std::io::Error| {
        MeetError::Other(format!("cannot read the key file {shown}: {error}"))
    };
    let file = File::open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if !metadata.is_file() {
        return Err(MeetError::Other(format!("the key file {shown} is no file")));
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(MeetError::Other(format!(
            "others may read the key file {shown} (its mode is {mode:o}): draw a new key if they may \
             have, and `chmod 600 {shown}`"
        )));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(cannot)?;
    Key::from_text(&text)
        .map_err(|error| MeetError::Other(format!("the key file {shown} holds no key: {error}")))
}

/// The key that the environment gives: `BELADY_KEY`, or the file `BELADY_KEY_FILE`.
pub fn given(variables: &Variables) -> Result<Option<Key>, MeetError> {
    let get = |name| variables.get(name).filter(|value| !value.trim().is_empty());
    match (get("BELADY_KEY"), get("BELADY_KEY_FILE")) {
        (Some(_), Some(_)) => Err(MeetError::Other(
            "both BELADY_KEY and BELADY_KEY_FILE are set: unset one of them".to_owned(),
        )),
        (Some(text), None) => Key::from_text(text)
            .map(Some)
            .map_err(|error| MeetError::Other(format!("BELADY_KEY holds no key: {error}"))),
        (None, Some(path)) => read_file(Path::new(path)).map(Some),
        (None, None) => Ok(None),
    }
}

/// What to tell whoever wants to meet over TCP without a key.
pub fn missing(place: &Place) -> MeetError {
    MeetError::Other(format!(
        "meeting at {place} needs a key that all ranks share: set BELADY_KEY to the output of \
         `openssl rand -hex 32`, or BELADY_KEY_FILE to a file with it that only you can read"
    ))
}

/// The key that rank 0 draws and hands out at a meeting that nobody else hears.
pub fn handed_out(meet: &dyn Meet) -> Result<Key, MeetError> {
    let text = drawn(meet, "key", || Ok(Key::random()?.to_text().into_bytes()))?;
    let text = String::from_utf8(text).unwrap_or_default();
    Key::from_text(&text).map_err(|_| MeetError::Other("rank 0 has handed out no key".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn sentence(outcome: Result<Key, MeetError>) -> String {
        outcome.unwrap_err().to_string()
    }

    #[test]
    fn a_key_file_is_ours_alone_or_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        assert!(sentence(read_file(&path)).contains("cannot read the key file"));
        let key = Key::random().unwrap();
        std::fs::write(&path, key.to_text() + "\n").unwrap();
        for mode in [0o644, 0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let refused = sentence(read_file(&path));
            assert!(refused.contains("others may read") && refused.contains("chmod 600"));
            assert!(!refused.contains(&key.to_text()));
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(read_file(&path).unwrap() == key);
        std::fs::write(&path, "hunter2").unwrap();
        let refused = sentence(read_file(&path));
        assert!(refused.contains("holds no key") && !refused.contains("hunter2"));
        assert!(sentence(read_file(directory.path())).contains("is no file"));
    }

    #[test]
    fn keys_from_the_environment() {
        let key = Key::random().unwrap();
        let with = |name: &str, value: &str| Variables::from([(name.into(), value.into())]);
        assert!(given(&with("BELADY_KEY", &key.to_text())).unwrap() == Some(key));
        assert!(given(&with("BELADY_KEY", "")).unwrap().is_none());
        let refused = given(&with("BELADY_KEY", "short")).unwrap_err().to_string();
        assert!(refused.contains("BELADY_KEY holds no key"));
        let mut both = with("BELADY_KEY", "a");
        both.extend(with("BELADY_KEY_FILE", "b"));
        assert!(given(&both).unwrap_err().to_string().contains("unset one"));
    }
}
