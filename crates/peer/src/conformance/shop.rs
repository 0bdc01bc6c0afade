//! A job whose answers follow from the number of the sample: the upper bits say what kind it is.

use std::collections::HashMap;

use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_data::memory::Memory;
use belady_data::sync::{Arc, Mutex, lock};
use belady_data::tier::{Put, RamTier, Tier};

use crate::desk::{Channel, Serve, Serving};
use crate::transport::{Ask, Lent, Notice, Payload, Push, Reply, Request, Taken, Transport};
use crate::{NodeId, SampleId, digest};

/// Where shops serve.
pub const CHANNEL: Channel = Channel(7);

/// Kinds of samples: what there is of them, by the rest of the number.
pub const SMALL: SampleId = 0;
pub const LARGE: SampleId = 1 << 28;
pub const LENT: SampleId = 2 << 28;
pub const TOO_LONG: SampleId = 3 << 28;
pub const TOO_SHORT: SampleId = 4 << 28;
/// Tells who asked, for which epoch, and whether it was for the last time.
pub const ECHO: SampleId = 5 << 28;
/// What was put.
pub const PUT: SampleId = 6 << 28;
/// How many notices came from whoever asks, and what they add up to.
pub const NOTICES: SampleId = 7 << 28;
const KIND: SampleId = 15 << 28;
/// Samples that the tier has.
pub const LENDABLE: u32 = 200;

/// How long a sample is.
pub fn length_of(sample: SampleId) -> usize {
    let rest = sample & !KIND;
    let length = match sample & KIND {
        // From nothing on, with 1 KiB more often than others.
        SMALL if rest.is_multiple_of(2) => 1024,
        SMALL => rest % 4099,
        LARGE => rest * 300_007,
        LENT => 1 + rest * 37,
        ECHO => 9,
        NOTICES => 16,
        _ => 100,
    };
    length as usize
}

/// The bytes of a sample.
pub fn bytes_of(sample: SampleId) -> Vec<u8> {
    let length = length_of(sample);
    let numbers = (0..length.div_ceil(8) as u64).map(|at| {
        (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(sample) << 20)
    });
    let mut bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

/// The version that a sample is of: before and after 1970.
pub fn version_of(sample: SampleId) -> i64 {
    (i64::from(sample) - 5) * 0x1_2345_6789
}

/// What a shop says of a small sample.
pub fn is_had(sample: SampleId) -> bool {
    !(3..6).contains(&(sample % 7))
}

/// What a shop makes of a push.
pub fn taken(push: &Push<'_>) -> Taken {
    match push.sample % 3 {
        _ if digest(push.bytes) != push.digest
            || push.version != version_of(push.sample)
            || u32::from(push.tier) != push.sample % 5 =>
        {
            Taken::Refused
        }
        0 => Taken::Stored,
        1 => Taken::NoRoom,
        _ => Taken::Refused,
    }
}

/// What notices add up to.
pub fn sum(notice: &Notice) -> u64 {
    let numbers: &[u32] = match notice {
        Notice::EpochDone { epoch } => &[*epoch],
        Notice::Released { samples, .. } => samples,
        Notice::Loaded { steps } => return *steps,
        Notice::Left => &[],
    };
    numbers.iter().map(|&number| u64::from(number)).sum()
}

/// Serves on [`CHANNEL`] as long as it is there.
#[derive(Debug)]
pub struct Shop {
    _serving: Serving,
    _counter: Arc<Counter>,
}

impl Shop {
    pub fn open(node: &Arc<dyn Transport>) -> Self {
        let sizes = Sizes::of(LENDABLE, |rest| length_of(LENT | rest) as u64);
        let sizes = Arc::new(sizes);
        let tier: Arc<dyn Tier> = Arc::new(RamTier::new(Bytes(1 << 22), sizes));
        for rest in 0..LENDABLE {
            assert_eq!(tier.put(rest, &bytes_of(LENT | rest), 0), Put::Stored);
        }
        let counter = Arc::new(Counter { tier, put: Mutex::default(), told: Mutex::default() });
        let job: Arc<dyn Serve> = counter.clone();
        let serving = node.desk().open(CHANNEL, Arc::downgrade(&job));
        Self { _serving: serving, _counter: counter }
    }
}

#[derive(Debug)]
struct Counter {
    tier: Arc<dyn Tier>,
    put: Mutex<HashMap<SampleId, Vec<u8>>>,
    told: Mutex<HashMap<NodeId, (u64, u64)>>,
}

impl Counter {
    fn reply(&self, from: NodeId, epoch: u32, ask: Ask) -> Reply {
        let sample = ask.sample;
        let mut bytes = match sample & KIND {
            SMALL if !is_had(sample) => {
                return match sample % 7 {
                    3 => Reply::NotHere,
                    4 => Reply::NotYet,
                    _ => Reply::Busy,
                };
            }
            LENT => return self.lend(sample),
            PUT => match lock(&self.put).get(&sample) {
                Some(bytes) => bytes.clone(),
                None => return Reply::NotHere,
            },
            ECHO => {
                [&from.to_le_bytes()[..], &epoch.to_le_bytes(), &[ask.last_use.into()]].concat()
            }
            NOTICES => {
                let (count, sum) = lock(&self.told).get(&from).copied().unwrap_or_default();
                [count.to_le_bytes(), sum.to_le_bytes()].concat()
            }
            _ => bytes_of(sample),
        };
        match sample & KIND {
            TOO_LONG => bytes.push(1),
            TOO_SHORT => drop(bytes.pop()),
            _ => {}
        }
        let (digest, version) = (digest(&bytes), version_of(sample));
        Reply::Here { bytes: Payload::Copied(Memory::from(&bytes[..])), digest, version }
    }

    fn lend(&self, sample: SampleId) -> Reply {
        match Lent::pin(&self.tier, sample & !KIND) {
            Some(lent) => {
                let bytes = Payload::Lent(lent);
                let (digest, version) = (digest(&bytes), version_of(sample));
                Reply::Here { bytes, digest, version }
            }
            None => Reply::NotHere,
        }
    }
}

impl Serve for Counter {
    fn get(&self, from: NodeId, request: &Request<'_>, limit: usize, replies: &mut Vec<Reply>) {
        let mut bytes = 0;
        for &ask in request.asks {
            if bytes > limit {
                return;
            }
            let reply = self.reply(from, request.epoch, ask);
            if let Reply::Here { bytes: payload, .. } = &reply {
                bytes += payload.len();
            }
            replies.push(reply);
        }
    }

    fn put(&self, _from: NodeId, pushes: &[Push<'_>], outcomes: &mut Vec<Taken>) {
        for push in pushes {
            let outcome = taken(push);
            if outcome == Taken::Stored {
                lock(&self.put).insert(push.sample, push.bytes.to_vec());
            }
            outcomes.push(outcome);
        }
    }

    fn told(&self, from: NodeId, notice: &Notice) {
        let mut told = lock(&self.told);
        let (count, total) = told.entry(from).or_default();
        *count += match notice {
            Notice::EpochDone { .. } | Notice::Loaded { .. } | Notice::Left => 1,
            Notice::Released { samples, .. } => samples.len() as u64,
        };
        *total += sum(notice);
    }
}
