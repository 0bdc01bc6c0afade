//! The rendezvous over TCP: rank 0 is the server, the other ranks are its clients.
//!
//! On every connection both sides first prove that they have the job's key ([`auth`]). Then ranks
//! give values to named exchanges; the server distributes them when all ranks have given theirs
//! (`table`). It also keeps them: a restarted rank gives a new value, gets those of the others,
//! and watchers are told of the change. If the server itself is restarted, the clients reconnect
//! and give again what they gave (`client`). An exchange that all ranks have released is no
//! longer kept; a process that is restarted later is told that it is over.
//!
//! A process outside of the job that has the key may ask for the values of an exchange ([`ask`]).
//!
//! [`auth`]: crate::auth

mod client;
mod connect;
mod frames;
mod messages;
mod server;
mod table;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use belady_base::sync::Arc;

pub(super) use self::client::{RendezvousClient, ServerLocator};
pub(super) use self::connect::ConnectFailure;
use self::connect::{connect_to, resolve};
use self::messages::{ClientKind, LONGEST_NAME, LONGEST_VALUE, RendezvousHello, RendezvousMessage};
pub(super) use self::server::RendezvousServer;
use super::{JobWorld, Rendezvous, RendezvousAddress, RendezvousError};
use crate::{JobKey, NodeId};

/// The time to prove the key; a busy machine needs a part of it.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a rank may be silent before it counts as gone.
const SILENCE: Duration = Duration::from_secs(30);
/// A peer that accepts no bytes for this long is gone.
const WRITING: Duration = Duration::from_secs(10);
/// A host name that cannot be resolved now may be known soon, as with containers.
const NAME_PATIENCE: Duration = Duration::from_secs(20);
/// How long ranks wait for each other by default: batch systems start the processes of one job
/// within this time.
pub const LIMIT: Duration = Duration::from_mins(5);
/// The longest name of a job.
const LONGEST_JOB: usize = 1 << 10;

/// Options of a rendezvous over TCP.
#[derive(Clone, Debug)]
pub struct TcpRendezvousOptions {
    /// This process's rank and the number of ranks.
    pub world: JobWorld,
    /// The job's name, which tells it from other jobs with the same key.
    pub job: String,
    /// The job's key.
    pub key: JobKey,
    /// How long ranks wait for each other.
    pub limit: Duration,
}

/// What both sides need to know.
#[derive(Clone, Debug)]
pub(super) struct RendezvousJob {
    pub world: JobWorld,
    pub name: String,
    pub limit: Duration,
    /// A peer that is silent for this long is gone.
    pub silence: Duration,
    /// Whether a rank that is gone may be started again. If not, exchanges that need it fail.
    pub may_restart: bool,
}

impl RendezvousJob {
    pub fn new(world: JobWorld, name: String, limit: Duration) -> Self {
        Self { world, name, limit, silence: SILENCE, may_restart: true }
    }
}

impl From<TcpRendezvousOptions> for RendezvousJob {
    fn from(TcpRendezvousOptions { world, job, limit, .. }: TcpRendezvousOptions) -> Self {
        Self::new(world, job, limit)
    }
}

impl RendezvousJob {
    /// Returns the job of ranks that are not started again.
    fn once(options: TcpRendezvousOptions) -> Self {
        Self { may_restart: false, ..options.into() }
    }
}

/// Starts this rank's side of a rendezvous at `HOST:PORT`. Rank 0 listens there when this returns;
/// the other ranks connect in the background, and exchanges wait for them.
pub fn start(
    place: &RendezvousAddress,
    options: TcpRendezvousOptions,
) -> Result<Arc<dyn Rendezvous>, RendezvousError> {
    if options.job.len() > LONGEST_JOB {
        return Err(RendezvousError::Other(format!(
            "a job's name has at most {LONGEST_JOB} bytes"
        )));
    }
    if options.world.rank == 0 {
        let until = Instant::now() + NAME_PATIENCE.min(options.limit);
        let addresses = addresses(place, until)?;
        let (name, key) = (place.to_string(), options.key.clone());
        return Ok(Arc::new(RendezvousServer::listen(&addresses, &name, key, options.into())?));
    }
    let locator = locator(place, options.key.clone());
    Ok(Arc::new(RendezvousClient::start(locator, options.into())?))
}

fn locator(place: &RendezvousAddress, key: JobKey) -> ServerLocator {
    let to = (place.clone(), key);
    let locate = Box::new(move || Ok(to.clone()));
    ServerLocator { locate, may_change: false, name: place.to_string() }
}

/// Starts rank 0's side of a rendezvous at a free port of an address of this machine, for ranks
/// that are not started again: an exchange fails at once when a rank has ended before it. Returns
/// the address for [`connect_once`].
pub fn listen_once(
    at: IpAddr,
    options: TcpRendezvousOptions,
) -> Result<(Arc<dyn Rendezvous>, RendezvousAddress), RendezvousError> {
    let (name, key) = (at.to_string(), options.key.clone());
    let job = RendezvousJob::once(options);
    let server = RendezvousServer::listen(&[(at, 0).into()], &name, key, job)?;
    let port = server.address().port();
    Ok((Arc::new(server), RendezvousAddress::Server { host: at.to_string(), port }))
}

/// Starts the side of another rank, as [`listen_once`].
pub fn connect_once(
    place: &RendezvousAddress,
    options: TcpRendezvousOptions,
) -> Result<Arc<dyn Rendezvous>, RendezvousError> {
    let locator = locator(place, options.key.clone());
    Ok(Arc::new(RendezvousClient::start(locator, RendezvousJob::once(options))?))
}

/// Returns where rank 0 listens: only at the rendezvous address, since the others connect to it.
/// Its name may not be known yet.
fn addresses(
    place: &RendezvousAddress,
    until: Instant,
) -> Result<Vec<SocketAddr>, RendezvousError> {
    let other = |sentence: &str| RendezvousError::Other(sentence.to_owned());
    let RendezvousAddress::Server { host, port } = place else {
        return Err(other("a directory is not a rendezvous server"));
    };
    let found = loop {
        match resolve(place) {
            Ok(found) => break found,
            Err(ConnectFailure::UnknownHost(_)) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(200));
            }
            Err(failure) => return Err(other(failure.sentence())),
        }
    };
    let is_loopback = found.iter().all(|address| address.ip().is_loopback());
    let means_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok();
    if is_loopback && !means_loopback {
        // Many machines resolve their own name to 127.0.1.1. Other machines know them by another
        // address, which may belong to any interface, and ranks on this machine connect to the
        // loopback.
        return Ok(vec![(Ipv4Addr::UNSPECIFIED, *port).into()]);
    }
    Ok(found)
}

/// Returns what the ranks of a job have given to an exchange, for a process outside of the job.
pub fn ask(
    place: &RendezvousAddress,
    key: &JobKey,
    name: &str,
    within: Duration,
) -> Result<Vec<Option<Vec<u8>>>, RendezvousError> {
    check(name, &[])?;
    let until = Instant::now() + within;
    let hello = RendezvousHello { job: String::new(), size: 0, who: ClientKind::Observer };
    let mut frames = connect_to(place, key, &hello)
        .map_err(|failure| RendezvousError::Other(failure.sentence().to_owned()))?;
    let failed =
        |what: String| RendezvousError::Other(format!("the rendezvous server at {place}: {what}"));
    frames
        .say(&RendezvousMessage::Ask { name: name.to_owned() })
        .map_err(|it| failed(it.to_string()))?;
    match frames.next(until.saturating_duration_since(Instant::now())) {
        Ok(Some(RendezvousMessage::Values { name: about, values })) if about == name => Ok(values),
        Ok(Some(_)) => Err(failed("its answer does not fit the question".to_owned())),
        Ok(None) => Err(failed(format!("it has not answered within {within:?}"))),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Logs which ranks are missing, and where.
fn tell_missing(missing: &[NodeId], size: u32, what: &str, place: &str, waited: Duration) {
    let (ranks, seconds) = (super::ranks(missing), waited.as_secs());
    tracing::warn!(
        "{ranks} of {size} did not come to {place} to exchange {what} within {seconds} s: still \
         waiting; all ranks have to take part (in Python, a loader that only some ranks make takes \
         peers=None)"
    );
}

/// Returns a number that tells this process from those that had its rank before.
fn new_life() -> Result<u64, RendezvousError> {
    let life = crate::key::random().map_err(|error| RendezvousError::Other(error.to_string()))?;
    Ok(u64::from_le_bytes(life))
}

/// Checks the limits of names and values.
fn check(name: &str, value: &[u8]) -> Result<(), RendezvousError> {
    if name.len() > LONGEST_NAME || value.len() > LONGEST_VALUE {
        return Err(RendezvousError::Other(format!(
            "a name of {} bytes with a value of {} bytes is too long for an exchange: at most \
             {LONGEST_NAME} and {LONGEST_VALUE} are allowed",
            name.len(),
            value.len()
        )));
    }
    Ok(())
}

fn other_job(place: &str, theirs: &str, ours: &str) -> String {
    let shown = |job: &str| job.chars().filter(|it| !it.is_control()).take(80).collect::<String>();
    format!(
        "job `{}` meets at {place} and this process belongs to job `{}`: give one of them another \
         port (BELADY_MEET), or all ranks the same job (BELADY_JOB)",
        shown(theirs),
        shown(ours)
    )
}
