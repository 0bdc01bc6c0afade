//! Where the job's key comes from: the user gives it, or rank 0 draws it and distributes it at a
//! rendezvous that is private to the job.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::launcher::Variables;
use super::{Rendezvous, RendezvousAddress, RendezvousError};
use crate::JobKey;
use crate::rendezvous::agree::drawn;

/// Longer files hold no key.
const LONGEST: u64 = 4096;

/// Reads the key from a file that no other user may read.
pub fn read_file(path: &Path) -> Result<JobKey, RendezvousError> {
    let shown = path.display();
    let cannot = |error: std::io::Error| {
        RendezvousError::Other(format!("cannot read the key file {shown}: {error}"))
    };
    let file = File::open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if !metadata.is_file() {
        return Err(RendezvousError::Other(format!("the key file {shown} is not a regular file")));
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(RendezvousError::Other(format!(
            "other users may read the key file {shown} (mode {mode:o}): run `chmod 600 {shown}`, \
             and make a new key if one of them may have read it"
        )));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(cannot)?;
    JobKey::from_text(&text).map_err(|error| {
        RendezvousError::Other(format!("the key file {shown} holds no key: {error}"))
    })
}

/// Returns the key of the environment: `BELADY_KEY`, or the file `BELADY_KEY_FILE`.
pub fn given(variables: &Variables) -> Result<Option<JobKey>, RendezvousError> {
    let get = |name| variables.get(name).filter(|value| !value.trim().is_empty());
    match (get("BELADY_KEY"), get("BELADY_KEY_FILE")) {
        (Some(_), Some(_)) => Err(RendezvousError::Other(
            "both BELADY_KEY and BELADY_KEY_FILE are set: unset one of them".to_owned(),
        )),
        (Some(text), None) => JobKey::from_text(text)
            .map(Some)
            .map_err(|error| RendezvousError::Other(format!("BELADY_KEY holds no key: {error}"))),
        (None, Some(path)) => read_file(Path::new(path)).map(Some),
        (None, None) => Ok(None),
    }
}

/// Returns the error of a rendezvous over TCP without a key.
pub fn missing(place: &RendezvousAddress) -> RendezvousError {
    RendezvousError::Other(format!(
        "the rendezvous at {place} needs a key that all ranks share: set BELADY_KEY to the output \
         of `openssl rand -hex 32`, or BELADY_KEY_FILE to a file with it that only you can read"
    ))
}

/// Returns the key that rank 0 draws and distributes at a rendezvous that is private to the job.
pub fn handed_out(rendezvous: &dyn Rendezvous) -> Result<JobKey, RendezvousError> {
    let text = drawn(rendezvous, "key", || Ok(JobKey::random()?.to_text().into_bytes()))?;
    let text = String::from_utf8(text).unwrap_or_default();
    JobKey::from_text(&text)
        .map_err(|_| RendezvousError::Other("rank 0 distributed no key".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn sentence(outcome: Result<JobKey, RendezvousError>) -> String {
        outcome.unwrap_err().to_string()
    }

    #[test]
    fn a_key_file_that_other_users_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        assert!(sentence(read_file(&path)).contains("cannot read the key file"));
        let key = JobKey::random().unwrap();
        std::fs::write(&path, key.to_text() + "\n").unwrap();
        for mode in [0o644, 0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let refused = sentence(read_file(&path));
            assert!(refused.contains("other users may read") && refused.contains("chmod 600"));
            assert!(!refused.contains(&key.to_text()));
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(read_file(&path).unwrap() == key);
        std::fs::write(&path, "hunter2").unwrap();
        let refused = sentence(read_file(&path));
        assert!(refused.contains("holds no key") && !refused.contains("hunter2"));
        assert!(sentence(read_file(directory.path())).contains("is not a regular file"));
    }

    #[test]
    fn keys_from_the_environment() {
        let key = JobKey::random().unwrap();
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
