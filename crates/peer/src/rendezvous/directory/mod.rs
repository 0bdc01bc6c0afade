//! A rendezvous by a directory that all ranks see, such as a home directory of a cluster.
//!
//! Rank 0 listens ([`tcp`]) and writes an `AddressFile` into the directory: where it listens, and
//! the job's key. Only the user may read it, so the user need not give a key. A killed rank 0
//! leaves its file behind. The other ranks then find no server at that address with that key, and
//! read the file again until there is a new one.

use std::fs::DirBuilder;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belady_base::sync::Arc;

use super::address_file::{AddressFile, AddressRecord, is_private};
use super::tcp::{
    self, ConnectFailure, RendezvousClient, RendezvousJob, RendezvousServer, ServerLocator,
};
use super::{JobWorld, Rendezvous, RendezvousAddress, RendezvousError, interface};
use crate::JobKey;

/// The name of the address file in the job's own directory.
const ADDRESS_FILE: &str = "meeting";
/// The prefix of the names of jobs' own directories.
const JOB_PREFIX: &str = "belady-";
/// A running rank 0 answers within this time.
const ALIVE: Duration = Duration::from_secs(5);

/// Options of a rendezvous by a directory.
#[derive(Clone, Debug)]
pub struct DirectoryOptions {
    /// This process's rank and the number of ranks.
    pub world: JobWorld,
    /// The job's name; several jobs may use one directory.
    pub job: String,
    /// The user's key. `None`: rank 0 draws one.
    pub key: Option<JobKey>,
    /// How long ranks wait for each other.
    pub limit: Duration,
    /// Where rank 0 listens. `None`: at the address by which other machines usually reach this one.
    pub listen: Option<IpAddr>,
}

/// Starts this rank's side of a rendezvous by a directory. Rank 0 creates the directory if needed.
pub fn start(
    directory: &Path,
    options: DirectoryOptions,
) -> Result<Arc<dyn Rendezvous>, RendezvousError> {
    let DirectoryOptions { world, job: name, key, limit, listen } = options;
    let own = job_directory(directory, &name);
    let path = own.join(ADDRESS_FILE);
    let job = RendezvousJob::new(world, name.clone(), limit);
    if world.rank != 0 {
        let name = format!("the directory {}", directory.display());
        let locate = Box::new(move || locate(&own, &path, key.as_ref()));
        let locator = ServerLocator { locate, may_change: true, name };
        return Ok(Arc::new(RendezvousClient::start(locator, job)?));
    }
    make_private(&own)?;
    let key = job_key(&path, &name, key)?;
    let listen = listen.unwrap_or_else(interface::usual);
    let shown = format!("{listen} (announced in {})", path.display());
    let mut server = RendezvousServer::listen(&[(listen, 0).into()], &shown, key.clone(), job)?;
    // No rank can connect to the unspecified address.
    let reached = if listen.is_unspecified() { interface::usual() } else { listen };
    let address =
        RendezvousAddress::Server { host: reached.to_string(), port: server.address().port() };
    let record = AddressRecord { address, key, job: one_line(&name) };
    server.set_address_file(AddressFile::write(path, &record)?);
    Ok(Arc::new(server))
}

/// Returns the job's own directory below one that several jobs may use.
fn job_directory(directory: &Path, job: &str) -> PathBuf {
    directory.join(format!("{JOB_PREFIX}{:016x}", xxhash_rust::xxh3::xxh3_64(job.as_bytes())))
}

/// Returns a job's name as one line that is not too long.
fn one_line(job: &str) -> String {
    job.chars().map(|it| if it.is_control() { '?' } else { it }).take(80).collect()
}

/// Finds the server and the key of a job that uses this directory, for a process outside the job.
///
/// `job` may be `None` if one job runs, or for the job that has no name. Files of killed processes
/// are ignored.
pub fn find(
    directory: &Path,
    job: Option<&str>,
) -> Result<(RendezvousAddress, JobKey), RendezvousError> {
    let shown = directory.display();
    let cannot = |error: io::Error| {
        RendezvousError::Other(format!("cannot look for jobs in {shown}: {error}"))
    };
    if let Some(job) = job {
        let path = job_directory(directory, job).join(ADDRESS_FILE);
        let record = AddressRecord::read(&path).map_err(|error| {
            RendezvousError::Other(format!("job `{job}` does not meet in {shown}: {error}"))
        })?;
        return Ok((record.address, record.key));
    }
    let mut records = vec![];
    for entry in std::fs::read_dir(directory).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(JOB_PREFIX)) {
            records.extend(AddressRecord::read(&path.join(ADDRESS_FILE)).ok());
        }
    }
    if records.len() > 1 {
        records.retain(is_alive);
    }
    if let Some(unnamed) = records.iter().position(|record| record.job.is_empty()) {
        records = vec![records.swap_remove(unnamed)];
    }
    match &records[..] {
        [one] => Ok((one.address.clone(), one.key.clone())),
        [] => Err(RendezvousError::Other(format!(
            "no job of yours meets in {shown}: give the directory that its processes were given"
        ))),
        jobs => {
            let mut names: Vec<_> = jobs.iter().map(|record| format!("`{}`", record.job)).collect();
            names.sort();
            Err(RendezvousError::Other(format!(
                "{} jobs meet in {shown}, {}: set BELADY_JOB to the name of one of them",
                names.len(),
                names.join(", ")
            )))
        }
    }
}

fn is_alive(AddressRecord { address, key, .. }: &AddressRecord) -> bool {
    tcp::ask(address, key, "", ALIVE).is_ok()
}

/// Returns the given key, else that of an earlier rank 0, which the others may still use, else a
/// new one.
fn job_key(path: &Path, job: &str, given: Option<JobKey>) -> Result<JobKey, RendezvousError> {
    let earlier = AddressRecord::read(path).ok();
    if let Some(running) = earlier.as_ref().filter(|record| is_alive(record)) {
        return Err(RendezvousError::Other(format!(
            "job `{job}` meets at {} already, as {} says: give this job another name (BELADY_JOB)",
            running.address,
            path.display()
        )));
    }
    match given.or(earlier.map(|record| record.key)) {
        Some(key) => Ok(key),
        None => JobKey::random().map_err(|error| RendezvousError::Other(error.to_string())),
    }
}

/// Returns the server that the address file names, and the key to use.
fn locate(
    own: &Path,
    path: &Path,
    given: Option<&JobKey>,
) -> Result<(RendezvousAddress, JobKey), ConnectFailure> {
    // Clients of file servers cache for a while that a file is missing, until they list its
    // directory.
    let _ = std::fs::read_dir(own).map(Iterator::count);
    let record = AddressRecord::read(path).map_err(|error| {
        ConnectFailure::Temporary(format!(
            "cannot read rank 0's file {}: {error}; all ranks must see this directory, else set \
             BELADY_MEET and BELADY_KEY",
            path.display()
        ))
    })?;
    Ok((record.address, given.cloned().unwrap_or(record.key)))
}

/// Creates a directory that only this user may enter, or checks that an existing one is so.
fn make_private(directory: &Path) -> Result<(), RendezvousError> {
    let shown = directory.display();
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    let metadata = made.and_then(|()| std::fs::symlink_metadata(directory));
    let metadata = metadata
        .map_err(|error| RendezvousError::Other(format!("cannot meet in {shown}: {error}")))?;
    if !metadata.is_dir() || !is_private(&metadata) {
        return Err(RendezvousError::Other(format!(
            "other users may enter {shown}, which would hold the job's key: remove it, or meet in \
             another directory"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
