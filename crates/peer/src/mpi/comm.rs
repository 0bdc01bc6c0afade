//! A private communicator: the one place that calls MPI while a job runs.
//!
//! Nothing here blocks. Operations are started, and [`PendingRequests`] says when they are done.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use belady_base::sync::Arc;
use mpi::ffi;
use mpi::raw::{AsRaw, FromRaw};
use mpi::topology::{Communicator, SimpleCommunicator};

use super::Payload;
use super::buffers::{MessageBuffer, MessageBuffers};
use super::pending::{MpiFailure, PendingRequests, Result, check};
use crate::NodeId;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Tag {
    Ask = 1,
    Push = 2,
    GetReply = 3,
}

/// A message to send, and large samples that follow it without being copied.
#[derive(Debug)]
pub struct OutgoingMessage {
    pub to: NodeId,
    pub tag: Tag,
    pub head: Vec<u8>,
    pub large: Vec<Payload>,
}

impl OutgoingMessage {
    pub fn length(&self) -> usize {
        self.head.len() + self.large.iter().map(|bytes| bytes.len()).sum::<usize>()
    }
}

/// Bytes that MPI sends.
#[derive(Debug)]
pub enum SendBuffer {
    GetRequest(Vec<u8>),
    GetReply(Vec<u8>),
    Large(Payload),
}

impl SendBuffer {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::GetRequest(bytes) | Self::GetReply(bytes) => bytes,
            Self::Large(bytes) => bytes,
        }
    }
}

/// A message that has arrived.
#[derive(Debug)]
pub struct Received {
    pub from: NodeId,
    pub tag: c_int,
    pub message: MessageBuffer,
}

/// A reply with the large samples that followed it.
#[derive(Debug)]
pub struct Answered {
    pub from: NodeId,
    pub call: u64,
    pub reply: MessageBuffer,
    pub large: MessageBuffer,
}

/// One of the large samples of an answer. The answer is complete when this is its last reference.
#[derive(Debug)]
pub struct LargePart {
    pub length: usize,
    pub answer: Arc<Answered>,
}

/// A communicator of this transport alone.
pub struct Comm(SimpleCommunicator);

impl std::fmt::Debug for Comm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Comm").finish_non_exhaustive()
    }
}

// SAFETY: MPI's handles may be used by any thread, one at a time: MPI has the thread level
// MULTIPLE.
unsafe impl Send for Comm {}

impl Comm {
    /// Returns a copy of MPI's world once all of its ranks make one; `None` if they do not by the
    /// deadline.
    pub fn of_world(deadline: Instant) -> Result<Option<Self>> {
        let world = SimpleCommunicator::world();
        // SAFETY: a constant handle.
        let mut made = Box::new(unsafe { ffi::RSMPI_COMM_NULL });
        let mut request = MaybeUninit::uninit();
        // SAFETY: `made` stays where it is until MPI has written it, or for ever.
        check("an exchange", unsafe {
            ffi::MPI_Comm_idup(world.as_raw(), &raw mut *made, request.as_mut_ptr())
        })?;
        let mut pending = PendingRequests::default();
        // SAFETY: MPI has set it.
        pending.add(unsafe { request.assume_init() }, made);
        let mut comm = None;
        while !pending.completed(|made| comm = Some(made))? {
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        // SAFETY: MPI has made it, for this transport alone.
        let comm = comm.map(|made| unsafe { SimpleCommunicator::from_raw(made) });
        if let Some(comm) = &comm {
            // SAFETY: both handles are valid. Errors are returned to callers instead of ending the
            // process.
            check("an exchange", unsafe {
                ffi::MPI_Comm_set_errhandler(comm.as_raw(), ffi::RSMPI_ERRORS_RETURN)
            })?;
        }
        Ok(comm.map(Self))
    }

    pub fn rank(&self) -> NodeId {
        self.0.rank() as NodeId
    }

    pub fn size(&self) -> u32 {
        self.0.size() as u32
    }

    /// Returns for each rank whether it runs on this machine. A collective call.
    pub fn near(&self) -> Vec<bool> {
        use mpi::topology::Group;
        let machine = self.0.split_shared(self.0.rank());
        let ranks: Vec<_> = (0..self.0.size()).collect();
        let there = self.0.group().translate_ranks(&ranks, &machine.group());
        there.iter().map(Option::is_some).collect()
    }

    pub fn send(
        &self,
        to: NodeId,
        tag: c_int,
        buffer: SendBuffer,
        pending: &mut PendingRequests<SendBuffer>,
    ) -> Result<()> {
        let buffer = Box::new(buffer);
        let start = buffer.bytes().as_ptr().cast();
        let count = length(buffer.bytes().len())?;
        let (to, comm) = (to.cast_signed(), self.0.as_raw());
        let mut request = MaybeUninit::uninit();
        // SAFETY: the bytes are in `buffer`, which stays where it is until they are sent.
        check("sending", unsafe {
            ffi::MPI_Isend(start, count, bytes(), to, tag, comm, request.as_mut_ptr())
        })?;
        // SAFETY: MPI has set it.
        pending.add(unsafe { request.assume_init() }, buffer);
        Ok(())
    }

    /// Starts to receive a message, if one has arrived: of any kind, or of one.
    pub fn receive(
        &self,
        tag: Option<Tag>,
        buffers: &Arc<MessageBuffers>,
        pending: &mut PendingRequests<Received>,
    ) -> Result<bool> {
        // SAFETY: constants of MPI.
        let (any_source, any_tag) = unsafe { (ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_ANY_TAG) };
        let tag = tag.map_or(any_tag, |tag| tag as c_int);
        let (mut found, mut size) = (0, 0);
        let mut message = MaybeUninit::uninit();
        let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
        // SAFETY: MPI writes to all of them if it finds a message.
        check("looking for messages", unsafe {
            ffi::MPI_Improbe(
                any_source,
                tag,
                self.0.as_raw(),
                &raw mut found,
                message.as_mut_ptr(),
                status.as_mut_ptr(),
            )
        })?;
        if found == 0 {
            return Ok(false);
        }
        // SAFETY: MPI has found a message.
        let (mut message, status) = unsafe { (message.assume_init(), status.assume_init()) };
        // SAFETY: the status of a message that was found.
        check("receiving", unsafe {
            ffi::MPI_Get_count(&raw const status, bytes(), &raw mut size)
        })?;
        let (from, tag) = (status.MPI_SOURCE as NodeId, status.MPI_TAG);
        let buffer = buffers.take(usize::try_from(size).unwrap_or(0));
        let mut received = Box::new(Received { from, tag, message: buffer });
        let mut request = MaybeUninit::uninit();
        // SAFETY: the buffer is as long as the message, and lives until the message has arrived.
        check("receiving", unsafe {
            let start = received.message.start().cast();
            ffi::MPI_Imrecv(start, size, bytes(), &raw mut message, request.as_mut_ptr())
        })?;
        // SAFETY: MPI has set it.
        pending.add(unsafe { request.assume_init() }, received);
        Ok(true)
    }

    /// Starts to receive messages of known lengths, one after the other into one memory.
    pub fn receive_large(
        &self,
        tag: c_int,
        lengths: &[usize],
        answer: Answered,
        pending: &mut PendingRequests<LargePart>,
    ) -> Result<()> {
        let Answered { from, mut large, .. } = answer;
        assert!(lengths.iter().sum::<usize>() <= large.len(), "all parts fit");
        let mut start = large.start();
        let from_rank = from.cast_signed();
        let answer = Arc::new(Answered { large, ..answer });
        for &bytes_of_one in lengths {
            let part = Box::new(LargePart { length: bytes_of_one, answer: answer.clone() });
            let count = length(bytes_of_one)?;
            let comm = self.0.as_raw();
            let mut request = MaybeUninit::uninit();
            // SAFETY: the parts lie within the memory and do not overlap, and each holds the memory
            // until it has arrived.
            check("receiving", unsafe {
                ffi::MPI_Irecv(
                    start.cast(),
                    count,
                    bytes(),
                    from_rank,
                    tag,
                    comm,
                    request.as_mut_ptr(),
                )
            })?;
            // SAFETY: MPI has set it.
            pending.add(unsafe { request.assume_init() }, part);
            // SAFETY: still within the memory, or at its end.
            start = unsafe { start.add(bytes_of_one) };
        }
        Ok(())
    }

    /// Starts a barrier, which completes when every rank has started it.
    pub fn barrier(&self, pending: &mut PendingRequests<()>) -> Result<()> {
        let mut request = MaybeUninit::uninit();
        // SAFETY: MPI sets the request.
        check("leaving", unsafe { ffi::MPI_Ibarrier(self.0.as_raw(), request.as_mut_ptr()) })?;
        // SAFETY: MPI has set it.
        pending.add(unsafe { request.assume_init() }, Box::new(()));
        Ok(())
    }

    /// Gathers the values of all ranks on every rank, of the given lengths.
    pub fn gather_all(
        &self,
        give: Vec<u8>,
        lengths: &[usize],
        pending: &mut PendingRequests<Gathered>,
    ) -> Result<()> {
        let counts = lengths.iter().map(|&bytes| length(bytes)).collect::<Result<Vec<_>>>()?;
        let total: usize = lengths.iter().sum();
        length(total)?;
        let places = counts.iter().scan(0, |place, count| {
            *place += count;
            Some(*place - count)
        });
        let places = places.collect();
        let (give, got) = (addressed(give), addressed(vec![0; total]));
        let mut gathered = Box::new(Gathered { give, got, counts, places });
        let Gathered { give, got, counts, places } = &mut *gathered;
        let mut request = MaybeUninit::uninit();
        // SAFETY: all memory is in `gathered`, which lives until MPI is done.
        check("an exchange", unsafe {
            ffi::MPI_Iallgatherv(
                give.as_ptr().cast(),
                length(give.len())?,
                bytes(),
                got.as_mut_ptr().cast(),
                counts.as_ptr(),
                places.as_ptr(),
                bytes(),
                self.0.as_raw(),
                request.as_mut_ptr(),
            )
        })?;
        // SAFETY: MPI has set it.
        pending.add(unsafe { request.assume_init() }, gathered);
        Ok(())
    }

    /// Broadcasts a range of rank 0's bytes.
    pub fn spread(
        &self,
        mut all: Vec<u8>,
        part: std::ops::Range<usize>,
        pending: &mut PendingRequests<Vec<u8>>,
    ) -> Result<()> {
        let count = length(part.len())?;
        all = addressed(all);
        let start = all[part].as_mut_ptr();
        let held = Box::new(all);
        let mut request = MaybeUninit::uninit();
        // SAFETY: the range is in what is held, whose bytes stay where they are until MPI is done.
        check("an exchange", unsafe {
            let comm = self.0.as_raw();
            ffi::MPI_Ibcast(start.cast(), count, bytes(), 0, comm, request.as_mut_ptr())
        })?;
        // SAFETY: MPI has set it.
        pending.add(unsafe { request.assume_init() }, held);
        Ok(())
    }
}

/// The buffers of a gather.
#[derive(Debug)]
pub struct Gathered {
    give: Vec<u8>,
    pub got: Vec<u8>,
    counts: Vec<c_int>,
    places: Vec<c_int>,
}

fn bytes() -> ffi::MPI_Datatype {
    // SAFETY: a constant of MPI.
    unsafe { ffi::RSMPI_UINT8_T }
}

/// Gives an empty vector an address: Rust's address of an empty one is 1, which is Open MPI's
/// MPI_IN_PLACE.
fn addressed(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.is_empty() {
        bytes.reserve(1);
    }
    bytes
}

/// MPI counts in 31 bits.
fn length(bytes: usize) -> Result<c_int> {
    let why = || format!("{bytes} bytes are more than one message can have");
    c_int::try_from(bytes).map_err(|_| MpiFailure { what: "sending", why: why() })
}
