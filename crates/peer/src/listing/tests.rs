use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::Duration;

use belady_base::sync::{Mutex, lock};
use belady_data::source::{Operations, Snapshots, Want};
use proptest::prelude::*;

use super::*;
use crate::NodeId;
use crate::bulk::PIECE;
use crate::dispatcher::Dispatcher;
use crate::memory::MemoryTransport;
use crate::message::{GetReply, GetRequest, Receive};
use crate::rendezvous::InProcessRendezvous;

const LONG: Duration = Duration::from_mins(1);

fn clusters(size: u32) -> Vec<Cluster> {
    let rendezvous = InProcessRendezvous::new(size, LONG);
    let ranks = (0..).zip(MemoryTransport::network(size));
    ranks.map(|(rank, transport)| Cluster::new(rendezvous.member(rank), transport)).collect()
}

/// A dataset in class folders, with enough names to need several pieces.
fn dataset(files: usize) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("dataset");
    for class in ["a", "b"] {
        fs::create_dir_all(root.join(class)).unwrap();
        for at in 0..files {
            let name = format!("{at:05}-{}", "n".repeat(200));
            fs::write(root.join(class).join(name), format!("{class}{at}")).unwrap();
        }
    }
    (directory, root)
}

fn options() -> OpenOptions {
    OpenOptions { snapshots: Snapshots::Off, ..OpenOptions::default() }
}

fn open_all(
    clusters: &[Cluster],
    path: &Path,
    options: &OpenOptions,
) -> Vec<Result<Arc<dyn Source>, ListingError>> {
    let open = |cluster| open_together(cluster, path, options, &ListingProgress::silent());
    std::thread::scope(|scope| {
        let spawn = |cluster| scope.spawn(move || open(cluster));
        let threads: Vec<_> = clusters.iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn many_ranks_read_no_more_from_the_storage_than_one() {
    let (_directory, root) = dataset(3000);
    let alone = open_all(&clusters(1), &root, &options()).remove(0).unwrap();
    assert!(alone.catalog().as_bytes().len() > PIECE, "several pieces");
    let clusters = clusters(6);
    let all: Vec<_> =
        open_all(&clusters, &root, &options()).into_iter().map(Result::unwrap).collect();
    assert_eq!(all[0].operations(), alone.operations());
    for source in &all[1..] {
        assert_eq!(source.operations(), Operations::default(), "nothing before the first read");
        assert_eq!(source.catalog().as_bytes(), all[0].catalog().as_bytes());
    }
    let sample = 4321;
    let mut bytes = vec![0; all[5].catalog().size(sample) as usize];
    all[5].read(&mut [Want::new(sample, &mut bytes)]).unwrap();
    assert_eq!(bytes, b"b1321");
}

#[test]
fn all_ranks_learn_why_rank_0_cannot_open_the_dataset() {
    let outcomes = open_all(&clusters(4), Path::new("/none/such"), &options());
    let sentences: Vec<_> = outcomes.into_iter().map(|it| it.unwrap_err().to_string()).collect();
    assert!(sentences[0].starts_with("there is no dataset at /none/such"), "{sentences:?}");
    for sentence in &sentences[1..] {
        assert_eq!(*sentence, format!("rank 0 cannot open the dataset: {}", sentences[0]));
    }
}

#[test]
fn ranks_with_different_formats_are_refused() {
    let (_directory, root) = dataset(1);
    let clusters = clusters(2);
    let open = |rank: usize, format: &str| {
        let options = OpenOptions { format: Some(format.parse().unwrap()), ..options() };
        open_together(&clusters[rank], &root, &options, &ListingProgress::silent())
    };
    let errors = std::thread::scope(|scope| {
        let other = scope.spawn(|| open(1, "flat").unwrap_err().to_string());
        [open(0, "folder").unwrap_err().to_string(), other.join().unwrap()]
    });
    let right = "the ranks disagree: rank 0 has format folder, rank 1 has format flat";
    assert_eq!(errors, [right, right]);
}

#[test]
fn a_restarted_rank_gets_the_listing_from_its_parent() {
    let (_directory, root) = dataset(10);
    let rendezvous = InProcessRendezvous::new(3, LONG);
    let network = MemoryTransport::network(3);
    let cluster = |rank: u32| Cluster::new(rendezvous.member(rank), network[rank as usize].clone());
    let clusters: Vec<_> = (0..3).map(cluster).collect();
    let all: Vec<_> =
        open_all(&clusters, &root, &options()).into_iter().map(Result::unwrap).collect();
    // Rank 2 restarts and makes the same calls. Its earlier process is not dropped here, since a
    // closed in-memory node stays closed.
    let again = open_together(&cluster(2), &root, &options(), &ListingProgress::silent()).unwrap();
    assert_eq!(again.catalog().fingerprint(), all[0].catalog().fingerprint());
    drop(again);
}

#[test]
fn listings_of_closed_datasets_are_not_kept() {
    let (_directory, root) = dataset(1);
    let clusters = clusters(2);
    let first = open_all(&clusters, &root, &options());
    assert!(first.iter().all(Result::is_ok));
    let second = open_all(&clusters, &root, &options());
    drop(first);
    open_all(&clusters, &root, &options());
    assert!(second.iter().all(Result::is_ok));
}

/// A transport that damages bytes, fails peers, and splits answers at random.
#[derive(Debug)]
struct Rough {
    inner: Arc<MemoryTransport>,
    dice: Mutex<u64>,
    sent: Arc<Mutex<BTreeMap<NodeId, usize>>>,
}

impl Rough {
    fn roll(&self, sides: u64) -> u64 {
        let mut dice = lock(&self.dice);
        *dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*dice >> 33) % sides
    }
}

struct Damaging<'a> {
    rough: &'a Rough,
    into: &'a mut dyn Receive,
}

impl Receive for Damaging<'_> {
    fn slot(&mut self, at: usize) -> &mut [u8] {
        self.into.slot(at)
    }

    fn answered(&mut self, at: usize, answer: crate::Answer) {
        if self.rough.roll(8) == 0 && matches!(answer, crate::Answer::Here { .. }) {
            self.into.slot(at)[0] ^= 1;
        }
        self.into.answered(at, answer);
    }
}

impl crate::Transport for Rough {
    fn get(
        &self,
        peer: NodeId,
        request: &GetRequest<'_>,
        deadline: std::time::Instant,
        into: &mut dyn Receive,
    ) -> Result<(), PeerError> {
        if self.roll(6) == 0 {
            let error = std::io::ErrorKind::ConnectionReset.into();
            return Err(PeerError::Closed { peer, error });
        }
        let size: usize = request.asks.len();
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner).entry(peer).or_default() += size;
        self.inner.get(peer, request, deadline, &mut Damaging { rough: self, into })
    }

    fn put(
        &self,
        peer: NodeId,
        _: crate::Channel,
        _: &[crate::Push<'_>],
        _: std::time::Instant,
    ) -> Result<Vec<crate::PushOutcome>, PeerError> {
        Err(PeerError::Closed { peer, error: std::io::ErrorKind::Other.into() })
    }

    fn tell(
        &self,
        _: NodeId,
        _: crate::Channel,
        _: &crate::Notice,
        _: std::time::Instant,
    ) -> Result<(), PeerError> {
        Ok(())
    }

    fn dispatcher(&self) -> &Arc<Dispatcher> {
        self.inner.dispatcher()
    }

    fn close(&self) {
        self.inner.close();
    }
}

#[test]
fn a_listing_survives_damaged_pieces_and_failing_peers() {
    let (_directory, root) = dataset(4000);
    for seed in 0..4 {
        let rendezvous = InProcessRendezvous::new(5, LONG);
        let sent = Arc::new(Mutex::default());
        let clusters: Vec<_> = (0..)
            .zip(MemoryTransport::network(5))
            .map(|(rank, inner)| {
                let dice = Mutex::new(seed * 31 + u64::from(rank));
                let rough = Rough { inner, dice, sent: Arc::clone(&sent) };
                Cluster::new(rendezvous.member(rank), Arc::new(rough))
            })
            .collect();
        let all = open_all(&clusters, &root, &options());
        let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
        assert!(all.iter().all(|it| it.catalog().as_bytes() == all[0].catalog().as_bytes()));
    }
}

fn header() -> impl Strategy<Value = ListingHeader> {
    let snapshot = prop::option::of("[0-9a-f]{32}\\.snapshot");
    let format =
        prop::sample::select(vec!["folder", "flat", "records:4096", "tfrecord", "webdataset"]);
    prop_oneof![
        "[ -~]{0,200}".prop_map(ListingHeader::Failed),
        (any::<usize>(), format, any::<bool>(), any::<bool>(), snapshot).prop_map(
            |(length, format, is_file, is_local, snapshot)| ListingHeader::Listed {
                length,
                listed: belady_data::source::SharedListing {
                    format: format.parse().unwrap(),
                    is_file,
                    is_local,
                    snapshot,
                },
            }
        ),
    ]
}

proptest! {
    #[test]
    fn a_header_is_decoded_as_it_was_encoded(header in header()) {
        let bytes = header.to_bytes();
        prop_assert_eq!(bytes.len(), header::LENGTH);
        prop_assert_eq!(ListingHeader::from_bytes(&bytes), Some(header));
    }

    #[test]
    fn decoding_any_header_ends(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = ListingHeader::from_bytes(&bytes);
        let _ = ListingHeader::from_bytes(&[&b"listed\n"[..], &bytes].concat());
    }

    /// A rank with a part of the block answers every request: with exactly what it has, "not yet",
    /// or "not here" for pieces that do not exist.
    #[test]
    fn pieces_cover_the_block_exactly(length in 1usize..(3 * PIECE + 9), came in 0usize..4, piece in 1u32..7) {
        use crate::dispatcher::Handler as _;
        let block: Vec<u8> = (0..length).map(|at| (at / 7) as u8).collect();
        let have = (came * PIECE).min(length);
        let server = ListingServer::default();
        server.offer(&ListingHeader::Failed(String::new()), ListingBlock::Coming(block[..have].to_vec(), length));
        let asks = [crate::Ask { sample: piece, last_use: false }];
        let mut replies = vec![];
        let request = GetRequest { channel: crate::Channel(0), epoch: 0, asks: &asks };
        server.get(1, &request, 1 << 30, &mut replies);
        let start = (piece as usize - 1) * PIECE;
        let end = (start + PIECE).min(length);
        match &replies[0] {
            GetReply::NotHere => prop_assert!(start >= length),
            GetReply::NotYet => prop_assert!(start < length && end > have),
            GetReply::Here { bytes, digest, .. } => {
                prop_assert!(end <= have && **bytes == block[start..end]);
                prop_assert_eq!(*digest, crate::digest(bytes));
            }
            GetReply::Busy => prop_assert!(false),
        }
    }
}
