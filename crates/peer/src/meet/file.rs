//! A meeting by a directory that all ranks see, such as a home directory of a cluster.
//!
//! Rank 0 listens at a meeting point ([`point`]) and leaves a note in the directory that says where,
//! and has the job's key. Only the user may read it, so no key has to be given. The note appears as a
//! whole or not at all, and is removed in the end. One that was left behind by a process that was
//! killed leads nowhere: whoever follows it finds nobody there who has its key, and reads again until
//! there is a fresh one.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use belady_data::sync::Arc;
use rustix::fs::OFlags;

use super::point::{self, Directions, Guest, Host, Job, Trouble};
use super::{Meet, MeetError, Place, World, interface};
use crate::Key;

/// What rank 0 says where it is, in the job's own directory.
const NOTE: &str = "meeting";
/// How the names of jobs' own directories begin.
const OF_JOB: &str = "belady-";
const FIRST_LINE: &str = "belady meeting 2";
/// A note is far shorter.
const LONGEST: u64 = 4096;
/// Whoever lives answers within this.
const ALIVE: Duration = Duration::from_secs(5);

/// How to meet by a directory.
#[derive(Clone, Debug)]
pub struct Options {
    pub world: World,
    /// What the job is called: several may use one directory.
    pub job: String,
    /// If the user has one; else rank 0 draws it.
    pub key: Option<Key>,
    pub limit: Duration,
    /// Where rank 0 listens, if not at the address that others usually reach this machine by.
    pub listen: Option<IpAddr>,
}

/// Meets by a directory. Rank 0 makes it if it is not there.
pub fn meet(directory: &Path, options: Options) -> Result<Arc<dyn Meet>, MeetError> {
    let Options { world, job, key, limit, listen } = options;
    let own = of_job(directory, &job);
    let path = own.join(NOTE);
    let name_of_job = job.clone();
    let job = Job::new(world, job, limit);
    if world.rank != 0 {
        let name = format!("the directory {}", directory.display());
        let ask = Box::new(move || follow(&own, &path, key.as_ref()));
        return Ok(Arc::new(Guest::come(Directions { ask, may_change: true, name }, job)?));
    }
    make_private(&own)?;
    let key = key_of_job(&path, &job.name, key)?;
    let address = listen.unwrap_or_else(interface::usual);
    let name = format!("{address} (which {} says)", path.display());
    let mut host = Host::listen(&[(address, 0).into()], &name, key.clone(), job)?;
    // Everywhere is no place to come to.
    let reached = if address.is_unspecified() { interface::usual() } else { address };
    let place = Place::Point { host: reached.to_string(), port: host.address().port() };
    host.keep(Note::leave(path, &Left { place, key, job: one_line(&name_of_job) })?);
    Ok(Arc::new(host))
}

/// What a job's own directory is called in one that several may use.
fn of_job(directory: &Path, job: &str) -> PathBuf {
    directory.join(format!("{OF_JOB}{:016x}", xxhash_rust::xxh3::xxh3_64(job.as_bytes())))
}

/// What rank 0 leaves in a note.
#[derive(Clone, Debug)]
struct Left {
    place: Place,
    key: Key,
    /// What the job is called, to be shown.
    job: String,
}

/// A job's name as one line, not too long.
fn one_line(job: &str) -> String {
    job.chars().map(|it| if it.is_control() { '?' } else { it }).take(80).collect()
}

/// Where a job meets by a directory, and its key, for who asks from outside. Which job need not be said
/// where one runs, or for one that has no name. Notes of killed processes do not count.
pub fn find(directory: &Path, job: Option<&str>) -> Result<(Place, Key), MeetError> {
    let shown = directory.display();
    let cannot =
        |error: io::Error| MeetError::Other(format!("cannot look for jobs in {shown}: {error}"));
    if let Some(job) = job {
        let left = read(&of_job(directory, job).join(NOTE)).map_err(|error| {
            MeetError::Other(format!("job `{job}` does not meet in {shown}: {error}"))
        })?;
        return Ok((left.place, left.key));
    }
    let mut notes = vec![];
    for entry in std::fs::read_dir(directory).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(OF_JOB)) {
            notes.extend(read(&path.join(NOTE)).ok());
        }
    }
    if notes.len() > 1 {
        notes.retain(is_alive);
    }
    if let Some(unnamed) = notes.iter().position(|note| note.job.is_empty()) {
        notes = vec![notes.swap_remove(unnamed)];
    }
    match &notes[..] {
        [one] => Ok((one.place.clone(), one.key.clone())),
        [] => Err(MeetError::Other(format!(
            "no job of yours meets in {shown}: give the directory that its processes were told"
        ))),
        jobs => {
            let mut names: Vec<_> = jobs.iter().map(|note| format!("`{}`", note.job)).collect();
            names.sort();
            Err(MeetError::Other(format!(
                "{} jobs meet in {shown}, {}: set BELADY_JOB to the name of one of them",
                names.len(),
                names.join(", ")
            )))
        }
    }
}

fn is_alive(Left { place, key, .. }: &Left) -> bool {
    point::ask(place, key, "", ALIVE).is_ok()
}

/// The key that is given; else that of a rank 0 before this one, which the others may still have; else
/// a new one.
fn key_of_job(path: &Path, job: &str, given: Option<Key>) -> Result<Key, MeetError> {
    let left = read(path).ok();
    if let Some(left) = left.as_ref().filter(|left| is_alive(left)) {
        return Err(MeetError::Other(format!(
            "job `{job}` meets at {} already, as {} says: give this one another name (BELADY_JOB)",
            left.place,
            path.display()
        )));
    }
    match given.or(left.map(|left| left.key)) {
        Some(key) => Ok(key),
        None => Key::random().map_err(|error| MeetError::Other(error.to_string())),
    }
}

/// Where a note leads.
fn follow(own: &Path, path: &Path, given: Option<&Key>) -> Result<(Place, Key), Trouble> {
    // Clients of file servers remember for a while what was not there, until they list it.
    let _ = std::fs::read_dir(own).map(Iterator::count);
    let left = read(path).map_err(|error| {
        Trouble::ForNow(format!(
            "cannot read the note of rank 0 {}: {error}; all ranks must see this directory, else set \
             BELADY_MEET and BELADY_KEY",
            path.display()
        ))
    })?;
    Ok((left.place, given.cloned().unwrap_or(left.key)))
}

/// Makes a directory that only this user may enter, or sees that it is one.
fn make_private(directory: &Path) -> Result<(), MeetError> {
    let shown = directory.display();
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    let metadata = made.and_then(|()| std::fs::symlink_metadata(directory));
    let metadata =
        metadata.map_err(|error| MeetError::Other(format!("cannot meet in {shown}: {error}")))?;
    if !metadata.is_dir() || !is_ours_alone(&metadata) {
        return Err(MeetError::Other(format!(
            "others may enter {shown}, where the job's key would lie: remove it, or meet elsewhere"
        )));
    }
    Ok(())
}

fn is_ours_alone(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode().trailing_zeros() >= 6
}

fn read(path: &Path) -> io::Result<Left> {
    let nofollow = OFlags::NOFOLLOW.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(nofollow).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || !is_ours_alone(&metadata) {
        return Err(io::Error::other("it is no file that only you can read"));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    parse(&text).ok_or_else(|| io::Error::other("it is no note of a meeting"))
}

fn parse(text: &str) -> Option<Left> {
    let mut lines = text.lines();
    let first = lines.next()?;
    let place = lines.next()?.strip_prefix("place ")?.parse().ok()?;
    let key = Key::from_text(lines.next()?.strip_prefix("key ")?).ok()?;
    let job = lines.next()?.strip_prefix("job ")?.to_owned();
    (first == FIRST_LINE && lines.next() == Some("end")).then_some(Left { place, key, job })
}

/// A note, which goes when this is dropped.
#[derive(Debug)]
pub(super) struct Note {
    path: PathBuf,
    place: Place,
}

impl Note {
    fn leave(path: PathBuf, left: &Left) -> Result<Self, MeetError> {
        let Left { place, key, job } = left;
        let text = format!("{FIRST_LINE}\nplace {place}\nkey {}\njob {job}\nend\n", key.to_text());
        let unfinished = path.with_extension(format!("{}.unfinished", std::process::id()));
        let written = write(&unfinished, &text).and_then(|()| std::fs::rename(&unfinished, &path));
        if let Err(error) = written {
            let _ = std::fs::remove_file(&unfinished);
            let shown = path.display();
            return Err(MeetError::Other(format!("cannot leave a note at {shown}: {error}")));
        }
        Ok(Self { path, place: place.clone() })
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    // One that a killed process of the same number has left.
    let _ = std::fs::remove_file(path);
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

impl Drop for Note {
    fn drop(&mut self) {
        // Not that of another process that has come since.
        if read(&self.path).is_ok_and(|left| left.place == self.place) {
            let _ = std::fs::remove_file(&self.path);
            let _ = self.path.parent().map(std::fs::remove_dir);
        }
    }
}

#[cfg(test)]
mod tests;
