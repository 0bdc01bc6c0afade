//! A handler whose answers follow from the number of the sample; its upper bits are the kind.

use std::collections::HashMap;

use belady_base::memory::Memory;
use belady_base::sync::{Arc, Mutex, lock};
use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_data::tier::{Put, RamTier, Tier};

use crate::dispatcher::{Handler, Registration};
use crate::message::{
    Ask, Channel, GetReply, GetRequest, Notice, Payload, PinnedSample, Push, PushOutcome,
};
use crate::transport::Transport;
use crate::{NodeId, SampleId, digest};

/// The channel of test handlers.
pub const CHANNEL: Channel = Channel(7);

/// Kinds of samples; the lower bits say which.
pub const SMALL: SampleId = 0;
pub const LARGE: SampleId = 1 << 28;
pub const LENT: SampleId = 2 << 28;
pub const TOO_LONG: SampleId = 3 << 28;
pub const TOO_SHORT: SampleId = 4 << 28;
/// Returns the caller, the epoch, and whether it is the last use.
pub const ECHO: SampleId = 5 << 28;
/// Samples that were put.
pub const PUT: SampleId = 6 << 28;
/// Returns how many notices the caller has sent, and their sum.
pub const NOTICES: SampleId = 7 << 28;
const KIND: SampleId = 15 << 28;
/// Samples in the tier.
pub const LENDABLE: u32 = 200;

/// Returns the length of a sample.
pub fn length_of(sample: SampleId) -> usize {
    let rest = sample & !KIND;
    let length = match sample & KIND {
        // From 0 bytes on, 1 KiB more often than others.
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

/// Returns the bytes of a sample.
pub fn bytes_of(sample: SampleId) -> Vec<u8> {
    let length = length_of(sample);
    let numbers = (0..length.div_ceil(8) as u64).map(|at| {
        (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(sample) << 20)
    });
    let mut bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

/// Returns the version of a sample: before and after 1970.
pub fn version_of(sample: SampleId) -> i64 {
    (i64::from(sample) - 5) * 0x1_2345_6789
}

/// Returns whether the handler has a small sample.
pub fn is_had(sample: SampleId) -> bool {
    !(3..6).contains(&(sample % 7))
}

/// Returns the outcome of a push.
pub fn taken(push: &Push<'_>) -> PushOutcome {
    match push.sample % 3 {
        _ if digest(push.bytes) != push.digest
            || push.version != version_of(push.sample)
            || u32::from(push.tier) != push.sample % 5 =>
        {
            PushOutcome::Refused
        }
        0 => PushOutcome::Stored,
        1 => PushOutcome::NoSpace,
        _ => PushOutcome::Refused,
    }
}

/// Returns the sum of a notice's numbers.
pub fn sum(notice: &Notice) -> u64 {
    let numbers: &[u32] = match notice {
        Notice::EpochDone { epoch } => &[*epoch],
        Notice::Released { samples, .. } => samples,
        Notice::Loaded { steps } => return *steps,
        Notice::Left => &[],
    };
    numbers.iter().map(|&number| u64::from(number)).sum()
}

/// Serves on [`CHANNEL`] until it is dropped.
#[derive(Debug)]
pub struct TestHandler {
    _serving: Registration,
    _counter: Arc<TestState>,
}

impl TestHandler {
    /// Registers a test handler at a node.
    pub fn register(node: &Arc<dyn Transport>) -> Self {
        let sizes = Sizes::of(LENDABLE, |rest| length_of(LENT | rest) as u64);
        let sizes = Arc::new(sizes);
        let tier: Arc<dyn Tier> = Arc::new(RamTier::new(Bytes(1 << 22), sizes));
        for rest in 0..LENDABLE {
            assert_eq!(tier.put(rest, &bytes_of(LENT | rest), 0), Put::Stored);
        }
        let counter = Arc::new(TestState { tier, put: Mutex::default(), told: Mutex::default() });
        let job: Arc<dyn Handler> = counter.clone();
        let serving = node.dispatcher().register(CHANNEL, Arc::downgrade(&job));
        Self { _serving: serving, _counter: counter }
    }
}

#[derive(Debug)]
struct TestState {
    tier: Arc<dyn Tier>,
    put: Mutex<HashMap<SampleId, Vec<u8>>>,
    told: Mutex<HashMap<NodeId, (u64, u64)>>,
}

impl TestState {
    fn reply(&self, from: NodeId, epoch: u32, ask: Ask) -> GetReply {
        let sample = ask.sample;
        let mut bytes = match sample & KIND {
            SMALL if !is_had(sample) => {
                return match sample % 7 {
                    3 => GetReply::NotHere,
                    4 => GetReply::NotYet,
                    _ => GetReply::Busy,
                };
            }
            LENT => return self.lend(sample),
            PUT => match lock(&self.put).get(&sample) {
                Some(bytes) => bytes.clone(),
                None => return GetReply::NotHere,
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
        GetReply::Here { bytes: Payload::Copied(Memory::from(&bytes[..])), digest, version }
    }

    fn lend(&self, sample: SampleId) -> GetReply {
        match PinnedSample::pin(&self.tier, sample & !KIND) {
            Some(lent) => {
                let bytes = Payload::Pinned(lent);
                let (digest, version) = (digest(&bytes), version_of(sample));
                GetReply::Here { bytes, digest, version }
            }
            None => GetReply::NotHere,
        }
    }
}

impl Handler for TestState {
    fn get(
        &self,
        from: NodeId,
        request: &GetRequest<'_>,
        limit: usize,
        replies: &mut Vec<GetReply>,
    ) {
        let mut bytes = 0;
        for &ask in request.asks {
            if bytes > limit {
                return;
            }
            let reply = self.reply(from, request.epoch, ask);
            if let GetReply::Here { bytes: payload, .. } = &reply {
                bytes += payload.len();
            }
            replies.push(reply);
        }
    }

    fn put(&self, _from: NodeId, pushes: &[Push<'_>], outcomes: &mut Vec<PushOutcome>) {
        for push in pushes {
            let outcome = taken(push);
            if outcome == PushOutcome::Stored {
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
