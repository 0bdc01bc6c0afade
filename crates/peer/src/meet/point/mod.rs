//! A meeting point: rank 0 listens, the others come.
//!
//! Every connection begins with both sides proving that they have the job's key ([`auth`]). Then ranks
//! give what they have to say to exchanges by name; rank 0 keeps it and hands it out when all have
//! given ([`table`]). It keeps it: a rank that was started again gives anew, gets what the
//! others gave, and those who watch are told of the change. If rank 0 itself is started again, the
//! others come again by themselves and give again what they gave ([`guest`]). What all ranks have
//! released is kept no longer; a process that is started again later is told that it is over.
//!
//! Whoever has the key may also ask what has been given without being a rank ([`ask`]).
//!
//! [`auth`]: crate::auth

mod frames;
mod guest;
mod host;
mod table;
#[cfg(test)]
mod tests;
mod way;
mod wire;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use belady_data::sync::Arc;

pub(super) use self::guest::{Directions, Guest};
pub(super) use self::host::Host;
pub(super) use self::way::Trouble;
use self::way::{resolve, visit};
use self::wire::{Hello, LONGEST_NAME, LONGEST_VALUE, Message, Who};
use super::{Meet, MeetError, Place, World};
use crate::{Key, NodeId};

/// Time to prove that one has the key; a busy machine needs a part of it.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long that is, in a job.
const SILENCE: Duration = Duration::from_secs(30);
/// Whoever does not take what it is sent for so long is gone.
const WRITING: Duration = Duration::from_secs(10);
/// A name that nobody knows now may be known soon, as those of containers are.
const NAME_PATIENCE: Duration = Duration::from_secs(20);
/// How long ranks wait for each other if nobody says otherwise: queues of batch systems start the
/// processes of one job within this.
pub const LIMIT: Duration = Duration::from_mins(5);
/// The longest name of a job.
const LONGEST_JOB: usize = 1 << 10;

/// How to meet.
#[derive(Clone, Debug)]
pub struct Options {
    pub world: World,
    /// What tells this job from others that have the same key.
    pub job: String,
    pub key: Key,
    /// How long ranks wait for each other.
    pub limit: Duration,
}

/// What both sides need to know.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub world: World,
    pub name: String,
    pub limit: Duration,
    /// Whoever says nothing for so long is gone.
    pub silence: Duration,
}

impl Job {
    pub fn new(world: World, name: String, limit: Duration) -> Self {
        Self { world, name, limit, silence: SILENCE }
    }
}

impl From<Options> for Job {
    fn from(Options { world, job, limit, .. }: Options) -> Self {
        Self::new(world, job, limit)
    }
}

/// Meets at `HOST:PORT`. Rank 0 listens there as soon as this returns; the others come by themselves,
/// and exchanges wait for them.
pub fn meet(place: &Place, options: Options) -> Result<Arc<dyn Meet>, MeetError> {
    if options.job.len() > LONGEST_JOB {
        return Err(MeetError::Other(format!("a job's name has at most {LONGEST_JOB} bytes")));
    }
    if options.world.rank == 0 {
        let until = Instant::now() + NAME_PATIENCE.min(options.limit);
        let addresses = addresses(place, until)?;
        let (name, key) = (place.to_string(), options.key.clone());
        return Ok(Arc::new(Host::listen(&addresses, &name, key, options.into())?));
    }
    let to = (place.clone(), options.key.clone());
    let ask = Box::new(move || Ok(to.clone()));
    let directions = Directions { ask, may_change: false, name: place.to_string() };
    Ok(Arc::new(Guest::come(directions, options.into())?))
}

/// Where rank 0 listens: nowhere but where the place says, since the others dial that. Its name may not be
/// known yet.
fn addresses(place: &Place, until: Instant) -> Result<Vec<SocketAddr>, MeetError> {
    let other = |sentence: &str| MeetError::Other(sentence.to_owned());
    let Place::Point { host, port } = place else {
        return Err(other("a directory is no meeting point"));
    };
    let found = loop {
        match resolve(place) {
            Ok(found) => break found,
            Err(Trouble::NoSuchHost(_)) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(200));
            }
            Err(trouble) => return Err(other(trouble.sentence())),
        }
    };
    let is_loopback = found.iter().all(|address| address.ip().is_loopback());
    let means_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok();
    if is_loopback && !means_loopback {
        // Many machines call themselves 127.0.1.1. Other machines know them by another address, which may
        // be that of any interface, and ranks on this one dial the loopback.
        return Ok(vec![(Ipv4Addr::UNSPECIFIED, *port).into()]);
    }
    Ok(found)
}

/// What the ranks of a job have given to an exchange, for somebody who is none of them.
pub fn ask(
    place: &Place,
    key: &Key,
    name: &str,
    within: Duration,
) -> Result<Vec<Option<Vec<u8>>>, MeetError> {
    check(name, &[])?;
    let until = Instant::now() + within;
    let hello = Hello { job: String::new(), size: 0, who: Who::Visitor };
    let mut frames = visit(place, key, &hello)
        .map_err(|trouble| MeetError::Other(trouble.sentence().to_owned()))?;
    let failed = |what: String| MeetError::Other(format!("the meeting point at {place}: {what}"));
    frames.say(&Message::Ask { name: name.to_owned() }).map_err(|it| failed(it.to_string()))?;
    match frames.next(until.saturating_duration_since(Instant::now())) {
        Ok(Some(Message::Book { name: about, values })) if about == name => Ok(values),
        Ok(Some(_)) => Err(failed("it answers what was not asked".to_owned())),
        Ok(None) => Err(failed(format!("it has not answered within {within:?}"))),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Says who is waited for, and where.
fn tell_missing(missing: &[NodeId], size: u32, what: &str, place: &str, waited: Duration) {
    let (ranks, seconds) = (super::ranks(missing), waited.as_secs());
    tracing::warn!(
        "{ranks} of {size} did not come to {what} at {place} within {seconds} s: waiting on; all ranks \
         have to come (in Python, a loader that only some ranks make takes peers=None)"
    );
}

/// Tells a process from one that was started before it.
fn new_life() -> Result<u64, MeetError> {
    let life = crate::key::random().map_err(|error| MeetError::Other(error.to_string()))?;
    Ok(u64::from_le_bytes(life))
}

/// Nothing longer than this is ever sent.
fn check(name: &str, value: &[u8]) -> Result<(), MeetError> {
    if name.len() > LONGEST_NAME || value.len() > LONGEST_VALUE {
        return Err(MeetError::Other(format!(
            "an exchange named with {} bytes takes no {} bytes: at most {LONGEST_NAME} and \
             {LONGEST_VALUE}",
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
