//! A communicator of our own: the one place that calls MPI while a job runs.
//!
//! Nothing here waits. Everything is started, and [`Flights`] says when it is done.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use belady_data::sync::Arc;
use mpi::ffi;
use mpi::raw::{AsRaw, FromRaw};
use mpi::topology::{Communicator, SimpleCommunicator};

use super::Payload;
use super::buffers::{Buffer, Buffers};
use super::flights::{Failure, Flights, Result, check};
use crate::NodeId;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Tag {
    Ask = 1,
    Push = 2,
    Reply = 3,
}

/// A message to be sent, and what follows it without being copied.
#[derive(Debug)]
pub struct Outgoing {
    pub to: NodeId,
    pub tag: Tag,
    pub head: Vec<u8>,
    pub large: Vec<Payload>,
}

impl Outgoing {
    pub fn length(&self) -> usize {
        self.head.len() + self.large.iter().map(|bytes| bytes.len()).sum::<usize>()
    }
}

/// Bytes that MPI sends.
#[derive(Debug)]
pub enum Cargo {
    Request(Vec<u8>),
    Reply(Vec<u8>),
    Large(Payload),
}

impl Cargo {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Request(bytes) | Self::Reply(bytes) => bytes,
            Self::Large(bytes) => bytes,
        }
    }
}

/// A message that has come.
#[derive(Debug)]
pub struct Received {
    pub from: NodeId,
    pub tag: c_int,
    pub message: Buffer,
}

/// A reply, with the large samples that came after it.
#[derive(Debug)]
pub struct Answered {
    pub from: NodeId,
    pub call: u64,
    pub reply: Buffer,
    pub large: Buffer,
}

/// One of the large samples of an answer, which is complete when nothing else is a part of it.
#[derive(Debug)]
pub struct Part {
    pub length: usize,
    pub answer: Arc<Answered>,
}

/// A communicator that nobody else uses.
pub struct Comm(SimpleCommunicator);

impl std::fmt::Debug for Comm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Comm").finish_non_exhaustive()
    }
}

// SAFETY: as above.
unsafe impl Send for Comm {}

impl Comm {
    /// A copy of MPI's world, when all of its ranks have come to make it; `None` if they have not
    /// until the deadline.
    pub fn of_world(deadline: Instant) -> Result<Option<Self>> {
        let world = SimpleCommunicator::world();
        // SAFETY: a handle that is there always.
        let mut made = Box::new(unsafe { ffi::RSMPI_COMM_NULL });
        let mut request = MaybeUninit::uninit();
        // SAFETY: `made` stays where it is until MPI has written it, or for ever.
        check("meeting", unsafe {
            ffi::MPI_Comm_idup(world.as_raw(), &raw mut *made, request.as_mut_ptr())
        })?;
        let mut flight = Flights::default();
        // SAFETY: MPI has set it.
        flight.add(unsafe { request.assume_init() }, made);
        let mut comm = None;
        while !flight.landed(|made| comm = Some(made))? {
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        // SAFETY: MPI has made it, and for us alone.
        let comm = comm.map(|made| unsafe { SimpleCommunicator::from_raw(made) });
        if let Some(comm) = &comm {
            // SAFETY: both handles are valid. What fails is told to callers, not fatal.
            check("meeting", unsafe {
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

    /// By rank, whether it runs on this machine. Every rank has to ask.
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
        cargo: Cargo,
        flights: &mut Flights<Cargo>,
    ) -> Result<()> {
        let cargo = Box::new(cargo);
        let start = cargo.bytes().as_ptr().cast();
        let count = length(cargo.bytes().len())?;
        let (to, comm) = (to.cast_signed(), self.0.as_raw());
        let mut request = MaybeUninit::uninit();
        // SAFETY: what is sent is in `cargo`, which stays where it is until it has gone.
        check("sending", unsafe {
            ffi::MPI_Isend(start, count, bytes(), to, tag, comm, request.as_mut_ptr())
        })?;
        // SAFETY: MPI has set it.
        flights.add(unsafe { request.assume_init() }, cargo);
        Ok(())
    }

    /// Begins to receive a message, if one has come: of any kind, or of one.
    pub fn receive(
        &self,
        tag: Option<Tag>,
        buffers: &Arc<Buffers>,
        flights: &mut Flights<Received>,
    ) -> Result<bool> {
        // SAFETY: constants of MPI's.
        let (any_source, any_tag) = unsafe { (ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_ANY_TAG) };
        let tag = tag.map_or(any_tag, |tag| tag as c_int);
        let (mut found, mut size) = (0, 0);
        let mut message = MaybeUninit::uninit();
        let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
        // SAFETY: MPI writes to all of them if it has found something.
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
        // SAFETY: it has.
        let (mut message, status) = unsafe { (message.assume_init(), status.assume_init()) };
        // SAFETY: the status of a message that was found.
        check("receiving", unsafe {
            ffi::MPI_Get_count(&raw const status, bytes(), &raw mut size)
        })?;
        let (from, tag) = (status.MPI_SOURCE as NodeId, status.MPI_TAG);
        let buffer = buffers.take(usize::try_from(size).unwrap_or(0));
        let mut received = Box::new(Received { from, tag, message: buffer });
        let mut request = MaybeUninit::uninit();
        // SAFETY: the buffer has as much room as the message has bytes, and stays until it is there.
        check("receiving", unsafe {
            let start = received.message.start().cast();
            ffi::MPI_Imrecv(start, size, bytes(), &raw mut message, request.as_mut_ptr())
        })?;
        // SAFETY: MPI has set it.
        flights.add(unsafe { request.assume_init() }, received);
        Ok(true)
    }

    /// Begins to receive messages of which it is known how long they are, into one memory, one
    /// after the other.
    pub fn receive_large(
        &self,
        tag: c_int,
        lengths: &[usize],
        answer: Answered,
        flights: &mut Flights<Part>,
    ) -> Result<()> {
        let Answered { from, mut large, .. } = answer;
        assert!(lengths.iter().sum::<usize>() <= large.len(), "there is room for all");
        let mut start = large.start();
        let from_rank = from.cast_signed();
        let answer = Arc::new(Answered { large, ..answer });
        for &bytes_of_one in lengths {
            let part = Box::new(Part { length: bytes_of_one, answer: answer.clone() });
            let count = length(bytes_of_one)?;
            let comm = self.0.as_raw();
            let mut request = MaybeUninit::uninit();
            // SAFETY: all parts are inside of the memory, none overlaps another, and it stays
            // until all of them are there: each holds it.
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
            flights.add(unsafe { request.assume_init() }, part);
            // SAFETY: still inside, or at the end.
            start = unsafe { start.add(bytes_of_one) };
        }
        Ok(())
    }

    /// Finishes when every rank has begun it.
    pub fn barrier(&self, flights: &mut Flights<()>) -> Result<()> {
        let mut request = MaybeUninit::uninit();
        // SAFETY: MPI sets the request.
        check("leaving", unsafe { ffi::MPI_Ibarrier(self.0.as_raw(), request.as_mut_ptr()) })?;
        // SAFETY: it has.
        flights.add(unsafe { request.assume_init() }, Box::new(()));
        Ok(())
    }

    /// Everybody gets what all give, one after the other: from each as many bytes as `lengths` says.
    pub fn gather_all(
        &self,
        give: Vec<u8>,
        lengths: &[usize],
        flights: &mut Flights<Gathered>,
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
        // SAFETY: all of it is in `gathered`, which stays until MPI is done.
        check("meeting", unsafe {
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
        flights.add(unsafe { request.assume_init() }, gathered);
        Ok(())
    }

    /// Everybody gets a part of what rank 0 has: the bytes of that part.
    pub fn spread(
        &self,
        mut all: Vec<u8>,
        part: std::ops::Range<usize>,
        flights: &mut Flights<Vec<u8>>,
    ) -> Result<()> {
        let count = length(part.len())?;
        all = addressed(all);
        let start = all[part].as_mut_ptr();
        let held = Box::new(all);
        let mut request = MaybeUninit::uninit();
        // SAFETY: the part is in what is held, whose bytes stay where they are until MPI is done.
        check("meeting", unsafe {
            let comm = self.0.as_raw();
            ffi::MPI_Ibcast(start.cast(), count, bytes(), 0, comm, request.as_mut_ptr())
        })?;
        // SAFETY: MPI has set it.
        flights.add(unsafe { request.assume_init() }, held);
        Ok(())
    }
}

/// What is given and what comes.
#[derive(Debug)]
pub struct Gathered {
    give: Vec<u8>,
    pub got: Vec<u8>,
    counts: Vec<c_int>,
    places: Vec<c_int>,
}

fn bytes() -> ffi::MPI_Datatype {
    // SAFETY: a constant of MPI's.
    unsafe { ffi::RSMPI_UINT8_T }
}

/// Bytes with an address of their own, even if there are none: Rust's address of nothing is 1, by
/// which Open MPI means MPI_IN_PLACE.
fn addressed(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.is_empty() {
        bytes.reserve(1);
    }
    bytes
}

/// MPI counts in 31 bits.
fn length(bytes: usize) -> Result<c_int> {
    let why = || format!("{bytes} bytes are more than one message can have");
    c_int::try_from(bytes).map_err(|_| Failure { what: "sending", why: why() })
}
